//! Llama: RMSNorm, rotary embedding, grouped-query attention, SwiGLU. Llama 1 to 3, SmolLM, Mistral without windows.

use super::{TensorKind, TensorSpec};
use crate::{Error, Result};
use lowbit_core::backend::RopeStyle;

/// The hyper-parameters of a Llama model.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LlamaConfig {
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
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RopeConfig {
    /// Base of the frequencies (theta).
    pub base: f64,
    /// Which coordinates are paired.
    pub style: RopeStyle,
    /// How the frequencies are changed for long contexts.
    #[serde(default)]
    pub scaling: RopeScaling,
}

/// A change of the rotary frequencies.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// None.
    #[default]
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3's smooth interpolation between kept high and divided low frequencies.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_context_length / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_context_length / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context of the first training.
        original_context_length: usize,
    },
    /// One divisor a frequency: GGUF's `rope_freqs.weight`.
    Factors {
        /// `[head_dim / 2]`
        factors: Vec<f32>,
    },
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

impl LlamaConfig {
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

    /// The tensors of the model, in execution order.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let (d, ffn) = (self.d_model, self.ffn_dim);
        let (q, kv) = (self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim);
        let mut tensors = vec![matrix("token_embd", "model.embed_tokens", self.vocab_size, d)];
        for i in 0..self.n_layers {
            let hf = format!("model.layers.{i}");
            let blk = format!("blk.{i}");
            let mut add = |ours: &str, theirs: &str, shape: (usize, usize)| {
                let (ours, theirs) = (format!("{blk}.{ours}"), format!("{hf}.{theirs}"));
                tensors.push(match shape {
                    (len, 0) => vector(&ours, &theirs, len),
                    (n, k) => matrix(&ours, &theirs, n, k),
                });
            };
            add("attn_norm", "input_layernorm", (d, 0));
            add("attn_q", "self_attn.q_proj", (q, d));
            add("attn_k", "self_attn.k_proj", (kv, d));
            add("attn_v", "self_attn.v_proj", (kv, d));
            add("attn_output", "self_attn.o_proj", (d, q));
            add("ffn_norm", "post_attention_layernorm", (d, 0));
            add("ffn_gate", "mlp.gate_proj", (ffn, d));
            add("ffn_up", "mlp.up_proj", (ffn, d));
            add("ffn_down", "mlp.down_proj", (d, ffn));
        }
        tensors.push(vector("output_norm", "model.norm", d));
        if !self.tied_embeddings {
            tensors.push(matrix("output", "lm_head", self.vocab_size, d));
        }
        tensors
    }
}

impl RopeConfig {
    fn validate(&self, head_dim: usize) -> Result<()> {
        check("rope.base", self.base.is_finite() && self.base > 0.0, || {
            format!("is {}, expected a positive number", self.base)
        })?;
        let positive = |field, x: f64| {
            check(field, x.is_finite() && x > 0.0, || format!("is {x}, expected a positive number"))
        };
        match &self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => positive("rope.scaling.factor", *factor),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_length } => {
                positive("rope.scaling.factor", *factor)?;
                positive("rope.scaling.low_freq_factor", *low_freq_factor)?;
                positive("rope.scaling.high_freq_factor", *high_freq_factor)?;
                check("rope.scaling.high_freq_factor", high_freq_factor > low_freq_factor, || {
                    format!("is {high_freq_factor}, not above low_freq_factor = {low_freq_factor}")
                })?;
                check("rope.scaling.original_context_length", *original_context_length > 0, || {
                    "is 0".to_owned()
                })
            }
            RopeScaling::Factors { factors } => {
                check("rope.scaling.factors", factors.len() == head_dim / 2, || {
                    format!("there are {}, expected head_dim / 2 = {}", factors.len(), head_dim / 2)
                })?;
                factors.iter().try_for_each(|&f| positive("rope.scaling.factors", f.into()))
            }
        }
    }
}

/// Reads and checks a configuration, and lists its tensors.
pub(super) fn tensors_of(config: &serde_json::Value) -> Result<Vec<TensorSpec>> {
    Ok(parse(config)?.tensors())
}

/// Reads and checks a configuration.
pub fn parse(config: &serde_json::Value) -> Result<LlamaConfig> {
    let config: LlamaConfig = serde::Deserialize::deserialize(config)
        .map_err(|e| Error::Config { field: "llama", problem: format!("{e}; pack the model again") })?;
    config.validate()?;
    Ok(config)
}

fn check(field: &'static str, holds: bool, problem: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Config { field, problem: problem() }) }
}

fn matrix(name: &str, hf_name: &str, n: usize, k: usize) -> TensorSpec {
    spec(name, hf_name, TensorKind::Matrix { n, k })
}

fn vector(name: &str, hf_name: &str, len: usize) -> TensorSpec {
    spec(name, hf_name, TensorKind::Vector { len })
}

fn spec(name: &str, hf_name: &str, kind: TensorKind) -> TensorSpec {
    TensorSpec { name: format!("{name}.weight"), hf_name: format!("{hf_name}.weight"), kind }
}
