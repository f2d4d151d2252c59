//! The shapes of models.

use lowbit_core::backend::RopeStyle;
use lowbit_core::format::Format;
use lowbit_engine::arch::{ModelConfig, RopeConfig, RopeScaling, SpecialTokens};

/// The format of all matrices.
pub const FORMAT: Format = Format::Q4;

/// A Llama model.
pub struct Shape {
    pub name: &'static str,
    /// For software that acts as a GPU.
    pub is_small: bool,
    pub n_layers: usize,
    pub d_model: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub ffn_dim: usize,
    pub vocab_size: usize,
    pub tied_embeddings: bool,
    /// Tokens of the prompt, and positions after which decoding is measured.
    pub prompt: usize,
    pub after: [usize; 2],
}

/// Llama 3.2 1B and Llama 3.1 8B, and one that software runs in seconds.
pub const SHAPES: [Shape; 3] = [
    Shape {
        name: "small",
        is_small: true,
        n_layers: 2,
        d_model: 256,
        n_heads: 4,
        n_kv_heads: 2,
        ffn_dim: 512,
        vocab_size: 1024,
        tied_embeddings: true,
        prompt: 64,
        after: [16, 64],
    },
    Shape {
        name: "llama-1b",
        is_small: false,
        n_layers: 16,
        d_model: 2048,
        n_heads: 32,
        n_kv_heads: 8,
        ffn_dim: 8192,
        vocab_size: 128256,
        tied_embeddings: true,
        prompt: 512,
        after: [128, 512],
    },
    Shape {
        name: "llama-8b",
        is_small: false,
        n_layers: 32,
        d_model: 4096,
        n_heads: 32,
        n_kv_heads: 8,
        ffn_dim: 14336,
        vocab_size: 128256,
        tied_embeddings: false,
        prompt: 512,
        after: [128, 512],
    },
];

impl Shape {
    /// As the engine takes it.
    pub fn config(&self) -> ModelConfig {
        ModelConfig {
            n_layers: self.n_layers,
            d_model: self.d_model,
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.d_model / self.n_heads,
            ffn_dim: self.ffn_dim,
            vocab_size: self.vocab_size,
            context_length: 8192,
            rms_eps: 1e-5,
            rope: RopeConfig { base: 5e5, style: RopeStyle::Half, scaling: RopeScaling::None },
            tied_embeddings: self.tied_embeddings,
            tokens: SpecialTokens::default(),
            gemma3: None,
        }
    }
}
