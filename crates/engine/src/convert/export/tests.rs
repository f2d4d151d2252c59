use crate::convert::tests::Folder;
use crate::convert::{Exported, Options, Weights, to_file, to_gguf};
use crate::{Error, Result};
use lowbit_core::import::gguf::{self, Gguf};
use lowbit_core::pack::{GGML_TYPES, GgmlType};
use lowbit_testing::{GgufBuilder, Meta, Rng, TinyModel, encode, mutate, type_id};
use std::fs::File;
use std::path::Path;

fn create(path: &Path) -> File {
    File::options().create(true).truncate(true).read(true).write(true).open(path).unwrap()
}

fn pack(source: &Path, artifact: &Path, options: &Options) {
    to_file(source, &create(artifact), artifact, options, &mut |_| ()).unwrap();
}

fn export(artifact: &Path, out: &Path) -> Result<Exported> {
    let mut last = None;
    let exported = to_gguf(artifact, &create(out), out, &mut |progress| last = Some(progress))?;
    let last = last.unwrap();
    assert_eq!(last.done, last.total);
    Ok(exported)
}

/// The file that comes back, and what is said of it.
fn round_trip(folder: &Folder, source: &[u8], reversible: bool) -> (Vec<u8>, Exported) {
    let [from, artifact, out] = ["a.gguf", "a.lowbit", "b.gguf"].map(|name| folder.0.join(name));
    std::fs::write(&from, source).unwrap();
    pack(&from, &artifact, &Options { reversible, ..Options::default() });
    let exported = export(&artifact, &out).unwrap();
    let bytes = std::fs::read(&out).unwrap();
    assert_eq!(exported.bytes, bytes.len() as u64);
    assert_eq!(exported.sha256, lowbit_core::container::sha256_hex(&bytes));
    assert_eq!(exported.identical, reversible);
    (bytes, exported)
}

fn parse(bytes: &[u8]) -> Gguf {
    gguf::parse("t", bytes, Some(bytes.len() as u64)).unwrap().complete("t").unwrap()
}

/// The tensors are the same, byte for byte.
fn compare_tensors(before: &[u8], after: &[u8]) {
    let [a, b] = [before, after].map(parse);
    assert_eq!(a.tensors.len(), b.tensors.len());
    for tensor in &a.tensors {
        let other = b.tensor(&tensor.name).unwrap();
        assert_eq!((&tensor.dims, tensor.ty), (&other.dims, other.ty), "{}", tensor.name);
        let data = |bytes: &[u8], offset: u64| bytes[offset as usize..][..tensor.size as usize].to_vec();
        assert_eq!(data(before, tensor.offset), data(after, other.offset), "{}", tensor.name);
    }
}

/// A model whose tensors are of `ty`, filled with whatever its blocks may hold.
fn of_type(ty: GgmlType, builder: GgufBuilder) -> GgufBuilder {
    let model = TinyModel { d_model: 256, n_heads: 4, ffn_dim: 256, n_layers: 1, ..TinyModel::default() };
    let mut builder = model.builder_on(builder);
    let source = builder.build();
    let mut rng = Rng::new(u64::from(ty.id()));
    for tensor in parse(&source).tensors.iter().filter(|tensor| tensor.dims.len() == 2) {
        let count = tensor.dims.iter().product();
        let mut bytes: Vec<u8> = (0..ty.bytes_of(count).unwrap()).map(|_| rng.next_u64() as u8).collect();
        // Clear the top exponent bit wherever the number could be a half that is not finite.
        let block = ty.bytes_of(ty.block()).unwrap();
        for block in bytes.chunks_exact_mut(block) {
            let len = block.len();
            for at in [1, 3, 81, 83, 109, 209, len - 1] {
                if let Some(byte) = block.get_mut(at) {
                    *byte &= 0xbf;
                }
            }
            match ty.name() {
                "MXFP4" | "NVFP4" => block[..4].iter_mut().for_each(|byte| *byte &= 0x3f),
                // Bytes of numbers of digits to base 3, as they are written.
                "TQ1_0" => block[..52].iter_mut().for_each(|byte| {
                    *byte = (u16::from(*byte) % 81 * 3 * 256).div_ceil(243) as u8;
                }),
                _ => {}
            }
        }
        let dims: Vec<u64> = tensor.dims.iter().map(|dim| *dim as u64).collect();
        builder.tensor(&tensor.name, &dims, ty.id(), bytes);
    }
    builder
}

#[test]
fn every_type_comes_back_byte_for_byte() {
    let folder = Folder::new("export-types");
    for spec in GGML_TYPES.iter().filter(|spec| spec.format.is_some()) {
        let ty = GgmlType::from_name(spec.name).unwrap();
        let source = of_type(ty, GgufBuilder::default()).build();
        let (same, exported) = round_trip(&folder, &source, true);
        assert!(same == source, "{}", spec.name);
        assert_eq!(exported.matrices, [(ty, 8)], "{}", spec.name);
        let (rebuilt, _) = round_trip(&folder, &source, false);
        assert_ne!(rebuilt, source);
        // Of a type whose format is another's too, the weights come back, but as that one.
        if GgmlType::of_format(spec.format.unwrap()) == Some(ty) {
            compare_tensors(&source, &rebuilt);
        }
    }
}

/// Bytes that mean the same as others, of which only the meaning is stored.
#[test]
fn blocks_that_would_not_come_back_are_refused_when_they_are_packed() {
    let folder = Folder::new("export-ambiguous");
    let [from, artifact] = ["a.gguf", "a.lowbit"].map(|name| folder.0.join(name));
    for (name, byte) in [("NVFP4", 0x7f), ("TQ1_0", 0x01)] {
        let mut source = of_type(GgmlType::from_name(name).unwrap(), GgufBuilder::default()).build();
        let tensor = parse(&source).tensors.into_iter().find(|tensor| tensor.ty.name() == name).unwrap();
        source[tensor.offset as usize] = byte;
        std::fs::write(&from, &source).unwrap();
        let convert = |reversible| {
            let options = Options { reversible, ..Options::default() };
            to_file(&from, &create(&artifact), &artifact, &options, &mut |_| ())
        };
        let error = convert(true).unwrap_err().to_string();
        assert!(error.contains(&tensor.name) && error.contains("without --reversible"), "{error}");
        convert(false).unwrap();
    }
}

#[test]
fn odd_files_come_back_byte_for_byte() {
    let folder = Folder::new("export-odd");
    let mut builder = GgufBuilder::default();
    (builder.version, builder.alignment) = (2, 256);
    builder.meta("general.alignment", Meta::U32(256)).meta("somebody.else", Meta::F64s(vec![f64::NAN, -0.0]));
    let factors = [1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0];
    builder.tensor("rope_freqs.weight", &[8], type_id("F32"), encode("F32", &factors));
    let model = TinyModel { tied: false, matrix_type: "Q5_1", ..TinyModel::default() };
    let mut builder = model.builder_on(builder);
    // Vectors as halves, one of which is a negative zero.
    let norm: Vec<f32> = (0..64).map(|i| if i == 3 { -0.0 } else { i as f32 / 32.0 }).collect();
    builder.tensor("output_norm.weight", &[64], type_id("F16"), encode("F16", &norm));
    builder.tensor("blk.1.attn_norm.weight", &[64], type_id("BF16"), encode("BF16", &norm));
    builder.tensor("blk.0.attn_norm.weight", &[64], type_id("F32"), encode("F32", &norm));
    builder.tensor("blk.0.attn_rot_embd", &[3], type_id("F32"), vec![0xff; 12]);
    let mut source = builder.build();
    // What lies between tensors need not be zero.
    let header = parse(&source);
    let rope = header.tensor("rope_freqs.weight").unwrap();
    source[(rope.offset + rope.size) as usize..][..224].fill(7);
    source.extend(b"and something behind");
    let (back, _) = round_trip(&folder, &source, true);
    assert!(back == source);
}

#[test]
fn a_header_that_is_written_anew_says_the_same() {
    let folder = Folder::new("export-anew");
    let [artifact, again] = ["a.lowbit", "again.lowbit"].map(|name| folder.0.join(name));
    let mut linear = TinyModel::default().builder();
    linear.meta("llama.rope.scaling.type", "linear").meta("llama.rope.scaling.factor", Meta::F32(2.5));
    linear.meta("general.sampling.temp", Meta::F32(0.6)).meta("general.sampling.top_k", Meta::U32(20));
    linear.remove_meta("tokenizer.chat_template").meta("tokenizer.ggml.pre", "llama-bpe");
    let mut factors = GgufBuilder::default();
    factors.tensor(
        "rope_freqs.weight",
        &[8],
        type_id("F32"),
        encode("F32", &[1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]),
    );
    let gemma = TinyModel { architecture: "gemma3", embedding_type: "F16", ..TinyModel::default() };
    let mut local = gemma.builder();
    local.meta("gemma3.rope.freq_base_swa", Meta::F32(5000.0));
    local.meta("gemma3.attention.sliding_window_pattern", Meta::U32(2));
    for (i, source) in [
        TinyModel::default().gguf(),
        linear.build(),
        TinyModel { tied: false, ..TinyModel::default() }.builder_on(factors).build(),
        gemma.gguf(),
        local.build(),
    ]
    .iter()
    .enumerate()
    {
        let (rebuilt, _) = round_trip(&folder, source, false);
        compare_tensors(source, &rebuilt);
        pack(&folder.0.join("b.gguf"), &again, &Options::default());
        let [a, b] =
            [&artifact, &again].map(|path| lowbit_core::container::Artifact::read(path, true).unwrap());
        assert_eq!(a.data().as_slice(), b.data().as_slice(), "model {i}");
        let [a, b] = [a, b].map(|artifact| artifact.header().manifest.clone());
        assert_eq!(a.config, b.config, "model {i}");
        assert_eq!(
            (a.chat_template, a.sampling, a.source.licence),
            (b.chat_template, b.sampling, b.source.licence)
        );
    }
}

#[test]
fn a_vocabulary_of_sentence_piece_comes_back() {
    let folder = Folder::new("export-spm");
    let golden = include_str!("../../../../../tests/golden/tokenizer/spm.json");
    let golden: serde_json::Value = serde_json::from_str(golden).unwrap();
    for prefix in [false, true] {
        let mut builder = crate::convert::tests::sentence_piece(&golden);
        builder.meta("tokenizer.ggml.add_space_prefix", Meta::Bool(prefix));
        let source = builder.build();
        let (rebuilt, _) = round_trip(&folder, &source, false);
        let [a, b] = [&source[..], &rebuilt].map(parse);
        for key in ["tokens", "token_type", "unknown_token_id", "add_space_prefix"] {
            let key = format!("tokenizer.ggml.{key}");
            assert_eq!(a.metadata[&key], b.metadata[&key], "{key}");
        }
    }
}

#[test]
fn a_folder_becomes_the_gguf_of_the_same_weights() {
    let folder = Folder::new("export-hf");
    let (source, artifact, out) = (folder.0.join("hf"), folder.0.join("a.lowbit"), folder.0.join("b.gguf"));
    for architecture in ["llama", "gemma3"] {
        let model =
            TinyModel { architecture, matrix_type: "F32", embedding_type: "F32", ..TinyModel::default() };
        model.write_hugging_face(&source, 1).unwrap();
        pack(&source, &artifact, &Options { weights: Weights::Keep, ..Options::default() });
        assert!(!export(&artifact, &out).unwrap().identical);
        compare_tensors(&model.gguf(), &std::fs::read(&out).unwrap());
        std::fs::remove_dir_all(&source).unwrap();
    }
}

#[test]
fn what_cannot_come_back_is_refused() {
    let folder = Folder::new("export-refused");
    let [source, artifact, out] = ["a.gguf", "a.lowbit", "b.gguf"].map(|name| folder.0.join(name));
    std::fs::write(&source, TinyModel::default().gguf()).unwrap();
    let refusal = || export(&artifact, &out).unwrap_err().to_string();

    pack(&source, &artifact, &Options { reversible: true, ..Options::default() });
    let sound = std::fs::read(&artifact).unwrap();
    let mut damaged = sound.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&artifact, &damaged).unwrap();
    assert!(refusal().contains("a.lowbit: chunk 0: SHA-256"), "{}", refusal());
    std::fs::write(&artifact, &sound[..sound.len() / 2]).unwrap();
    assert!(refusal().contains("a.lowbit"), "{}", refusal());

    let hf = folder.0.join("hf");
    TinyModel { matrix_type: "F16", embedding_type: "F16", ..TinyModel::default() }
        .write_hugging_face(&hf, 1)
        .unwrap();
    let reversible = Options { reversible: true, ..Options::default() };
    let error = to_file(&hf, &create(&artifact), &artifact, &reversible, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("without --reversible"), "{error}");
}

/// Damage to the kept header, hashed anew as an attacker would, gives an error or another file, never a panic.
#[test]
fn damaged_sources_do_no_harm() {
    let folder = Folder::new("export-mutated");
    let [source, artifact, out] = ["a.gguf", "a.lowbit", "b.gguf"].map(|name| folder.0.join(name));
    std::fs::write(&source, TinyModel { n_layers: 1, ..TinyModel::default() }.gguf()).unwrap();
    pack(&source, &artifact, &Options { reversible: true, ..Options::default() });
    let sound = std::fs::read(&artifact).unwrap();
    let header = lowbit_core::container::Header::read(&artifact).unwrap();
    let range = header.document(crate::convert::SOURCE).unwrap();
    let rest = header.data_start + range.start..header.data_start + range.end;
    let (mut rng, mut refused) = (Rng::new(5), 0);
    for _ in 0..200 {
        let mut bytes = sound.clone();
        let mut damaged = mutate(&mut rng, &bytes[rest.clone()], rest.len());
        damaged.resize(rest.len(), 0);
        bytes[rest.clone()].copy_from_slice(&damaged);
        let hash = lowbit_core::container::sha256_hex(&bytes[header.data_start..]);
        let at = sound.windows(64).position(|w| w == header.manifest.chunks[0].as_bytes()).unwrap();
        bytes[at..at + 64].copy_from_slice(hash.as_bytes());
        std::fs::write(&artifact, &bytes).unwrap();
        match export(&artifact, &out) {
            Err(Error::Core(_)) => refused += 1,
            Err(other) => panic!("{other}"),
            Ok(_) => assert!(damaged == sound[rest.clone()]),
        }
    }
    assert!(refused > 150, "{refused}");
}
