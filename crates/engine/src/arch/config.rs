//! The hyper-parameters of a model.

use super::{Gemma3Config, RopeConfig, arch, check};
use crate::{Error, Result};
use lowbit_core::backend::AttentionShape;
use lowbit_core::container::Manifest;

/// The hyper-parameters of a model: those that all have, and those of its architecture.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ModelConfig {
    /// Transformer layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Coordinates of a head; even.
    pub head_dim: usize,
    /// Width of the feed-forward network.
    pub ffn_dim: usize,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Positions the model was trained for.
    pub context_length: usize,
    /// Added to the mean square in RMSNorm.
    pub rms_eps: f32,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// Whether the output matrix is the embedding table.
    pub tied_embeddings: bool,
    /// Special tokens.
    pub tokens: SpecialTokens,
    /// What Gemma 3 has beside; `None` for Llama.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gemma3: Option<Gemma3Config>,
}

/// Tokens with a meaning of their own.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SpecialTokens {
    /// Begin of text.
    pub bos: Option<u32>,
    /// Tokens that end an answer.
    pub eos: Vec<u32>,
    /// Whether raw text is tokenised with `bos` before it.
    pub add_bos: bool,
}

/// Sizes beyond this are mistakes or attacks; products of two still fit 64 bits.
const MAX_DIM: usize = 1 << 24;

impl ModelConfig {
    /// Reads and checks the configuration in the manifest of an artifact.
    ///
    /// # Errors
    /// When the architecture is not known, or a value is missing or makes no sense; the message names it.
    pub fn of(manifest: &Manifest) -> Result<Self> {
        let name = arch(&manifest.architecture)?.name;
        let problem = |problem: String| format!("{problem}; pack the model again");
        let config: Self = serde::Deserialize::deserialize(&manifest.config)
            .map_err(|e| Error::Config { field: name, problem: problem(e.to_string()) })?;
        check("architecture", config.architecture() == name, || {
            problem(format!("is {name}, but the configuration is that of {}", config.architecture()))
        })?;
        config.validate()?;
        Ok(config)
    }

    /// The name of the architecture.
    pub fn architecture(&self) -> &'static str {
        if self.gemma3.is_some() { "gemma3" } else { "llama" }
    }

    /// Checks every value on its own and against the others.
    pub fn validate(&self) -> Result<()> {
        for (field, value, max) in [
            ("n_layers", self.n_layers, 1024),
            ("d_model", self.d_model, MAX_DIM),
            ("n_heads", self.n_heads, 4096),
            ("n_kv_heads", self.n_kv_heads, 4096),
            ("head_dim", self.head_dim, 1024),
            ("ffn_dim", self.ffn_dim, MAX_DIM),
            ("vocab_size", self.vocab_size, MAX_DIM),
            ("context_length", self.context_length, MAX_DIM),
        ] {
            check(field, (1..=max).contains(&value), || format!("is {value}, expected 1 to {max}"))?;
        }
        check("n_kv_heads", self.n_heads.is_multiple_of(self.n_kv_heads), || {
            format!("{} does not divide n_heads = {}", self.n_kv_heads, self.n_heads)
        })?;
        check("head_dim", self.head_dim.is_multiple_of(2), || {
            format!("is {}, expected an even number", self.head_dim)
        })?;
        check("rms_eps", self.rms_eps.is_finite() && self.rms_eps >= 0.0, || {
            format!("is {}, expected a finite number from 0", self.rms_eps)
        })?;
        self.rope.validate(self.head_dim)?;
        self.gemma3.iter().try_for_each(|gemma3| gemma3.validate(self.head_dim))?;
        let specials = self.tokens.eos.iter().chain(&self.tokens.bos);
        for &id in specials {
            check("tokens", (id as usize) < self.vocab_size, || {
                format!("{id} lies outside the vocabulary of {}", self.vocab_size)
            })?;
        }
        check("tokens.add_bos", !self.tokens.add_bos || self.tokens.bos.is_some(), || {
            "is set but there is no bos token".to_owned()
        })
    }

    /// The shape of every layer's attention, in order.
    pub fn attention(&self) -> impl Iterator<Item = AttentionShape> {
        let Self { n_heads, n_kv_heads, head_dim, .. } = *self;
        (0..self.n_layers).map(move |i| {
            let window = self.gemma3.as_ref().and_then(|gemma3| gemma3.window_of(i));
            AttentionShape { n_heads, n_kv_heads, head_dim, window }
        })
    }

    /// What rows of the embedding table are multiplied by.
    pub fn embedding_scale(&self) -> f32 {
        self.gemma3.as_ref().map_or(1.0, |gemma3| gemma3.embedding_scale)
    }
}
