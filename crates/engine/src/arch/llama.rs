//! Llama: RMSNorm, rotary embedding, grouped-query attention, SwiGLU (Touvron et al. 2023, Grattafiori et al. 2024).
//! Llama 1 to 3, SmolLM, and what shares their shape.

use super::config::{ModelConfig, matrix, vector};
use super::transformer::{Block, Loader, Step};
use super::{TensorSpec, Weights};
use crate::Result;
use lowbit_core::backend::{Backend, Gate, Heads};

/// The tensors of a model, in execution order.
pub(super) fn tensors(config: &ModelConfig) -> Vec<TensorSpec> {
    let ModelConfig { d_model: d, ffn_dim: ffn, .. } = *config;
    let (q, kv) = (config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim);
    let mut tensors = vec![matrix("token_embd", "model.embed_tokens", config.vocab_size, d)];
    for i in 0..config.n_layers {
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
    if !config.tied_embeddings {
        tensors.push(matrix("output", "lm_head", config.vocab_size, d));
    }
    tensors
}

/// A layer on a device.
pub(super) struct Layer<B: Backend>(Block<B>);

impl<B: Backend> Layer<B> {
    pub(super) fn load<W: Weights<B>>(load: &Loader<'_, B, W>, i: usize) -> Result<Self> {
        load.block(i).map(Self)
    }

    /// Adds what the layer makes of the residual stream to it.
    pub(super) fn run(&self, step: Step<'_, B>, kv: &mut B::Kv) -> Result<()> {
        let Self(Block { attn_norm, q, k, v, attn_output, ffn_norm, gate, up, down }) = self;
        let Step { backend, pos, eps, rope, x, queries, attention, hidden, .. } = step;
        let norm = |weight| super::norm(weight, eps);

        let heads = Heads { norms: None, rope };
        backend.attention_input(x, norm(attn_norm), [q, k, v], heads, pos, kv, queries)?;
        backend.attention(queries, kv, pos, attention)?;
        backend.linear_add(attention, attn_output, x)?;

        backend.gated(x, norm(ffn_norm), Gate::Silu, [gate, up], hidden)?;
        backend.linear_add(hidden, down, x)?;
        Ok(())
    }
}
