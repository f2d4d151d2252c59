//! A tiny model with seeded random weights.
#![allow(dead_code, reason = "every test file uses a part of this")]
#![allow(clippy::unwrap_used)]

use lowbit_core::backend::RopeStyle;
use lowbit_core::pack::{Origin, matrix_from_f32};
use lowbit_core::{Format, PackedMatrix};
use lowbit_engine::arch::{LlamaConfig, RopeConfig, RopeScaling, SpecialTokens, TensorKind, Weights};
use std::collections::HashMap;

/// A model small enough for any test, with every feature: grouped queries, and sizes that are no multiples of a tile.
pub fn tiny_config() -> LlamaConfig {
    LlamaConfig {
        n_layers: 3,
        d_model: 64,
        n_heads: 6,
        n_kv_heads: 2,
        head_dim: 16,
        ffn_dim: 96,
        vocab_size: 270,
        context_length: 256,
        rms_eps: 1e-5,
        rope: RopeConfig { base: 10_000.0, style: RopeStyle::Interleaved, scaling: RopeScaling::None },
        tied_embeddings: true,
        tokens: SpecialTokens { bos: None, eos: vec![256], add_bos: false },
    }
}

/// Seeded random weights for a configuration, matrices in `format`.
pub struct RandomWeights {
    matrices: HashMap<String, PackedMatrix>,
    vectors: HashMap<String, Vec<f32>>,
}

impl RandomWeights {
    pub fn new(config: &LlamaConfig, format: Format, seed: u64) -> Self {
        let mut random = Random(seed);
        let mut weights = Self { matrices: HashMap::new(), vectors: HashMap::new() };
        for tensor in config.tensors() {
            match tensor.kind {
                TensorKind::Matrix { n, k } => {
                    let scale = 2.0 / (k as f32).sqrt();
                    let values: Vec<f32> = (0..n * k).map(|_| random.uniform() * scale).collect();
                    let origin = Origin { file: "random", tensor: &tensor.name };
                    let matrix = matrix_from_f32(format, k, &values, origin).unwrap();
                    weights.matrices.insert(tensor.name, matrix);
                }
                TensorKind::Vector { len } => {
                    let values = (0..len).map(|_| 1.0 + 0.2 * random.uniform()).collect();
                    weights.vectors.insert(tensor.name, values);
                }
            }
        }
        weights
    }

    pub fn remove(&mut self, name: &str) {
        self.matrices.remove(name);
        self.vectors.remove(name);
    }
}

impl Weights for RandomWeights {
    fn matrix(&self, name: &str) -> lowbit_core::Result<PackedMatrix> {
        self.matrices.get(name).cloned().ok_or_else(|| missing(name))
    }

    fn vector(&self, name: &str) -> lowbit_core::Result<Vec<f32>> {
        self.vectors.get(name).cloned().ok_or_else(|| missing(name))
    }
}

fn missing(name: &str) -> lowbit_core::Error {
    lowbit_core::Error::MissingTensor { file: "random".to_owned(), tensor: name.to_owned() }
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From -1 to 1.
    pub fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
