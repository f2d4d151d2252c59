//! What the architectures share: embedding, layers, the last norm and the output matrix, and how they are loaded.

use super::{ModelConfig, TensorKind, TensorSpec, Weights, gemma3, llama, norm};
use crate::kv_cache::KvCache;
use crate::{Error, Result};
use lowbit_core::backend::Backend;
use std::ops::Range;

/// The weights of a model on a device.
pub struct Transformer<B: Backend> {
    config: ModelConfig,
    embedding: B::Matrix,
    rope: B::Rope,
    /// Of layers with a window, where it is another one.
    local_rope: Option<B::Rope>,
    layers: Vec<Layer<B>>,
    output_norm: B::Vector,
    /// `None` when the embedding is the output matrix too.
    output: Option<B::Matrix>,
    scratch: Scratch<B>,
}

enum Layer<B: Backend> {
    Llama(llama::Layer<B>),
    Gemma3(gemma3::Layer<B>),
}

impl<B: Backend> Layer<B> {
    fn run(&self, step: Step<'_, B>, kv: &mut B::Kv) -> Result<()> {
        match self {
            Self::Llama(layer) => layer.run(step, kv),
            Self::Gemma3(layer) => layer.run(step, kv),
        }
    }
}

/// What layers of every architecture have.
pub(super) struct Block<B: Backend> {
    pub attn_norm: B::Vector,
    pub q: B::Matrix,
    pub k: B::Matrix,
    pub v: B::Matrix,
    pub attn_output: B::Matrix,
    pub ffn_norm: B::Vector,
    pub gate: B::Matrix,
    pub up: B::Matrix,
    pub down: B::Matrix,
}

/// What a layer runs with.
pub(super) struct Step<'a, B: Backend> {
    pub backend: &'a mut B,
    /// Position of the first row.
    pub pos: usize,
    /// Of the norms.
    pub eps: f32,
    pub rope: &'a B::Rope,
    pub local_rope: &'a B::Rope,
    /// The residual stream: `[rows][d_model]`.
    pub x: &'a mut B::Tensor,
    /// `[rows][n_heads * head_dim]`
    pub queries: &'a mut B::Tensor,
    /// `[rows][n_heads * head_dim]`
    pub attention: &'a mut B::Tensor,
    /// `[rows][ffn_dim]`
    pub hidden: &'a mut B::Tensor,
}

/// Activations; they keep their memory from call to call.
struct Scratch<B: Backend> {
    x: B::Tensor,
    queries: B::Tensor,
    attention: B::Tensor,
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

impl<B: Backend> Transformer<B> {
    /// Moves the weights to the device and prepares for `context` positions.
    pub fn load(config: ModelConfig, weights: &impl Weights<B>, backend: &B, context: usize) -> Result<Self> {
        config.validate()?;
        let load = Loader { tensors: config.tensors(), weights, backend };
        let head_dim = config.head_dim;
        let layer = |i: usize| match &config.gemma3 {
            None => llama::Layer::load(&load, i).map(Layer::Llama),
            Some(gemma3) => gemma3::Layer::load(&load, gemma3, head_dim, i).map(Layer::Gemma3),
        };
        let output = || load.matrix("output.weight");
        let local_rope = config.gemma3.as_ref().map(|gemma3| gemma3.local_rope.table(head_dim, context));
        Ok(Self {
            embedding: load.matrix("token_embd.weight")?,
            rope: backend.rope(config.rope.table(head_dim, context))?,
            local_rope: local_rope.map(|table| backend.rope(table)).transpose()?,
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
    pub fn config(&self) -> &ModelConfig {
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
        let norm = norm(&self.output_norm, self.config.rms_eps);
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
        let rope = &self.rope;
        let local_rope = self.local_rope.as_ref().unwrap_or(rope);
        let Scratch { x, queries, attention, hidden } = &mut self.scratch;

        backend.embed(&self.embedding, ids, self.config.embedding_scale(), x)?;
        for (i, (layer, kv)) in self.layers.iter().zip(cache.layers_mut()).enumerate().take(layers) {
            layer.run(Step { backend, pos, eps, rope, local_rope, x, queries, attention, hidden }, kv)?;
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

/// The name of a tensor of layer `i`.
pub(super) fn name_of(i: usize, name: &str) -> String {
    format!("blk.{i}.{name}.weight")
}

/// Moves tensors to the device after comparing their sizes with what the configuration demands.
pub(super) struct Loader<'a, B, W> {
    tensors: Vec<TensorSpec>,
    weights: &'a W,
    backend: &'a B,
}

impl<B: Backend, W: Weights<B>> Loader<'_, B, W> {
    /// What layer `i` has in every architecture.
    pub(super) fn block(&self, i: usize) -> Result<Block<B>> {
        let matrix = |name| self.matrix(&name_of(i, name));
        let vector = |name| self.vector(&name_of(i, name));
        Ok(Block {
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
    }

    fn matrix(&self, name: &str) -> Result<B::Matrix> {
        let (kind, matrix) = self.weights.matrix(name, self.backend)?;
        self.expect(name, kind)?;
        Ok(matrix)
    }

    pub(super) fn vector(&self, name: &str) -> Result<B::Vector> {
        self.scaled_vector(name, 1.0)
    }

    pub(super) fn scaled_vector(&self, name: &str, scale: f32) -> Result<B::Vector> {
        let mut values = self.weights.vector(name)?;
        self.expect(name, TensorKind::Vector { len: values.len() })?;
        values.iter_mut().for_each(|x| *x *= scale);
        Ok(self.backend.vector(values)?)
    }

    fn expect(&self, name: &str, found: TensorKind) -> Result<()> {
        let expected = match self.tensors.iter().find(|t| t.name == name) {
            Some(t) if t.kind == found => return Ok(()),
            Some(t) => t.kind.to_string(),
            None => "none of that name".to_owned(),
        };
        let problem = format!("is {found}, expected {expected}; pack the model again");
        Err(lowbit_core::Error::Shape { what: format!("tensor {name}"), problem }.into())
    }
}
