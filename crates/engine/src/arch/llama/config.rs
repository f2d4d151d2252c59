//! The hyper-parameters of a Llama model and the tensors that follow from them.

use crate::arch::rope::RopeConfig;
use crate::arch::{TensorKind, TensorSpec, check};
use crate::{Error, Result};

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
            let ours = |name: &str| format!("blk.{i}.{name}");
            let theirs = |name: &str| format!("model.layers.{i}.{name}");
            tensors.extend([
                vector(&ours("attn_norm"), &theirs("input_layernorm"), d),
                matrix(&ours("attn_q"), &theirs("self_attn.q_proj"), q, d),
                matrix(&ours("attn_k"), &theirs("self_attn.k_proj"), kv, d),
                matrix(&ours("attn_v"), &theirs("self_attn.v_proj"), kv, d),
                matrix(&ours("attn_output"), &theirs("self_attn.o_proj"), d, q),
                vector(&ours("ffn_norm"), &theirs("post_attention_layernorm"), d),
                matrix(&ours("ffn_gate"), &theirs("mlp.gate_proj"), ffn, d),
                matrix(&ours("ffn_up"), &theirs("mlp.up_proj"), ffn, d),
                matrix(&ours("ffn_down"), &theirs("mlp.down_proj"), d, ffn),
            ]);
        }
        tensors.push(vector("output_norm", "model.norm", d));
        if !self.tied_embeddings {
            tensors.push(matrix("output", "lm_head", self.vocab_size, d));
        }
        tensors
    }
}

/// Reads and checks a configuration, and lists its tensors.
pub fn tensors_of(config: &serde_json::Value) -> Result<Vec<TensorSpec>> {
    Ok(parse(config)?.tensors())
}

/// Reads and checks a configuration.
pub fn parse(config: &serde_json::Value) -> Result<LlamaConfig> {
    let config: LlamaConfig = serde::Deserialize::deserialize(config)
        .map_err(|e| Error::Config { field: "llama", problem: format!("{e}; pack the model again") })?;
    config.validate()?;
    Ok(config)
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
