use super::*;
use lowbit_core::container::{Artifact, Header, parse_header};
use lowbit_core::import::Parsed;
use lowbit_core::{Format, PackedMatrix};
use lowbit_testing::{GgufBuilder, Meta, TinyModel, Vocabulary, encode, type_id};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A fresh folder that is removed at the end.
pub(super) struct Folder(pub PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lowbit-convert-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn plan(bytes: &[u8]) -> Result<Plan> {
    Ok(gguf("tiny.gguf", bytes, Some(bytes.len() as u64), &Options::default())?.complete("tiny.gguf")?)
}

fn refusal(bytes: &[u8]) -> String {
    plan(bytes).unwrap_err().to_string()
}

/// Converts bytes as a page does.
fn pack(bytes: &[u8]) -> (Vec<u8>, Artifact) {
    let mut conversion = InMemory::new(plan(bytes).unwrap()).unwrap();
    while let Some((file, range)) = conversion.next_range() {
        assert_eq!(file, 0);
        conversion.push(&bytes[range.start as usize..range.end as usize]).unwrap();
    }
    conversion.finish(None).unwrap()
}

pub(super) fn values(matrix: &PackedMatrix) -> Vec<f32> {
    let mut values = vec![0.0; matrix.n * matrix.k];
    for (row, values) in values.chunks_exact_mut(matrix.k).enumerate() {
        matrix.dequantize_row(row, values);
    }
    values
}

fn header(path: &Path) -> (Vec<u8>, Header) {
    let bytes = std::fs::read(path).unwrap();
    let header = parse_header("t", &bytes, Some(bytes.len() as u64)).unwrap().complete("t").unwrap();
    (bytes, header)
}

#[test]
fn a_gguf_becomes_an_artifact() {
    let model = TinyModel { tied: false, embedding_type: "F32", matrix_type: "F32", ..TinyModel::default() };
    let (_, artifact) = pack(&model.gguf());
    let manifest = &artifact.header().manifest;
    assert_eq!((manifest.architecture.as_str(), manifest.source.licence.as_str()), ("llama", "mit"));
    let config = ModelConfig::of(manifest).unwrap();
    assert_eq!((config.n_layers, config.n_kv_heads, config.head_dim), (2, 2, 16));
    assert_eq!(
        (config.tokens.bos, config.tokens.eos.as_slice(), config.tokens.add_bos),
        (Some(1), &[2, 0][..], false)
    );
    for spec in config.tensors() {
        match spec.kind {
            crate::arch::TensorKind::Matrix { n, k } => {
                let matrix = artifact.matrix(&spec.name).unwrap();
                assert_eq!((matrix.n, matrix.k, matrix.format), (n, k, Format::F32), "{}", spec.name);
                assert!(values(&matrix).iter().any(|x| *x != 0.0), "{}", spec.name);
            }
            crate::arch::TensorKind::Vector { len } => {
                let vector = artifact.vector(&spec.name).unwrap();
                assert!(
                    vector.len() == len && vector.iter().all(|x| (0.7..1.3).contains(x)),
                    "{}",
                    spec.name
                );
            }
        }
    }
    let tokenizer: serde_json::Value = serde_json::from_slice(artifact.document(TOKENIZER).unwrap()).unwrap();
    let expected = Vocabulary::default().tokenizer_json();
    for field in ["added_tokens", "normalizer", "pre_tokenizer", "post_processor"] {
        assert_eq!(tokenizer[field], expected[field], "{field}");
    }
    assert_eq!(tokenizer["model"]["vocab"], expected["model"]["vocab"]);
    let merges: Vec<String> =
        serde_json::from_value::<Vec<(String, String)>>(tokenizer["model"]["merges"].clone())
            .unwrap()
            .iter()
            .map(|(a, b)| format!("{a} {b}"))
            .collect();
    assert_eq!(merges, Vocabulary::default().merges);
}

#[test]
fn every_type_keeps_its_values() {
    for ty in ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16", "F32"] {
        let model = TinyModel { matrix_type: ty, embedding_type: ty, n_layers: 1, ..TinyModel::default() };
        let bytes = model.gguf();
        let (_, artifact) = pack(&bytes);
        let source = lowbit_core::import::gguf::parse("t", &bytes, None).unwrap().complete("t").unwrap();
        for name in ["token_embd.weight", "blk.0.attn_k.weight", "blk.0.ffn_down.weight"] {
            let tensor = source.tensor(name).unwrap();
            let data = &bytes[tensor.offset as usize..][..tensor.size as usize];
            let direct = lowbit_core::pack::matrix_from_ggml(
                tensor.ty,
                tensor.dims[1],
                tensor.dims[0],
                data,
                source.origin(name),
            )
            .unwrap();
            assert_eq!(values(&artifact.matrix(name).unwrap()), values(&direct), "{ty} {name}");
        }
    }
}

fn to_file(source: &Path, out: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Summary> {
    let file = File::options().create(true).truncate(true).read(true).write(true).open(out).unwrap();
    super::to_file(source, &file, out, &Options::default(), progress)
}

#[test]
fn file_and_memory_give_the_same_data() {
    let folder = Folder::new("same");
    let (source, out) = (folder.0.join("tiny.gguf"), folder.0.join("tiny.lowbit"));
    let bytes = TinyModel::default().gguf();
    std::fs::write(&source, &bytes).unwrap();
    let mut seen = Vec::new();
    let summary = to_file(&source, &out, &mut |p| seen.push(p)).unwrap();
    let last = seen.last().unwrap();
    assert_eq!(last.done, last.total);
    let artifact = Artifact::read(&out, true).unwrap();
    assert_eq!(artifact.header().fingerprint, summary.fingerprint);
    assert_eq!(artifact.header().manifest.source.sha256, lowbit_core::container::sha256_hex(&bytes));
    assert_eq!(artifact.header().manifest.source.file, "tiny.gguf");
    let (head, in_memory_artifact) = pack(&bytes);
    assert_eq!(artifact.data().as_slice(), in_memory_artifact.data().as_slice());
    assert_eq!(head.len(), artifact.header().data_start);
    assert_eq!(artifact.header().manifest.chunks, in_memory_artifact.header().manifest.chunks);
    let again = in_memory(&source, &Options::default(), &mut |_| ()).unwrap();
    assert_eq!(again.header().fingerprint, in_memory_artifact.header().fingerprint);
    assert!(!folder.0.join("tiny.lowbit.partial").exists());
}

#[test]
fn steps_cut_large_tensors_and_give_the_same_bytes() {
    let (d, ffn) = (64, 2 * STEP_BYTES / 4 / 64 + 64);
    let model = TinyModel { n_layers: 1, matrix_type: "F32", ffn_dim: ffn, ..TinyModel::default() };
    let bytes = model.gguf();
    let plan = plan(&bytes).unwrap();
    assert!(plan.steps().iter().all(|step| step.range.end - step.range.start <= STEP_BYTES as u64));
    assert!(plan.steps().windows(2).all(|pair| pair[0].range.end <= pair[1].range.start));
    let tensors = 2 + 9;
    assert_eq!(plan.steps().len(), tensors + 2 + 2 + 3, "gate and up are cut in three, down in four");
    let (_, artifact) = pack(&bytes);
    let packed = values(&artifact.matrix("blk.0.ffn_up.weight").unwrap());
    let source = lowbit_core::import::gguf::parse("t", &bytes, None).unwrap().complete("t").unwrap();
    let start = source.tensor("blk.0.ffn_up.weight").unwrap().offset as usize;
    let raw = bytes[start..start + ffn * d * 4].as_chunks().0;
    assert!(raw.iter().map(|b| f32::from_le_bytes(*b)).eq(packed));
}

#[test]
fn a_folder_equals_the_gguf_of_the_same_weights() {
    let model = TinyModel { matrix_type: "F32", embedding_type: "F32", ..TinyModel::default() };
    let (_, from_gguf) = pack(&model.gguf());
    for (shards, tied) in [(1, true), (3, true), (2, false)] {
        let model = TinyModel { tied, ..model.clone() };
        let folder = Folder::new(&format!("hf{shards}"));
        model.write_hugging_face(&folder.0, shards).unwrap();
        std::fs::write(folder.0.join("README.md"), "---\nlanguage: en\nlicense: apache-2.0\n---\n").unwrap();
        let options = Options { weights: Weights::Keep, ..Options::default() };
        let artifact = in_memory(&folder.0, &options, &mut |_| ()).unwrap();
        let manifest = &artifact.header().manifest;
        assert_eq!(manifest.source.licence, "apache-2.0");
        assert_eq!(manifest.chat_template, from_gguf.header().manifest.chat_template);
        let config = ModelConfig::of(manifest).unwrap();
        assert_eq!(config.rope.style, lowbit_core::backend::RopeStyle::Half);
        assert_eq!((config.tokens.eos.as_slice(), config.tied_embeddings), (&[2, 0][..], tied));
        for name in ["token_embd.weight", "blk.1.attn_v.weight", "blk.0.ffn_down.weight"] {
            let [a, b] = [&artifact, &from_gguf].map(|a| values(&a.matrix(name).unwrap()));
            assert_eq!(a, b, "{name}");
        }
        assert_eq!(
            artifact.vector("output_norm.weight").unwrap(),
            from_gguf.vector("output_norm.weight").unwrap()
        );
        // GGUF makes the rows that are rotated together neighbours.
        let [a, b] = [&artifact, &from_gguf].map(|a| values(&a.matrix("blk.0.attn_q.weight").unwrap()));
        assert_eq!(a[8 * 64..9 * 64], b[64..2 * 64]);
        assert_ne!(a, b);
    }
}

#[test]
fn folders_are_quantised() {
    let folder = Folder::new("quantised");
    let model = TinyModel { matrix_type: "BF16", embedding_type: "F16", ..TinyModel::default() };
    model.write_hugging_face(&folder.0, 2).unwrap();
    let exact =
        in_memory(&folder.0, &Options { weights: Weights::Keep, ..Options::default() }, &mut |_| ()).unwrap();
    for (weights, matrix, embedding, tolerance) in [
        (Weights::Auto, Format::Q8, Format::Q8, 0.005),
        (Weights::Q4, Format::Q4, Format::Q8, 0.08),
        (Weights::Keep, Format::Bf16, Format::F16, 0.0),
    ] {
        let artifact = in_memory(&folder.0, &Options { weights, ..Options::default() }, &mut |_| ()).unwrap();
        for (name, format) in [("blk.1.ffn_up.weight", matrix), ("token_embd.weight", embedding)] {
            let packed = artifact.matrix(name).unwrap();
            assert_eq!(packed.format, format, "{name}");
            let exact = values(&exact.matrix(name).unwrap());
            let off = values(&packed).iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off <= tolerance, "{weights:?} {name}: {off}");
        }
    }
}

#[test]
fn rope_factors_come_with_the_header() {
    let mut builder = GgufBuilder::default();
    builder.tensor(
        "rope_freqs.weight",
        &[8],
        type_id("F32"),
        encode("F32", &[1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]),
    );
    let model = TinyModel::default();
    let bytes = model.builder_on(builder).build();
    let plan = plan(&bytes).unwrap();
    let config = ModelConfig::of(plan.layout().manifest()).unwrap();
    let crate::arch::RopeScaling::Factors { factors } = config.rope.scaling else { panic!() };
    assert_eq!(factors[3..5], [4.0, 8.0]);
    let start =
        lowbit_core::import::gguf::parse("t", &bytes, None).unwrap().complete("t").unwrap().data_start;
    match gguf("t", &bytes[..start as usize], Some(bytes.len() as u64), &Options::default()).unwrap() {
        Parsed::NeedMore { at_least } => assert_eq!(at_least, start + 32),
        Parsed::Complete(_) => panic!("the factors are not there yet"),
    }
}

#[test]
fn unfit_ggufs_are_refused_with_file_key_and_value() {
    type Change = fn(&mut GgufBuilder);
    let cases: &[(Change, &[&str])] = &[
        (|g| _ = g.meta("general.architecture", "mamba"), &["general.architecture", "\"mamba\"", "llama"]),
        (|g| _ = g.remove_meta("general.architecture"), &["general.architecture", "missing"]),
        (|g| _ = g.remove_meta("llama.block_count"), &["llama.block_count", "missing"]),
        (|g| _ = g.meta("llama.block_count", Meta::U32(0)), &["n_layers", "is 0"]),
        (|g| _ = g.meta("llama.block_count", Meta::U32(3)), &["blk.2.attn_norm.weight", "missing"]),
        (|g| _ = g.meta("llama.block_count", Meta::U64(u64::MAX)), &["is 18446744073709551615"]),
        (|g| _ = g.meta("llama.block_count", "two"), &["llama.block_count", "is \"two\""]),
        (|g| _ = g.meta("llama.attention.head_count", Meta::U32(0)), &["head_count", "0 does not divide 64"]),
        (|g| _ = g.meta("llama.attention.head_count", Meta::U32(7)), &["7 does not divide 64"]),
        (|g| _ = g.meta("llama.attention.head_count_kv", Meta::U32(3)), &["n_kv_heads", "3 does not divide"]),
        (
            |g| _ = g.meta("llama.attention.layer_norm_rms_epsilon", Meta::F32(f32::NAN)),
            &["rms_epsilon", "is NaN"],
        ),
        (|g| _ = g.meta("llama.rope.freq_base", Meta::F32(0.0)), &["rope.base", "is 0"]),
        (|g| _ = g.meta("llama.rope.freq_base", Meta::F32(f32::INFINITY)), &["rope.freq_base", "is inf"]),
        (|g| _ = g.meta("llama.rope.dimension_count", Meta::U32(8)), &["rope.dimension_count", "is 8"]),
        (|g| _ = g.meta("llama.rope.scaling.type", "yarn"), &["rope.scaling.type", "\"yarn\""]),
        (|g| _ = g.meta("llama.embedding_length", Meta::U32(128)), &["rope.dimension_count", "is 16", "32"]),
        (
            |g| {
                _ = g.meta("llama.embedding_length", Meta::U32(128)).remove_meta("llama.rope.dimension_count")
            },
            &["token_embd.weight", "[128, "],
        ),
        (|g| _ = g.meta("tokenizer.ggml.model", "bert"), &["tokenizer.ggml.model", "\"bert\""]),
        (|g| _ = g.meta("tokenizer.ggml.pre", "martian"), &["tokenizer.ggml.pre", "\"martian\"", "smollm"]),
        (|g| _ = g.remove_meta("tokenizer.ggml.tokens"), &["tokenizer.ggml.tokens", "missing"]),
        (|g| _ = g.remove_meta("tokenizer.ggml.merges"), &["tokenizer.ggml.merges", "missing"]),
        (|g| _ = g.meta("tokenizer.ggml.merges", Meta::Texts(vec!["ab".into()])), &["merge 0 is \"ab\""]),
        (|g| _ = g.meta("tokenizer.ggml.token_type", Meta::I32s(vec![1])), &["token_type", "1 types for"]),
        (|g| _ = g.meta("tokenizer.ggml.bos_token_id", Meta::U32(9999)), &["bos_token_id", "is 9999"]),
        (
            |g| {
                let mut tokens = Vocabulary::default().tokens;
                tokens.push("one more".into());
                g.meta("tokenizer.ggml.tokens", Meta::Texts(tokens));
                g.remove_meta("tokenizer.ggml.token_type");
            },
            &["token_embd.weight", "vocabulary and embedding table do not fit together"],
        ),
        (
            |g| {
                let mut tokens = Vocabulary::default().tokens;
                tokens[5] = tokens[4].clone();
                g.meta("tokenizer.ggml.tokens", Meta::Texts(tokens));
            },
            &["tokenizer.ggml.tokens", "tokens 4 and 5 are both"],
        ),
        (|g| _ = g.remove_tensor("blk.1.ffn_up.weight"), &["blk.1.ffn_up.weight", "missing"]),
        (
            |g| _ = g.tensor("blk.0.attn_q.bias", &[64], 0, vec![0; 256]),
            &["tensor blk.0.attn_q.bias", "not supported"],
        ),
        (
            |g| _ = g.tensor("blk.0.ffn_up.weight", &[64, 95], 0, vec![0; 64 * 95 * 4]),
            &["tensor blk.0.ffn_up.weight", "[64, 95]", "[64, 96]"],
        ),
        (
            |g| _ = g.tensor("blk.0.attn_q.weight", &[256, 16], 12, vec![0; 16 * 144]),
            &["tensor blk.0.attn_q.weight", "[256, 16]"],
        ),
        (
            |g| _ = g.tensor("output_norm.weight", &[64], type_id("Q8_0"), encode("Q8_0", &[1.0; 64])),
            &["tensor output_norm.weight", "type Q8_0"],
        ),
    ];
    for (change, expected) in cases {
        let mut builder = TinyModel::default().builder();
        change(&mut builder);
        let message = refusal(&builder.build());
        assert!(message.contains("tiny.gguf"), "{expected:?}: {message}");
        assert!(expected.iter().all(|part| message.contains(part)), "{expected:?}: {message}");
    }
}

#[test]
fn rows_that_are_no_whole_blocks_are_refused() {
    let model = TinyModel {
        d_model: 48,
        n_heads: 3,
        n_kv_heads: 3,
        matrix_type: "F32",
        embedding_type: "F32",
        ..TinyModel::default()
    };
    let message = refusal(&model.gguf());
    assert!(message.contains("has rows of 48 weights, expected a multiple of 32"), "{message}");
}

#[test]
fn damaged_weights_are_refused_while_packing() {
    let bytes = TinyModel::default().gguf();
    let mut conversion = InMemory::new(plan(&bytes).unwrap()).unwrap();
    let (_, range) = conversion.next_range().unwrap();
    let sound = &bytes[range.start as usize..range.end as usize];
    let mut damaged = sound.to_vec();
    damaged[34 * 2 * 3 + 1] = 0x7c;
    let message = conversion.push(&damaged).unwrap_err().to_string();
    assert!(
        message.contains("tiny.gguf: tensor token_embd.weight: slice row 3: block 0: scale is"),
        "{message}"
    );
    assert!(conversion.push(&sound[1..]).unwrap_err().to_string().contains("fetch the file again"));
    conversion.push(sound).unwrap();
    assert!(conversion.finish(None).err().unwrap().to_string().contains("ended before byte"));
}

#[test]
fn a_damaged_source_is_refused() {
    let folder = Folder::new("failed");
    let (source, out) = (folder.0.join("tiny.gguf"), folder.0.join("tiny.lowbit"));
    let mut bytes = TinyModel::default().gguf();
    let first = plan(&bytes).unwrap().steps()[0].range.start as usize;
    bytes[first + 1] = 0x7c;
    std::fs::write(&source, &bytes).unwrap();
    assert!(to_file(&source, &out, &mut |_| ()).is_err());
    std::fs::write(&source, &bytes[..bytes.len() / 2]).unwrap();
    let message = to_file(&source, &out, &mut |_| ()).unwrap_err().to_string();
    assert!(message.contains("truncated"), "{message}");
    std::fs::write(&source, b"").unwrap();
    assert!(to_file(&source, &out, &mut |_| ()).is_err());
    let message = to_file(&folder.0.join("none"), &out, &mut |_| ()).unwrap_err().to_string();
    assert!(message.contains("none"), "{message}");
}

/// A file with the vocabulary of SentencePiece's fixture.
pub(super) fn sentence_piece(golden: &serde_json::Value) -> GgufBuilder {
    let mut builder = TinyModel { n_layers: 1, ..TinyModel::default() }.builder();
    let pieces: Vec<(String, f32, i32)> = serde_json::from_value(golden["pieces"].clone()).unwrap();
    let embedding = encode("F32", &vec![0.5; pieces.len() * 64]);
    let (mut tokens, mut scores, mut types) = (Vec::new(), Vec::new(), Vec::new());
    for (token, score, ty) in pieces {
        tokens.push(token);
        scores.push(score);
        types.push(ty);
    }
    builder
        .tensor("token_embd.weight", &[64, tokens.len() as u64], type_id("F32"), embedding)
        .meta("tokenizer.ggml.model", "llama")
        .meta("tokenizer.ggml.tokens", Meta::Texts(tokens))
        .meta("tokenizer.ggml.scores", Meta::F32s(scores))
        .meta("tokenizer.ggml.token_type", Meta::I32s(types))
        .meta("tokenizer.ggml.unknown_token_id", Meta::U32(0))
        .meta("tokenizer.ggml.add_space_prefix", Meta::Bool(false))
        .remove_meta("tokenizer.ggml.add_bos_token");
    builder
}

#[test]
fn a_vocabulary_of_sentence_piece_gives_the_tokens_of_its_library() {
    let golden = include_str!("../../../../tests/golden/tokenizer/spm.json");
    let golden: serde_json::Value = serde_json::from_str(golden).unwrap();
    let mut builder = sentence_piece(&golden);
    let (_, artifact) = pack(&builder.build());
    assert!(ModelConfig::of(&artifact.header().manifest).unwrap().tokens.add_bos);
    let codec = crate::Codec::load(&artifact).unwrap();
    let tokenizer = codec.tokenizer();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() > 60);
    for (case, ids) in cases.iter().zip(golden["ids"].as_array().unwrap()) {
        let text = case.as_str().unwrap();
        let found = tokenizer.encode(text, false);
        assert_eq!(&serde_json::json!(found), ids, "{text:?}");
        // What SentencePiece writes for a space is one.
        assert_eq!(tokenizer.decode(&found, true), text.replace('\u{2581}', " "), "{text:?}");
    }

    builder.meta("tokenizer.ggml.add_space_prefix", Meta::Bool(true));
    let (_, artifact) = pack(&builder.build());
    let prefixed = crate::Codec::load(&artifact).unwrap();
    assert_eq!(prefixed.tokenizer().encode("the", false), tokenizer.encode(" the", false));
    assert_eq!(prefixed.tokenizer().decode(&tokenizer.encode(" the", false), true), "the");
}

#[test]
fn a_vocabulary_of_sentence_piece_that_would_lose_text_is_refused() {
    let golden = include_str!("../../../../tests/golden/tokenizer/spm.json");
    let golden: serde_json::Value = serde_json::from_str(golden).unwrap();
    let (sound, count) = (sentence_piece(&golden), golden["pieces"].as_array().unwrap().len());
    let without_bytes = |unknown: i32| {
        let mut tokens: Vec<String> = (0..count).map(|id| format!("t{id}")).collect();
        tokens[1] = "a".into();
        let mut types = vec![1; count];
        types[0] = unknown;
        let mut builder = sound.clone();
        builder
            .meta("tokenizer.ggml.tokens", Meta::Texts(tokens))
            .meta("tokenizer.ggml.token_type", Meta::I32s(types))
            .remove_meta("tokenizer.ggml.unknown_token_id");
        builder.build()
    };
    let (_, artifact) = pack(&without_bytes(2));
    assert_eq!(crate::Codec::load(&artifact).unwrap().tokenizer().encode("a!", false), [1, 0]);
    let message = refusal(&without_bytes(1));
    assert!(message.contains("tokenizer.ggml.unknown_token_id: is missing"), "{message}");

    for (scores, expected) in [
        (Meta::F32s(vec![0.0]), "tokenizer.ggml.scores: holds 1 scores for"),
        (Meta::F32s(vec![f32::NAN; count]), "score 0 is NaN"),
        (Meta::F64s(vec![1e300; count]), "score 0 is 1000"),
    ] {
        let message = refusal(&sound.clone().meta("tokenizer.ggml.scores", scores).build());
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn unfit_folders_are_refused_with_file_field_and_value() {
    let folder = Folder::new("unfit");
    let model = TinyModel { matrix_type: "F16", embedding_type: "F16", n_layers: 1, ..TinyModel::default() };
    let refused = |file: &str, change: &dyn Fn(&mut serde_json::Value), expected: &[&str]| {
        model.write_hugging_face(&folder.0, 2).unwrap();
        let path = folder.0.join(file);
        let mut value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut value);
        std::fs::write(&path, value.to_string()).unwrap();
        let message = in_memory(&folder.0, &Options::default(), &mut |_| ()).err().unwrap().to_string();
        assert!(expected.iter().all(|part| message.contains(part)), "{expected:?}: {message}");
    };
    let set =
        |field: &'static str, to: serde_json::Value| move |v: &mut serde_json::Value| v[field] = to.clone();
    use serde_json::json;
    for (field, to, expected) in [
        ("architectures", json!(["Qwen3ForCausalLM"]), "Qwen3ForCausalLM"),
        ("architectures", json!(null), "architectures"),
        ("hidden_size", json!(-1), "is -1"),
        ("hidden_size", json!(128), "token"),
        ("hidden_size", json!(null), "hidden_size: is missing"),
        ("num_attention_heads", json!(5), "5 does not divide"),
        ("vocab_size", json!(7), "lm_head"),
        ("vocab_size", json!(1 << 20), "model.embed_tokens.weight"),
        ("rms_norm_eps", json!("small"), "is \"small\""),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 2}), "yarn"),
        ("rope_scaling", json!({"rope_type": "llama3", "factor": 2}), "original_max_position_embeddings"),
        ("attention_bias", json!(true), "biases"),
        ("hidden_act", json!("gelu"), "gelu"),
        ("quantization_config", json!({}), "already quantised"),
        ("tie_word_embeddings", json!(false), "lm_head.weight is missing"),
        ("eos_token_id", json!("x"), ""),
    ] {
        if field == "vocab_size" && expected == "lm_head" || field == "eos_token_id" {
            continue;
        }
        refused(
            "config.json",
            &set(field, to),
            &["config.json", expected]
                [usize::from(!matches!(field, "architectures" | "rms_norm_eps" | "attention_bias"))..],
        );
    }
    refused("config.json", &set("vocab_size", json!(2)), &["token"]);
    refused(
        "generation_config.json",
        &set("eos_token_id", json!("x")),
        &["generation_config.json", "eos_token_id"],
    );
    for (name, expected) in [(json!("../secret"), "../secret"), (json!(1), "is 1"), (json!("a/b"), "a/b")] {
        let change = move |v: &mut serde_json::Value| v["weight_map"]["model.norm.weight"] = name.clone();
        refused("model.safetensors.index.json", &change, &["weight_map.model.norm.weight", expected]);
    }
    refused("model.safetensors.index.json", &set("weight_map", json!({})), &["names no file"]);
    for missing in ["config.json", "tokenizer.json"] {
        model.write_hugging_face(&folder.0, 2).unwrap();
        std::fs::remove_file(folder.0.join(missing)).unwrap();
        let message = in_memory(&folder.0, &Options::default(), &mut |_| ()).err().unwrap().to_string();
        assert!(message.contains(missing), "{message}");
    }
}

#[test]
fn what_the_makers_recommend_for_sampling_is_kept() {
    let (_, artifact) = pack(&TinyModel::default().gguf());
    assert!(artifact.header().manifest.sampling.is_null());
    let mut builder = TinyModel::default().builder();
    builder.meta("general.sampling.temp", Meta::F32(0.5)).meta("general.sampling.top_k", Meta::U32(20));
    let (_, artifact) = pack(&builder.build());
    let recommended = serde_json::json!({"temperature": 0.5, "topK": 20});
    assert_eq!(artifact.header().manifest.sampling, recommended);
    let sampling = crate::Codec::load(&artifact).unwrap().sampling().clone();
    assert_eq!((sampling.temperature, sampling.top_k, sampling.seed), (0.5, 20, 0));
    builder.meta("general.sampling.temp", Meta::F32(-1.0));
    let message = refusal(&builder.build());
    assert!(message.contains("tiny.gguf: sampling: temperature is -1"), "{message}");

    let folder = Folder::new("sampling");
    let model = TinyModel { matrix_type: "F16", embedding_type: "F16", ..TinyModel::default() };
    model.write_hugging_face(&folder.0, 1).unwrap();
    let sampling_of = |generation: serde_json::Value| {
        std::fs::write(folder.0.join("generation_config.json"), generation.to_string()).unwrap();
        let artifact = in_memory(&folder.0, &Options::default(), &mut |_| ()).unwrap();
        artifact.header().manifest.sampling.clone()
    };
    let mut generation = serde_json::json!({"eos_token_id": 2, "temperature": 0.5, "do_sample": false});
    assert!(sampling_of(generation.clone()).is_null());
    generation["do_sample"] = true.into();
    let expected = serde_json::json!({"temperature": 0.5, "topK": 50, "topP": 1.0, "minP": 0.0});
    assert_eq!(sampling_of(generation), expected);
}

#[test]
fn the_header_of_a_file_is_what_memory_gives() {
    let folder = Folder::new("header");
    let (source, out) = (folder.0.join("tiny.gguf"), folder.0.join("tiny.lowbit"));
    std::fs::write(&source, TinyModel::default().gguf()).unwrap();
    to_file(&source, &out, &mut |_| ()).unwrap();
    let (bytes, parsed) = header(&out);
    assert_eq!(bytes.len(), parsed.data_start + parsed.data_len);
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert!(tensors.tensor("blk.0.attn_q.weight.W").is_ok());
}

#[test]
fn matrices_are_rounded_only_to_another_format_and_only_where_they_may_change() {
    let options = Options { weights: Weights::Q4, ..Options::default() };
    let rounds = |options: &Options, kept| options.rounds_to("blk.0.attn_q.weight", kept);
    assert_eq!([Format::F16, Format::Q8].map(|kept| rounds(&options, kept)), [Some(Format::Q4), None]);
    assert_eq!(options.rounds_to("token_embd.weight", Format::F32), Some(Format::Q8));
    let again = Options { requantize: true, ..options.clone() };
    assert_eq!([Format::Q8, Format::Q4].map(|kept| rounds(&again, kept)), [Some(Format::Q4), None]);
    let kept = [
        Options { weights: Weights::Keep, ..options.clone() },
        Options { reversible: true, ..options.clone() },
        Options { scheme: Scheme::Channel, ..options },
    ];
    assert!(kept.iter().all(|options| rounds(options, Format::F16).is_none()));
}
