//! The forward pass on the reference backend: what it sees, what it refuses, and that calls may be cut anywhere.

#![allow(clippy::unwrap_used)]

mod support;

use lowbit_core::Format;
use lowbit_core::backend::{Backend, at_once};
use lowbit_engine::arch::{ModelConfig, Transformer};
use lowbit_engine::kv_cache::KvCache;
use lowbit_engine::oracle::Oracle;
use support::{RandomWeights, tiny_config};

const CONTEXT: usize = 32;

fn load(config: &ModelConfig) -> (Transformer<Oracle>, KvCache<Oracle>) {
    let weights = RandomWeights::new(config, Format::F32, 1);
    let llama = Transformer::load(config.clone(), &weights, &Oracle::default(), CONTEXT).unwrap();
    let cache = KvCache::new(&Oracle::default(), config.attention(), CONTEXT).unwrap();
    (llama, cache)
}

/// The logits that were asked for.
fn taken(oracle: &mut Oracle) -> Vec<f32> {
    let mut logits = vec![1.0; 3];
    at_once(oracle.take(&mut logits)).unwrap();
    logits
}

/// The logits of all `ids`, run in chunks of `chunk`.
fn logits(config: &ModelConfig, ids: &[u32], chunk: usize) -> Vec<f32> {
    let (mut llama, mut cache) = load(config);
    let (mut oracle, mut all) = (Oracle::default(), Vec::new());
    for (i, ids) in ids.chunks(chunk).enumerate() {
        llama.forward(&mut oracle, &mut cache, ids, i * chunk, 0..ids.len(), None).unwrap();
        all.extend(taken(&mut oracle));
    }
    all
}

#[test]
fn the_result_does_not_depend_on_chunks() {
    let config = tiny_config();
    let ids: Vec<u32> = (0..23).map(|i| i * 11 % 270).collect();
    let whole = logits(&config, &ids, 23);
    assert_eq!(whole.len(), 23 * 270);
    assert!(whole.iter().all(|x| x.is_finite()));
    for chunk in [1, 7] {
        assert_eq!(whole, logits(&config, &ids, chunk), "chunks of {chunk}");
    }
}

#[test]
fn later_tokens_do_not_change_earlier_logits_but_earlier_ones_do() {
    let config = tiny_config();
    let a = logits(&config, &[5, 6, 7, 8], 4);
    let b = logits(&config, &[5, 6, 9, 8], 4);
    assert_eq!(a[..2 * 270], b[..2 * 270]);
    assert_ne!(a[3 * 270..], b[3 * 270..]);
}

#[test]
fn positions_matter() {
    let config = tiny_config();
    let a = logits(&config, &[5, 6, 7], 3);
    let b = logits(&config, &[6, 5, 7], 3);
    assert_ne!(a[2 * 270..], b[2 * 270..]);
}

#[test]
fn only_the_wanted_logits_are_computed() {
    let config = tiny_config();
    let (mut llama, mut cache) = load(&config);
    let mut oracle = Oracle::default();
    llama.forward(&mut oracle, &mut cache, &[1, 2, 3], 0, 0..0, None).unwrap();
    assert!(taken(&mut oracle).is_empty());
    llama.forward(&mut oracle, &mut cache, &[1, 2, 3], 0, 1..3, None).unwrap();
    assert_eq!(taken(&mut oracle), logits(&config, &[1, 2, 3], 3)[270..]);
}

#[test]
fn the_observer_sees_every_layer() {
    let config = tiny_config();
    let (mut llama, mut cache) = load(&config);
    let mut seen = Vec::new();
    let mut observe = |layer: usize, x: Vec<f32>| seen.push((layer, x.len()));
    let mut oracle = Oracle::default();
    llama.forward(&mut oracle, &mut cache, &[1, 2], 0, 0..0, Some(&mut observe)).unwrap();
    assert_eq!(seen, [(0, 128), (1, 128), (2, 128)]);
}

#[test]
fn an_untied_output_matrix_is_used() {
    let tied = tiny_config();
    let untied = ModelConfig { tied_embeddings: false, ..tied.clone() };
    assert_ne!(logits(&tied, &[3], 1), logits(&untied, &[3], 1));
}

#[test]
fn what_does_not_fit_is_refused() {
    let config = tiny_config();
    let (mut llama, mut cache) = load(&config);
    let mut oracle = Oracle::default();
    let mut run = |ids: &[u32], pos| {
        let error = llama.forward(&mut oracle, &mut cache, ids, pos, 0..0, None).unwrap_err();
        (error.code(), error.to_string())
    };
    let (code, message) = run(&[1, 2], CONTEXT - 1);
    assert_eq!(code, "context-full");
    assert!(message.contains("33") && message.contains("32"), "{message}");
    let (code, message) = run(&[270], 0);
    assert_eq!(code, "unknown-token");
    assert!(message.contains("270"), "{message}");
    assert_eq!(run(&[1], usize::MAX).0, "context-full");
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    let config = tiny_config();
    let mut weights = RandomWeights::new(&config, Format::F32, 1);
    weights.remove("blk.1.ffn_up.weight");
    let error = Transformer::load(config.clone(), &weights, &Oracle::default(), CONTEXT).err().unwrap();
    assert_eq!(error.code(), "missing-tensor");
    assert!(error.to_string().contains("blk.1.ffn_up.weight"), "{error}");

    let narrow = ModelConfig { ffn_dim: 64, ..config.clone() };
    let weights = RandomWeights::new(&narrow, Format::F32, 1);
    let error = Transformer::load(config, &weights, &Oracle::default(), CONTEXT).err().unwrap();
    assert_eq!(error.code(), "bad-shape");
    assert!(error.to_string().contains("blk.0.ffn_gate.weight"), "{error}");
}

#[test]
fn bad_configurations_name_the_field() {
    let change = |change: fn(&mut ModelConfig)| {
        let mut config = tiny_config();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    };
    for (message, field) in [
        (change(|c| c.n_layers = 0), "n_layers"),
        (change(|c| c.vocab_size = usize::MAX), "vocab_size"),
        (change(|c| c.n_kv_heads = 4), "n_kv_heads"),
        (change(|c| c.head_dim = 15), "head_dim"),
        (change(|c| c.rms_eps = f32::NAN), "rms_eps"),
        (change(|c| c.rope.base = 0.0), "rope.base"),
        (change(|c| c.tokens.eos = vec![270]), "tokens"),
        (change(|c| c.tokens.add_bos = true), "add_bos"),
    ] {
        assert!(message.contains(field), "{message}");
    }
}
