//! A backend that measures how long each op of another one takes.

use lowbit_core::backend::{AttentionShape, Backend, Gate, Heads, Norm, RopeTable};
use lowbit_core::candidates::Candidate;
use lowbit_core::{PackedMatrix, Result};
use std::cell::Cell;
use std::ops::Range;
use std::task::Poll;
use web_time::{Duration, Instant};

/// An op of a model's forward pass, as fused as the backend runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Rows of the embedding table.
    Embed,
    /// Norm, activation quantisation, the products with Q, K and V, norms of heads, rotary embedding, append to the KV cache.
    Qkv,
    /// Scores, softmax and values.
    Attention,
    /// The product after attention, added to the residual stream.
    AttentionOutput,
    /// Norm, activation quantisation, the products with gate and up, and the gate.
    GateUp,
    /// The product after the gate, added to the residual stream.
    Down,
    /// The last norm and the product with the output matrix.
    Head,
}

impl Op {
    /// All ops in the order of a forward pass.
    pub const ALL: [Self; 7] = [
        Self::Embed,
        Self::Qkv,
        Self::Attention,
        Self::AttentionOutput,
        Self::GateUp,
        Self::Down,
        Self::Head,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Qkv => "qkv",
            Self::Attention => "attention",
            Self::AttentionOutput => "attention_output",
            Self::GateUp => "gate_up",
            Self::Down => "down",
            Self::Head => "head",
        }
    }
}

/// `B`, and the time that its ops take.
pub struct Timed<B> {
    inner: B,
    /// In the order of [`Op::ALL`].
    times: Cell<[Duration; Op::ALL.len()]>,
    /// The op before, which tells the two products that are added to the residual stream apart.
    last: Op,
}

impl<B> Timed<B> {
    /// No time has been spent.
    pub fn new(inner: B) -> Self {
        Self { inner, times: Cell::default(), last: Op::Embed }
    }

    /// The time of every op since the last call of this.
    pub fn take(&self) -> [(Op, Duration); Op::ALL.len()] {
        let times = self.times.take();
        std::array::from_fn(|i| (Op::ALL[i], times[i]))
    }

    /// Which of the two products it is that comes next.
    fn product(&self) -> Op {
        if self.last == Op::GateUp { Op::Down } else { Op::AttentionOutput }
    }

    fn time<T>(&mut self, op: Op, run: impl FnOnce(&mut B) -> T) -> T {
        let start = Instant::now();
        let result = run(&mut self.inner);
        let times = self.times.get_mut();
        times[op as usize] += start.elapsed();
        self.last = op;
        result
    }
}

impl<B: Backend> Backend for Timed<B> {
    type Matrix = B::Matrix;
    type Vector = B::Vector;
    type Rope = B::Rope;
    type Tensor = B::Tensor;
    type Kv = B::Kv;

    fn matrix(&self, matrix: PackedMatrix) -> Result<B::Matrix> {
        self.inner.matrix(matrix)
    }

    fn vector(&self, values: Vec<f32>) -> Result<B::Vector> {
        self.inner.vector(values)
    }

    fn rope(&self, table: RopeTable) -> Result<B::Rope> {
        self.inner.rope(table)
    }

    fn set_strict(&mut self, strict: bool) {
        self.inner.set_strict(strict);
    }

    fn tensor(&self) -> B::Tensor {
        self.inner.tensor()
    }

    fn kv(&self, shape: AttentionShape, capacity: usize) -> Result<B::Kv> {
        self.inner.kv(shape, capacity)
    }

    fn embed(&mut self, table: &B::Matrix, ids: &[u32], scale: f32, x: &mut B::Tensor) -> Result<()> {
        self.time(Op::Embed, |inner| inner.embed(table, ids, scale, x))
    }

    fn attention_input(
        &mut self,
        x: &B::Tensor,
        norm: Norm<'_, B::Vector>,
        qkv: [&B::Matrix; 3],
        heads: Heads<'_, B::Rope, B::Vector>,
        pos: usize,
        kv: &mut B::Kv,
        queries: &mut B::Tensor,
    ) -> Result<()> {
        self.time(Op::Qkv, |inner| inner.attention_input(x, norm, qkv, heads, pos, kv, queries))
    }

    fn attention(&mut self, queries: &B::Tensor, kv: &B::Kv, pos: usize, out: &mut B::Tensor) -> Result<()> {
        self.time(Op::Attention, |inner| inner.attention(queries, kv, pos, out))
    }

    fn linear_add(&mut self, y: &B::Tensor, matrix: &B::Matrix, x: &mut B::Tensor) -> Result<()> {
        self.time(self.product(), |inner| inner.linear_add(y, matrix, x))
    }

    fn linear_norm_add(
        &mut self,
        y: &B::Tensor,
        matrix: &B::Matrix,
        norm: Norm<'_, B::Vector>,
        x: &mut B::Tensor,
    ) -> Result<()> {
        self.time(self.product(), |inner| inner.linear_norm_add(y, matrix, norm, x))
    }

    fn gated(
        &mut self,
        x: &B::Tensor,
        norm: Norm<'_, B::Vector>,
        act: Gate,
        gate_up: [&B::Matrix; 2],
        out: &mut B::Tensor,
    ) -> Result<()> {
        self.time(Op::GateUp, |inner| inner.gated(x, norm, act, gate_up, out))
    }

    fn logits(
        &mut self,
        x: &B::Tensor,
        rows: Range<usize>,
        norm: Norm<'_, B::Vector>,
        output: &B::Matrix,
    ) -> Result<()> {
        self.time(Op::Head, |inner| inner.logits(x, rows, norm, output))
    }

    fn top_k(
        &mut self,
        x: &B::Tensor,
        row: usize,
        norm: Norm<'_, B::Vector>,
        output: &B::Matrix,
        k: usize,
    ) -> Result<()> {
        self.time(Op::Head, |inner| inner.top_k(x, row, norm, output, k))
    }

    fn take_top_k(&mut self, k: usize, top: &mut Vec<Candidate>) -> Poll<Result<()>> {
        self.inner.take_top_k(k, top)
    }

    fn fetch(&mut self, x: &B::Tensor) -> Result<()> {
        self.inner.fetch(x)
    }

    fn take(&mut self, values: &mut Vec<f32>) -> Poll<Result<()>> {
        self.inner.take(values)
    }
}
