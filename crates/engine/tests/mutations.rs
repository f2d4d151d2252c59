//! Damaged headers lead to errors or to models, never to panics or to memory that the file does not bear out.
//!
//! One test in a binary of its own: it measures the memory of the whole process.

#![allow(clippy::unwrap_used)]

use lowbit_core::buffer::AlignedBytes;
use lowbit_core::container::{Artifact, parse_header};
use lowbit_core::import::{Parsed, safetensors};
use lowbit_engine::Result;
use lowbit_engine::arch;
use lowbit_engine::convert::{HuggingFace, InMemory, Options, Plan, Shard, gguf, hugging_face};
use lowbit_testing::{GgufBuilder, Meta, Rng, TinyModel, Vocabulary, mutate};
use peak_alloc::PeakAlloc;
use std::sync::Arc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const MUTATIONS: u64 = 4000;

/// A parsed header is larger than the bytes it was made from (a token of 8 bytes is a string of 32), a packed model may
/// be held together with its source; nothing needs more than this.
const BYTES_PER_BYTE: usize = 48;
const BYTES_AT_LEAST: usize = 1 << 20;

fn tiny() -> TinyModel {
    TinyModel { n_layers: 1, d_model: 32, n_heads: 2, n_kv_heads: 1, ffn_dim: 32, ..TinyModel::default() }
}

/// A Gemma 3 with a matrix of every K type and every type of codebooks, and a vocabulary of SentencePiece.
fn gemma() -> GgufBuilder {
    let model = TinyModel {
        architecture: "gemma3",
        n_layers: 2,
        d_model: 256,
        n_heads: 8,
        matrix_type: "Q4_0",
        embedding_type: "Q4_0",
        ..tiny()
    };
    let mut gguf = model.builder();
    for (name, rows, ty, bytes_of_row) in [
        ("0.attn_q", 256, 10, 84),
        ("0.attn_k", 32, 11, 110),
        ("0.attn_v", 32, 12, 144),
        ("0.ffn_gate", 32, 13, 176),
        ("0.ffn_up", 32, 14, 210),
        ("1.attn_output", 256, 20, 8 * 18),
        ("1.attn_q", 256, 23, 136),
        ("1.attn_k", 32, 34, 54),
        ("1.attn_v", 32, 35, 66),
        ("1.ffn_gate", 32, 39, 8 * 17),
        ("1.ffn_up", 32, 40, 4 * 36),
        ("0.attn_output", 256, 41, 2 * 18),
    ] {
        gguf.tensor(&format!("blk.{name}.weight"), &[256, rows], ty, vec![0; rows as usize * bytes_of_row]);
    }
    let count = Vocabulary::default().tokens.len();
    let types = (0..count).map(|id| if id < 3 { [2, 3, 3][id] } else { 1 }).collect();
    gguf.meta("tokenizer.ggml.model", "llama")
        .meta("tokenizer.ggml.scores", Meta::F32s((0..count).map(|id| -(id as f32)).collect()))
        .meta("tokenizer.ggml.token_type", Meta::I32s(types))
        .meta("tokenizer.ggml.unknown_token_id", Meta::U32(0))
        .meta("gemma3.rope.freq_base_swa", Meta::F32(1e4))
        .meta("gemma3.attention.key_length", Meta::U32(32))
        .meta("gemma3.attention.sliding_window_pattern", Meta::U32(6))
        .meta("gemma3.final_logit_softcapping", Meta::F32(0.0))
        .remove_meta("tokenizer.ggml.merges");
    gguf
}

/// The header of the artifact of a GGUF file, and its data.
fn packed(model: &[u8]) -> (Vec<u8>, Artifact) {
    let plan = gguf("m.gguf", model, None, &Options::default()).unwrap().complete("m.gguf").unwrap();
    let mut conversion = InMemory::new(plan).unwrap();
    while let Some((_, range)) = conversion.next_range() {
        conversion.push(&model[range.start as usize..range.end as usize]).unwrap();
    }
    conversion.finish(None).unwrap()
}

/// Runs a plan on one file and loads what comes out.
fn convert(plan: Plan, files: &[Vec<u8>]) -> Result<()> {
    let mut conversion = InMemory::new(plan)?;
    while let Some((file, range)) = conversion.next_range() {
        let bytes = files[file].get(range.start as usize..range.end as usize).unwrap_or_default();
        conversion.push(bytes)?;
    }
    load(&conversion.finish(None)?.1)
}

/// Reads everything in an artifact.
fn load(artifact: &Artifact) -> Result<()> {
    let manifest = &artifact.header().manifest;
    let config = arch::ModelConfig::of(manifest)?;
    for spec in config.tensors() {
        match spec.kind {
            arch::TensorKind::Matrix { .. } => drop(artifact.matrix(&spec.name)?),
            arch::TensorKind::Vector { .. } => drop(artifact.vector(&spec.name)?),
        }
    }
    if let Some(name) = &manifest.tokenizer {
        lowbit_engine::tokenizer::Tokenizer::from_json(artifact.document(name)?)?;
    }
    artifact.verify()?;
    Ok(())
}

fn load_gguf(bytes: Vec<u8>) -> Result<()> {
    let len = bytes.len() as u64;
    // A page that does not know the length must not be led astray either.
    let unknown = gguf("m.gguf", &bytes, None, &Options::default());
    if let Ok(Parsed::NeedMore { at_least }) = unknown {
        assert!(at_least > len && at_least <= 256 << 20, "{at_least}");
    }
    let plan = gguf("m.gguf", &bytes, Some(len), &Options::default())?.complete("m.gguf")?;
    convert(plan, &[bytes])
}

fn load_artifact(bytes: Vec<u8>) -> Result<()> {
    let header = parse_header("m.lowbit", &bytes, Some(bytes.len() as u64))?.complete("m.lowbit")?;
    let data = AlignedBytes::copy_of(&bytes[header.data_start..]);
    load(&Artifact::new(header, Arc::new(data))?)
}

fn load_folder(parts: &HuggingFace, bytes: Vec<u8>) -> Result<()> {
    let name = "model.safetensors".to_owned();
    let header = safetensors::parse(&name, &bytes, Some(bytes.len() as u64))?.complete(&name)?;
    let parts = HuggingFace { shards: vec![Shard { name, header }], ..parts.clone() };
    convert(hugging_face(&parts, &Options::default())?, &[bytes])
}

/// Damages the first `header_len` bytes of a file again and again. Returns how many files were refused.
fn bombard(name: &str, bytes: &[u8], header_len: usize, load: impl Fn(Vec<u8>) -> Result<()>) -> u64 {
    load(bytes.to_vec()).expect("the file is sound before it is changed");
    let mut refused = 0;
    for seed in 0..MUTATIONS {
        let damaged = mutate(&mut Rng::new(seed), bytes, header_len);
        let len = damaged.len();
        let before = MEMORY.current_usage();
        MEMORY.reset_peak_usage();
        if let Err(error) = load(damaged) {
            refused += 1;
            assert!(
                error.to_string().len() < 4096,
                "{name}, seed {seed}: a message of {} bytes",
                error.to_string().len()
            );
        }
        let used = MEMORY.peak_usage().saturating_sub(before);
        assert!(
            used < BYTES_AT_LEAST + BYTES_PER_BYTE * len,
            "{name}, seed {seed}: {used} bytes for a file of {len}"
        );
    }
    refused
}

#[test]
fn damaged_headers_are_refused_without_harm() {
    for (name, builder) in [("llama", tiny().builder()), ("gemma3", gemma())] {
        let model = builder.build();
        let refused = bombard(&format!("gguf of {name}"), &model, builder.header().len(), load_gguf);
        assert!(refused > MUTATIONS / 2, "{refused}");

        let (header, artifact) = packed(&model);
        let file = [&header, artifact.data().as_slice()].concat();
        let refused = bombard(&format!("artifact of {name}"), &file, header.len(), load_artifact);
        assert!(refused > MUTATIONS / 2, "{refused}");
    }

    let folder = std::env::temp_dir().join(format!("lowbit-mutations-{}", std::process::id()));
    let floats = TinyModel { matrix_type: "F16", embedding_type: "F16", ..tiny() };
    floats.write_hugging_face(&folder, 1).unwrap();
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let parts = HuggingFace {
        folder: "m".into(),
        config: Some(read("config.json")),
        tokenizer: Some(read("tokenizer.json")),
        ..HuggingFace::default()
    };
    let weights = read("model.safetensors");
    let config = parts.config.clone().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let header = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize + 8;
    let refused = bombard("safetensors", &weights, header, |bytes| load_folder(&parts, bytes));
    assert!(refused > MUTATIONS / 2, "{refused}");

    let refused = bombard("config.json", &config, config.len(), |config| {
        load_folder(&HuggingFace { config: Some(config), ..parts.clone() }, weights.clone())
    });
    assert!(refused > MUTATIONS / 2, "{refused}");
}
