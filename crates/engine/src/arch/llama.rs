//! Llama: RMSNorm, rotary embedding, grouped-query attention, SwiGLU (Touvron et al. 2023, Grattafiori et al. 2024).
//! Llama 1 to 3, SmolLM, and what shares their shape.

use super::Weights;
use super::tensors::{Dim, LayerTensor, Size};
use super::transformer::{Block, Loader, Step};
use crate::Result;
use lowbit_core::backend::{Backend, Gate, Heads};

/// The tensors of a layer, in execution order.
pub(super) const LAYER: &[LayerTensor] = &[
    LayerTensor("attn_norm", "input_layernorm", Size::Vector(Dim::Model)),
    LayerTensor("attn_q", "self_attn.q_proj", Size::Matrix(Dim::Queries, Dim::Model)),
    LayerTensor("attn_k", "self_attn.k_proj", Size::Matrix(Dim::Keys, Dim::Model)),
    LayerTensor("attn_v", "self_attn.v_proj", Size::Matrix(Dim::Keys, Dim::Model)),
    LayerTensor("attn_output", "self_attn.o_proj", Size::Matrix(Dim::Model, Dim::Queries)),
    LayerTensor("ffn_norm", "post_attention_layernorm", Size::Vector(Dim::Model)),
    LayerTensor("ffn_gate", "mlp.gate_proj", Size::Matrix(Dim::Ffn, Dim::Model)),
    LayerTensor("ffn_up", "mlp.up_proj", Size::Matrix(Dim::Ffn, Dim::Model)),
    LayerTensor("ffn_down", "mlp.down_proj", Size::Matrix(Dim::Model, Dim::Ffn)),
];

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
