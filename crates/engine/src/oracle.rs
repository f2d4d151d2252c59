//! A backend that is nothing but the formulas: weights as f32, keys and values as f32, no quantised activations.
//!
//! Slow, and exact to f32 rounding. Every other backend is measured against it; nothing here is ever optimised.

use lowbit_core::backend::{AttentionShape, Backend, Gate, Heads, Norm, RopeStyle, RopeTable};
use lowbit_core::{PackedMatrix, Result};
use std::ops::Range;
use std::task::Poll;

/// The reference backend.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    /// What was asked for last.
    results: Vec<f32>,
}

/// A matrix `[n][k]`.
#[derive(Debug)]
pub struct Matrix {
    k: usize,
    values: Vec<f32>,
}

/// Activations `[rows][width]`.
#[derive(Clone, Debug, Default)]
pub struct Tensor {
    width: usize,
    values: Vec<f32>,
}

/// Keys and values `[position][n_kv_heads * head_dim]`.
#[derive(Debug)]
pub struct Kv {
    shape: AttentionShape,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Matrix {
    fn rows(&self) -> std::slice::ChunksExact<'_, f32> {
        self.values.chunks_exact(self.k)
    }

    fn n(&self) -> usize {
        self.values.len() / self.k
    }

    /// `x * self` for every row of `x`.
    fn apply(&self, x: &Tensor) -> Tensor {
        let values = x.rows().flat_map(|x| self.rows().map(|w| dot(w, x))).collect();
        Tensor { width: self.n(), values }
    }
}

impl Tensor {
    fn rows(&self) -> std::slice::ChunksExact<'_, f32> {
        self.values.chunks_exact(self.width)
    }

    fn normalised(&self, norm: Norm<'_, Vec<f32>>) -> Self {
        let values = self.rows().flat_map(|x| {
            let rms = (dot(x, x) / x.len() as f32 + norm.eps).sqrt();
            x.iter().zip(norm.weight).map(move |(x, w)| x / rms * w)
        });
        Self { width: self.width, values: values.collect() }
    }
}

/// Normalises, where there is a norm, and rotates every head of every row of `x`.
fn heads_of(x: Tensor, norm: Option<Norm<'_, Vec<f32>>>, rope: &RopeTable, pos: usize) -> Tensor {
    let Tensor { width, values } = x;
    let heads = Tensor { width: rope.head_dim, values };
    let values = norm.map_or_else(|| heads.clone(), |norm| heads.normalised(norm)).values;
    let mut x = Tensor { width, values };
    rotate(&mut x, rope, pos);
    x
}

/// In 16 partial sums, for accuracy.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; 16];
    for (a, b) in a.chunks(16).zip(b.chunks(16)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}

/// Rotates every head of every row of `x`; row `r` stands at position `pos + r`.
fn rotate(x: &mut Tensor, rope: &RopeTable, pos: usize) {
    let half = rope.head_dim / 2;
    for (row, x) in x.values.chunks_exact_mut(x.width).enumerate() {
        for head in x.chunks_exact_mut(rope.head_dim) {
            for i in 0..half {
                let (a, b) = match rope.style {
                    RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                    RopeStyle::Half => (i, i + half),
                };
                let (cos, sin) = (rope.cos[(pos + row) * half + i], rope.sin[(pos + row) * half + i]);
                let (re, im) = (head[a], head[b]);
                (head[a], head[b]) = (re * cos - im * sin, re * sin + im * cos);
            }
        }
    }
}

impl Kv {
    /// Softmax attention of one query head over some positions of its key and value head.
    fn attend(&self, query: &[f32], kv_head: usize, positions: Range<usize>) -> Vec<f32> {
        let d = self.shape.head_dim;
        let width = self.shape.n_kv_heads * d;
        let at = |plane: &'_ [f32], pos: usize| plane[pos * width + kv_head * d..][..d].to_vec();
        let scale = 1.0 / (d as f32).sqrt();
        let scores: Vec<f32> = positions.clone().map(|p| dot(query, &at(&self.keys, p)) * scale).collect();
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f32 = weights.iter().sum();
        let mut out = vec![0.0; d];
        for (p, weight) in positions.zip(weights.iter()) {
            for (out, v) in out.iter_mut().zip(at(&self.values, p)) {
                *out += weight / sum * v;
            }
        }
        out
    }
}

impl Backend for Oracle {
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Rope = RopeTable;
    type Tensor = Tensor;
    type Kv = Kv;

    fn matrix(&self, matrix: PackedMatrix) -> Result<Matrix> {
        let mut values = vec![0.0; matrix.n * matrix.k];
        for (row, out) in values.chunks_exact_mut(matrix.k).enumerate() {
            matrix.dequantize_row(row, out);
        }
        Ok(Matrix { k: matrix.k, values })
    }

    fn vector(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }

    fn rope(&self, table: RopeTable) -> Result<RopeTable> {
        Ok(table)
    }

    fn set_strict(&mut self, _: bool) {}

    fn tensor(&self) -> Tensor {
        Tensor::default()
    }

    fn kv(&self, shape: AttentionShape, capacity: usize) -> Result<Kv> {
        let zeros = vec![0.0; capacity * shape.n_kv_heads * shape.head_dim];
        Ok(Kv { shape, keys: zeros.clone(), values: zeros })
    }

    fn embed(&mut self, table: &Matrix, ids: &[u32], scale: f32, x: &mut Tensor) -> Result<()> {
        let row = |&id: &u32| table.rows().nth(id as usize).into_iter().flatten();
        *x = Tensor { width: table.k, values: ids.iter().flat_map(row).map(|x| x * scale).collect() };
        Ok(())
    }

    fn attention_input(
        &mut self,
        x: &Tensor,
        norm: Norm<'_, Vec<f32>>,
        [q, k, v]: [&Matrix; 3],
        heads: Heads<'_, RopeTable, Vec<f32>>,
        pos: usize,
        kv: &mut Kv,
        queries: &mut Tensor,
    ) -> Result<()> {
        let x = x.normalised(norm);
        let [q_norm, k_norm] = heads.norms.map_or([None; 2], |norms| norms.map(Some));
        *queries = heads_of(q.apply(&x), q_norm, heads.rope, pos);
        let keys = heads_of(k.apply(&x), k_norm, heads.rope, pos);
        let values = v.apply(&x);
        kv.keys[pos * keys.width..][..keys.values.len()].copy_from_slice(&keys.values);
        kv.values[pos * values.width..][..values.values.len()].copy_from_slice(&values.values);
        Ok(())
    }

    fn attention(&mut self, queries: &Tensor, kv: &Kv, pos: usize, out: &mut Tensor) -> Result<()> {
        let group = kv.shape.n_heads / kv.shape.n_kv_heads;
        let attended = queries.rows().enumerate().flat_map(|(row, query)| {
            let heads = query.chunks_exact(kv.shape.head_dim).enumerate();
            let seen = kv.shape.first_seen(pos + row)..pos + row + 1;
            heads.flat_map(move |(head, query)| kv.attend(query, head / group, seen.clone()))
        });
        *out = Tensor { width: queries.width, values: attended.collect() };
        Ok(())
    }

    fn linear_add(&mut self, y: &Tensor, matrix: &Matrix, x: &mut Tensor) -> Result<()> {
        for (x, y) in x.values.iter_mut().zip(matrix.apply(y).values) {
            *x += y;
        }
        Ok(())
    }

    fn linear_norm_add(
        &mut self,
        y: &Tensor,
        matrix: &Matrix,
        norm: Norm<'_, Vec<f32>>,
        x: &mut Tensor,
    ) -> Result<()> {
        for (x, y) in x.values.iter_mut().zip(matrix.apply(y).normalised(norm).values) {
            *x += y;
        }
        Ok(())
    }

    fn gated(
        &mut self,
        x: &Tensor,
        norm: Norm<'_, Vec<f32>>,
        act: Gate,
        [gate, up]: [&Matrix; 2],
        out: &mut Tensor,
    ) -> Result<()> {
        let x = x.normalised(norm);
        let act = |x: f32| match act {
            Gate::Silu => x / (1.0 + (-x).exp()),
            Gate::GeluTanh => {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
        };
        *out = gate.apply(&x);
        for (out, up) in out.values.iter_mut().zip(up.apply(&x).values) {
            *out = act(*out) * up;
        }
        Ok(())
    }

    fn logits(
        &mut self,
        x: &Tensor,
        rows: Range<usize>,
        norm: Norm<'_, Vec<f32>>,
        output: &Matrix,
    ) -> Result<()> {
        let values = x.values[rows.start * x.width..rows.end * x.width].to_vec();
        self.results = output.apply(&Tensor { width: x.width, values }.normalised(norm)).values;
        Ok(())
    }

    fn fetch(&mut self, x: &Tensor) -> Result<()> {
        self.results.clone_from(&x.values);
        Ok(())
    }

    fn take(&mut self, values: &mut Vec<f32>) -> Poll<Result<()>> {
        *values = std::mem::take(&mut self.results);
        Poll::Ready(Ok(()))
    }
}
