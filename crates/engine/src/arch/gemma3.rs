//! Gemma 3 (Gemma Team 2025), text: norms before and after attention and feed-forward network, normalised heads, GELU, and
//! attention of which only every sixth layer sees the whole context.
//!
//! Embeddings are multiplied by `sqrt(d_model)` in f32, as in llama.cpp; transformers rounds this factor to the type of the
//! checkpoint (in bf16, 25.25 instead of 25.298 for a width of 640). The weights of norms are 1 + those of the checkpoint,
//! which is how GGUF files have them.

use super::tensors::{Dim, LayerTensor, Size};
use super::transformer::{Block, Loader, Step, name_of};
use super::{RopeConfig, Weights, check, positive};
use crate::Result;
use lowbit_core::backend::{Backend, Gate, Heads};

/// What a Gemma 3 model has beside what every model has. The rotary embedding there is that of the global layers.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Gemma3Config {
    /// What rows of the embedding table are multiplied by: `sqrt(d_model)`.
    pub embedding_scale: f32,
    /// How many positions a query of a local layer sees, the last of which is its own.
    pub window: usize,
    /// Every so many layers the last one is global: it sees the whole context.
    pub global_every: usize,
    /// Rotary embedding of the local layers.
    pub local_rope: RopeConfig,
    /// Scores of attention are divided by the root of this.
    pub query_scalar: f32,
}

impl Gemma3Config {
    /// Checks every value.
    pub(super) fn validate(&self, head_dim: usize) -> Result<()> {
        positive("gemma3.embedding_scale", self.embedding_scale.into())?;
        check("gemma3.window", self.window > 0, || "is 0, expected at least 1".to_owned())?;
        check("gemma3.global_every", self.global_every > 0, || "is 0, expected at least 1".to_owned())?;
        positive("gemma3.query_scalar", self.query_scalar.into())?;
        positive("gemma3.local_rope.base", self.local_rope.base)?;
        self.local_rope.validate(head_dim)
    }

    /// How many positions a query of layer `i` sees; `None`: all.
    pub(super) fn window_of(&self, i: usize) -> Option<usize> {
        let is_global = (i + 1).is_multiple_of(self.global_every);
        (!is_global).then_some(self.window)
    }
}

/// The tensors of a layer, in execution order.
pub(super) const LAYER: &[LayerTensor] = &[
    LayerTensor("attn_norm", "input_layernorm", Size::Vector(Dim::Model)),
    LayerTensor("attn_q", "self_attn.q_proj", Size::Matrix(Dim::Queries, Dim::Model)),
    LayerTensor("attn_k", "self_attn.k_proj", Size::Matrix(Dim::Keys, Dim::Model)),
    LayerTensor("attn_v", "self_attn.v_proj", Size::Matrix(Dim::Keys, Dim::Model)),
    LayerTensor("attn_q_norm", "self_attn.q_norm", Size::Vector(Dim::Head)),
    LayerTensor("attn_k_norm", "self_attn.k_norm", Size::Vector(Dim::Head)),
    LayerTensor("attn_output", "self_attn.o_proj", Size::Matrix(Dim::Model, Dim::Queries)),
    LayerTensor("post_attention_norm", "post_attention_layernorm", Size::Vector(Dim::Model)),
    LayerTensor("ffn_norm", "pre_feedforward_layernorm", Size::Vector(Dim::Model)),
    LayerTensor("ffn_gate", "mlp.gate_proj", Size::Matrix(Dim::Ffn, Dim::Model)),
    LayerTensor("ffn_up", "mlp.up_proj", Size::Matrix(Dim::Ffn, Dim::Model)),
    LayerTensor("ffn_down", "mlp.down_proj", Size::Matrix(Dim::Model, Dim::Ffn)),
    LayerTensor("post_ffw_norm", "post_feedforward_layernorm", Size::Vector(Dim::Model)),
];
/// What the checkpoint's weights of norms are less than what is multiplied by.
pub(super) const NORM_OFFSET: f32 = 1.0;

/// A layer on a device.
pub(super) struct Layer<B: Backend> {
    block: Block<B>,
    q_norm: B::Vector,
    k_norm: B::Vector,
    post_attention_norm: B::Vector,
    post_ffw_norm: B::Vector,
    is_local: bool,
}

impl<B: Backend> Layer<B> {
    pub(super) fn load<W: Weights<B>>(
        load: &Loader<'_, B, W>,
        gemma3: &Gemma3Config,
        head_dim: usize,
        i: usize,
    ) -> Result<Self> {
        let vector = |name| load.vector(&name_of(i, name));
        // Devices divide scores by `sqrt(head_dim)`; what is left of the division is left to the norm.
        let scale = (head_dim as f32 / gemma3.query_scalar).sqrt();
        Ok(Self {
            block: load.block(i)?,
            q_norm: load.scaled_vector(&name_of(i, "attn_q_norm"), scale)?,
            k_norm: vector("attn_k_norm")?,
            post_attention_norm: vector("post_attention_norm")?,
            post_ffw_norm: vector("post_ffw_norm")?,
            is_local: gemma3.window_of(i).is_some(),
        })
    }

    /// Adds what the layer makes of the residual stream to it.
    pub(super) fn run(&self, step: Step<'_, B>, kv: &mut B::Kv) -> Result<()> {
        let Block { attn_norm, q, k, v, attn_output, ffn_norm, gate, up, down } = &self.block;
        let Step { backend, pos, eps, rope, local_rope, x, queries, attention, hidden } = step;
        let norm = |weight| super::norm(weight, eps);

        let rope = if self.is_local { local_rope } else { rope };
        let heads = Heads { norms: Some([norm(&self.q_norm), norm(&self.k_norm)]), rope };
        backend.attention_input(x, norm(attn_norm), [q, k, v], heads, pos, kv, queries)?;
        backend.attention(queries, kv, pos, attention)?;
        backend.linear_norm_add(attention, attn_output, norm(&self.post_attention_norm), x)?;

        backend.gated(x, norm(ffn_norm), Gate::GeluTanh, [gate, up], hidden)?;
        backend.linear_norm_add(hidden, down, norm(&self.post_ffw_norm), x)?;
        Ok(())
    }
}
