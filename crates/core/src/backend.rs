//! A device with its own memory, and the op set that models are written against.
//!
//! The ops are as coarse as a device wants to fuse them: five a transformer layer. Activations are row-major
//! `[rows][width]` f32, one row a token.

mod cpu;
mod rows;
#[cfg(test)]
mod tests;

pub use cpu::{CpuBackend, Tensor};

use std::task::{Poll, ready};
use std::time::Duration;

use crate::candidates::{Candidate, top_k};
use crate::{Error, PackedMatrix, Result};

/// So many of the largest logits can be asked for, at most.
pub const MAX_TOP_K: usize = 128;

/// What a repeated step took, for those who choose between ways to compute it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// A step: the quickest of a few.
    pub step: Duration,
    /// All of them, and what comes before the first.
    pub spent: Duration,
}

/// The non-linearity of a gated feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `x * sigmoid(x)`
    Silu,
    /// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`
    GeluTanh,
}

/// Which coordinates rotary embedding pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RopeStyle {
    /// `(2i, 2i + 1)`: the order of GGUF's llama tensors.
    Interleaved,
    /// `(i, i + d/2)`: the order of Hugging Face checkpoints.
    Half,
}

/// Cosines and sines of every position: `[position][head_dim / 2]`.
#[derive(Clone, Debug)]
pub struct RopeTable {
    /// Which coordinates are paired.
    pub style: RopeStyle,
    /// Coordinates of a head; all are rotated.
    pub head_dim: usize,
    /// `[context][head_dim / 2]`
    pub cos: Vec<f32>,
    /// `[context][head_dim / 2]`
    pub sin: Vec<f32>,
}

/// The shape of one layer's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Coordinates of a head.
    pub head_dim: usize,
    /// How many positions a query sees, the last of which is its own; `None`: all up to its own.
    pub window: Option<usize>,
}

impl AttentionShape {
    /// The first position that a query at `pos` sees.
    #[inline]
    pub fn first_seen(&self, pos: usize) -> usize {
        self.window.map_or(0, |window| (pos + 1).saturating_sub(window))
    }
}

/// RMSNorm: `x / rms(x) * weight`.
pub struct Norm<'a, V> {
    /// `[width]`
    pub weight: &'a V,
    /// Added to the mean square.
    pub eps: f32,
}

impl<V> Clone for Norm<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Norm<'_, V> {}

/// What becomes of the heads of queries and keys: each is normalised, where there are norms, and then rotated.
pub struct Heads<'a, R, V> {
    /// The norms of a query head and a key head, over `[head_dim]` each.
    pub norms: Option<[Norm<'a, V>; 2]>,
    /// The rotary table.
    pub rope: &'a R,
}

impl<R, V> Clone for Heads<'_, R, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R, V> Copy for Heads<'_, R, V> {}

/// A device that runs the ops. One call at a time; every op may use all threads of the device.
pub trait Backend {
    /// A packed matrix in the device's memory.
    type Matrix;
    /// A vector of f32 parameters in the device's memory.
    type Vector;
    /// A rotary table in the device's memory.
    type Rope;
    /// Activations `[rows][width]` in the device's memory; its rows may change from call to call.
    type Tensor;
    /// The keys and values of one layer, of fixed capacity, stored as f16.
    type Kv;

    /// Takes a matrix. It may share the memory of its planes.
    fn matrix(&self, matrix: PackedMatrix) -> Result<Self::Matrix>;
    /// Takes a parameter vector.
    fn vector(&self, values: Vec<f32>) -> Result<Self::Vector>;
    /// Takes a rotary table.
    fn rope(&self, table: RopeTable) -> Result<Self::Rope>;
    /// Whether rows of activations that have one scale, as formats with a scale a row ask for, have a power of two from now
    /// on ([`Scaling::Strict`](crate::activation::Scaling::Strict)): then products are the same bits on every device that
    /// multiplies integers.
    fn set_strict(&mut self, strict: bool);
    /// An empty tensor.
    fn tensor(&self) -> Self::Tensor;
    /// Room for `capacity` positions of one layer.
    fn kv(&self, shape: AttentionShape, capacity: usize) -> Result<Self::Kv>;

    /// `x[i] = scale * table[ids[i]]`
    fn embed(&mut self, table: &Self::Matrix, ids: &[u32], scale: f32, x: &mut Self::Tensor) -> Result<()>;

    /// Normalises `x`, multiplies by the three matrices of `qkv`, makes of queries and keys what `heads` says for positions
    /// `pos..pos + rows`, appends keys and values to `kv` at `pos`, and leaves the queries in `queries`.
    #[expect(clippy::too_many_arguments, reason = "one fused op, one argument per operand")]
    fn attention_input(
        &mut self,
        x: &Self::Tensor,
        norm: Norm<'_, Self::Vector>,
        qkv: [&Self::Matrix; 3],
        heads: Heads<'_, Self::Rope, Self::Vector>,
        pos: usize,
        kv: &mut Self::Kv,
        queries: &mut Self::Tensor,
    ) -> Result<()>;

    /// Causal softmax attention of the queries at `pos..pos + rows` over the positions up to their own that the window of
    /// `kv` holds; scores are divided by `sqrt(head_dim)`.
    fn attention(
        &mut self,
        queries: &Self::Tensor,
        kv: &Self::Kv,
        pos: usize,
        out: &mut Self::Tensor,
    ) -> Result<()>;

    /// `x += y * matrix`
    fn linear_add(&mut self, y: &Self::Tensor, matrix: &Self::Matrix, x: &mut Self::Tensor) -> Result<()>;

    /// `x += norm(y * matrix)`
    fn linear_norm_add(
        &mut self,
        y: &Self::Tensor,
        matrix: &Self::Matrix,
        norm: Norm<'_, Self::Vector>,
        x: &mut Self::Tensor,
    ) -> Result<()>;

    /// `out = act(norm(x) * gate) .* (norm(x) * up)` with `gate_up = [gate, up]`
    fn gated(
        &mut self,
        x: &Self::Tensor,
        norm: Norm<'_, Self::Vector>,
        act: Gate,
        gate_up: [&Self::Matrix; 2],
        out: &mut Self::Tensor,
    ) -> Result<()>;

    /// Asks for the logits of rows `rows` of `x`: `norm(x) * output`. Without rows, for the end of what was begun.
    fn logits(
        &mut self,
        x: &Self::Tensor,
        rows: std::ops::Range<usize>,
        norm: Norm<'_, Self::Vector>,
        output: &Self::Matrix,
    ) -> Result<()>;

    /// Asks for the `k` largest logits of a row of `x`, 1 to [`MAX_TOP_K`], which a device may choose on its own so that little
    /// leaves it. They are taken by [`Self::take_top_k`].
    fn top_k(
        &mut self,
        x: &Self::Tensor,
        row: usize,
        norm: Norm<'_, Self::Vector>,
        output: &Self::Matrix,
        k: usize,
    ) -> Result<()> {
        let _ = k;
        self.logits(x, row..row + 1, norm, output)
    }

    /// The `k` largest logits, as many as were asked for last, in [`Candidate::order`]; all, where there are fewer. Pending as
    /// in [`Self::take`].
    fn take_top_k(&mut self, k: usize, top: &mut Vec<Candidate>) -> Poll<Result<()>> {
        let mut logits = Vec::new();
        ready!(self.take(&mut logits))?;
        top_k(&logits, k, top);
        Poll::Ready(Ok(()))
    }

    /// Asks for the values of a tensor, for comparisons.
    fn fetch(&mut self, x: &Self::Tensor) -> Result<()>;

    /// What was asked for last, row after row. Only a device that works in the background, as the GPU of a page does, is
    /// ever pending; it is asked again when it has more.
    fn take(&mut self, values: &mut Vec<f32>) -> Poll<Result<()>>;

    /// The values of a tensor, from a device that does not work in the background.
    fn read(&mut self, x: &Self::Tensor) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        self.fetch(x)?;
        at_once(self.take(&mut values))?;
        Ok(values)
    }
}

/// The result of a device that does not work in the background.
///
/// # Errors
/// The device's own, or [`Error::Device`] when it does after all.
pub fn at_once<T, E: From<Error>>(result: Poll<std::result::Result<T, E>>) -> std::result::Result<T, E> {
    match result {
        Poll::Ready(result) => result,
        Poll::Pending => Err(Error::gpu("results are not there yet; ask again later").into()),
    }
}
