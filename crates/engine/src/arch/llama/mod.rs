//! Llama: RMSNorm, rotary embedding, grouped-query attention, SwiGLU (Touvron et al. 2023, Grattafiori et al. 2024).
//! Llama 1 to 3, SmolLM, and what shares their shape.

mod config;

pub use config::{LlamaConfig, SpecialTokens, parse, tensors_of};

use super::Weights;
use crate::kv_cache::KvCache;
use crate::{Error, Result};
use lowbit_core::backend::{AttentionShape, Backend, Gate, Norm};
use std::ops::Range;

/// The weights of a Llama model on a device.
pub struct Llama<B: Backend> {
    config: LlamaConfig,
    embedding: B::Matrix,
    rope: B::Rope,
    layers: Vec<Layer<B>>,
    output_norm: B::Vector,
    /// `None` when the embedding is the output matrix too.
    output: Option<B::Matrix>,
    scratch: Scratch<B>,
}

struct Layer<B: Backend> {
    attn_norm: B::Vector,
    q: B::Matrix,
    k: B::Matrix,
    v: B::Matrix,
    attn_output: B::Matrix,
    ffn_norm: B::Vector,
    gate: B::Matrix,
    up: B::Matrix,
    down: B::Matrix,
}

/// Activations; they keep their memory from call to call.
struct Scratch<B: Backend> {
    /// The residual stream: `[rows][d_model]`.
    x: B::Tensor,
    /// `[rows][n_heads * head_dim]`
    queries: B::Tensor,
    /// `[rows][n_heads * head_dim]`
    attention: B::Tensor,
    /// `[rows][ffn_dim]`
    hidden: B::Tensor,
}

/// What is wanted of the logits of some tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Those of the tokens of an index range, which may be empty.
    Logits(Range<usize>),
    /// So many of the largest of the last token.
    TopK(usize),
}

impl From<Range<usize>> for Wanted {
    fn from(rows: Range<usize>) -> Self {
        Self::Logits(rows)
    }
}

/// Sees the residual stream after every layer: the layer's number and `[rows][d_model]`.
pub type Observer<'a> = &'a mut dyn FnMut(usize, Vec<f32>);

impl<B: Backend> Llama<B> {
    /// Moves the weights to the device and prepares for `context` positions.
    pub fn load(config: LlamaConfig, weights: &impl Weights<B>, backend: &B, context: usize) -> Result<Self> {
        config.validate()?;
        let load = Loader { tensors: config.tensors(), weights, backend };
        let layer = |i: usize| {
            let matrix = |name: &str| load.matrix(&format!("blk.{i}.{name}.weight"));
            let vector = |name: &str| load.vector(&format!("blk.{i}.{name}.weight"));
            Ok(Layer {
                attn_norm: vector("attn_norm")?,
                q: matrix("attn_q")?,
                k: matrix("attn_k")?,
                v: matrix("attn_v")?,
                attn_output: matrix("attn_output")?,
                ffn_norm: vector("ffn_norm")?,
                gate: matrix("ffn_gate")?,
                up: matrix("ffn_up")?,
                down: matrix("ffn_down")?,
            })
        };
        let output = || load.matrix("output.weight");
        Ok(Self {
            embedding: load.matrix("token_embd.weight")?,
            rope: backend.rope(config.rope.table(config.head_dim, context))?,
            layers: (0..config.n_layers).map(layer).collect::<Result<_>>()?,
            output_norm: load.vector("output_norm.weight")?,
            output: (!config.tied_embeddings).then(output).transpose()?,
            scratch: Scratch {
                x: backend.tensor(),
                queries: backend.tensor(),
                attention: backend.tensor(),
                hidden: backend.tensor(),
            },
            config,
        })
    }

    /// The hyper-parameters.
    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// Runs the tokens `ids` at positions `pos..pos + ids.len()`: writes their keys and values to `cache`, and asks the
    /// backend for what is `wanted` of their logits.
    ///
    /// Positions below `pos` must have been run before. The result does not depend on how a text is cut into calls.
    pub fn forward(
        &mut self,
        backend: &mut B,
        cache: &mut KvCache<B>,
        ids: &[u32],
        pos: usize,
        wanted: impl Into<Wanted>,
        observer: Option<Observer<'_>>,
    ) -> Result<()> {
        self.run_layers(backend, cache, ids, pos, self.layers.len(), observer)?;
        let output = self.output.as_ref().unwrap_or(&self.embedding);
        let norm = Norm { weight: &self.output_norm, eps: self.config.rms_eps };
        let x = &self.scratch.x;
        match wanted.into() {
            Wanted::Logits(rows) => backend.logits(x, rows, norm, output)?,
            Wanted::TopK(k) => backend.top_k(x, ids.len().saturating_sub(1), norm, output, k)?,
        }
        Ok(())
    }

    /// Asks the backend for the residual stream of `ids`, `[ids.len()][d_model]`, at positions from 0, after the first
    /// `layers` layers.
    pub fn residual(
        &mut self,
        backend: &mut B,
        cache: &mut KvCache<B>,
        ids: &[u32],
        layers: usize,
    ) -> Result<()> {
        self.run_layers(backend, cache, ids, 0, layers, None)?;
        Ok(backend.fetch(&self.scratch.x)?)
    }

    fn run_layers(
        &mut self,
        backend: &mut B,
        cache: &mut KvCache<B>,
        ids: &[u32],
        pos: usize,
        layers: usize,
        mut observer: Option<Observer<'_>>,
    ) -> Result<()> {
        self.check(cache, ids, pos)?;
        let eps = self.config.rms_eps;
        let norm = |weight| Norm { weight, eps };
        let Scratch { x, queries, attention, hidden } = &mut self.scratch;

        backend.embed(&self.embedding, ids, x)?;
        for (i, (layer, kv)) in self.layers.iter().zip(cache.layers_mut()).enumerate().take(layers) {
            let qkv = [&layer.q, &layer.k, &layer.v];
            backend.attention_input(x, norm(&layer.attn_norm), qkv, &self.rope, pos, kv, queries)?;
            backend.attention(queries, kv, pos, attention)?;
            backend.linear_add(attention, &layer.attn_output, x)?;

            backend.gated(x, norm(&layer.ffn_norm), Gate::Silu, [&layer.gate, &layer.up], hidden)?;
            backend.linear_add(hidden, &layer.down, x)?;
            if let Some(observe) = &mut observer {
                observe(i, backend.read(x)?);
            }
        }
        Ok(())
    }

    fn check(&self, cache: &KvCache<B>, ids: &[u32], pos: usize) -> Result<()> {
        let tokens = pos.saturating_add(ids.len());
        if tokens > cache.capacity() {
            return Err(Error::ContextFull { tokens, context: cache.capacity() });
        }
        let vocab_size = self.config.vocab_size;
        match ids.iter().find(|&&id| id as usize >= vocab_size) {
            Some(&id) => Err(Error::Token { id, vocab_size }),
            None => Ok(()),
        }
    }
}

impl LlamaConfig {
    /// The shape of every layer's attention.
    pub fn attention(&self) -> AttentionShape {
        AttentionShape { n_heads: self.n_heads, n_kv_heads: self.n_kv_heads, head_dim: self.head_dim }
    }
}

/// Moves tensors to the device after comparing their sizes with what the configuration demands.
struct Loader<'a, B, W> {
    tensors: Vec<super::TensorSpec>,
    weights: &'a W,
    backend: &'a B,
}

impl<B: Backend, W: Weights<B>> Loader<'_, B, W> {
    fn matrix(&self, name: &str) -> Result<B::Matrix> {
        let (kind, matrix) = self.weights.matrix(name, self.backend)?;
        self.expect(name, kind)?;
        Ok(matrix)
    }

    fn vector(&self, name: &str) -> Result<B::Vector> {
        let values = self.weights.vector(name)?;
        self.expect(name, super::TensorKind::Vector { len: values.len() })?;
        Ok(self.backend.vector(values)?)
    }

    fn expect(&self, name: &str, found: super::TensorKind) -> Result<()> {
        let expected = match self.tensors.iter().find(|t| t.name == name) {
            Some(t) if t.kind == found => return Ok(()),
            Some(t) => t.kind.to_string(),
            None => "none of that name".to_owned(),
        };
        let problem = format!("is {found}, expected {expected}; pack the model again");
        Err(lowbit_core::Error::Shape { what: format!("tensor {name}"), problem }.into())
    }
}
