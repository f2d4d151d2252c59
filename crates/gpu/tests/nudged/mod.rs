//! The CPU, off in the last bits: how far apart two correct backends of one precision are.

use std::task::Poll;

use lowbit_core::backend::{AttentionShape, Backend, CpuBackend, Gate, Heads, Norm, RopeTable};
use lowbit_core::{PackedMatrix, Result};
use std::ops::Range;

type Cpu = CpuBackend;
type Matrix = <Cpu as Backend>::Matrix;
type Vector = <Cpu as Backend>::Vector;
type Rope = <Cpu as Backend>::Rope;
type Tensor = <Cpu as Backend>::Tensor;
type Kv = <Cpu as Backend>::Kv;

/// A CPU that has every second weight of a norm as the next larger float.
pub struct Nudged(pub CpuBackend);

impl Backend for Nudged {
    type Matrix = Matrix;
    type Vector = Vector;
    type Rope = Rope;
    type Tensor = Tensor;
    type Kv = Kv;

    fn vector(&self, mut values: Vec<f32>) -> Result<Vector> {
        values.iter_mut().step_by(2).for_each(|v| *v = v.next_up());
        self.0.vector(values)
    }
    fn matrix(&self, matrix: PackedMatrix) -> Result<Matrix> {
        self.0.matrix(matrix)
    }
    fn rope(&self, table: RopeTable) -> Result<Rope> {
        self.0.rope(table)
    }
    fn set_strict(&mut self, strict: bool) {
        self.0.set_strict(strict);
    }
    fn tensor(&self) -> Tensor {
        self.0.tensor()
    }
    fn kv(&self, shape: AttentionShape, capacity: usize) -> Result<Kv> {
        self.0.kv(shape, capacity)
    }
    fn embed(&mut self, table: &Matrix, ids: &[u32], scale: f32, x: &mut Tensor) -> Result<()> {
        self.0.embed(table, ids, scale, x)
    }
    fn attention_input(
        &mut self,
        x: &Tensor,
        norm: Norm<'_, Vector>,
        qkv: [&Matrix; 3],
        heads: Heads<'_, Rope, Vector>,
        pos: usize,
        kv: &mut Kv,
        queries: &mut Tensor,
    ) -> Result<()> {
        self.0.attention_input(x, norm, qkv, heads, pos, kv, queries)
    }
    fn attention(&mut self, queries: &Tensor, kv: &Kv, pos: usize, out: &mut Tensor) -> Result<()> {
        self.0.attention(queries, kv, pos, out)
    }
    fn linear_add(&mut self, y: &Tensor, matrix: &Matrix, x: &mut Tensor) -> Result<()> {
        self.0.linear_add(y, matrix, x)
    }
    fn linear_norm_add(
        &mut self,
        y: &Tensor,
        matrix: &Matrix,
        norm: Norm<'_, Vector>,
        x: &mut Tensor,
    ) -> Result<()> {
        self.0.linear_norm_add(y, matrix, norm, x)
    }
    fn gated(
        &mut self,
        x: &Tensor,
        norm: Norm<'_, Vector>,
        act: Gate,
        gate_up: [&Matrix; 2],
        out: &mut Tensor,
    ) -> Result<()> {
        self.0.gated(x, norm, act, gate_up, out)
    }
    fn logits(
        &mut self,
        x: &Tensor,
        rows: Range<usize>,
        norm: Norm<'_, Vector>,
        output: &Matrix,
    ) -> Result<()> {
        self.0.logits(x, rows, norm, output)
    }
    fn fetch(&mut self, x: &Tensor) -> Result<()> {
        self.0.fetch(x)
    }

    fn take(&mut self, values: &mut Vec<f32>) -> Poll<Result<()>> {
        self.0.take(values)
    }
}
