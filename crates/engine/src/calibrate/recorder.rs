//! A backend that watches what matrices of another one are multiplied with.

use super::Hessian;
use crate::arch::{TensorKind, Weights, move_to};
use lowbit_core::backend::{AttentionShape, Backend, Gate, Heads, Norm, RopeTable};
use lowbit_core::container::Artifact;
use lowbit_core::{PackedMatrix, Result};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

/// The second moments that are to be gathered, by the name of a matrix. Of matrices that share their input only the first is
/// asked for.
pub(super) type Moments = Rc<RefCell<BTreeMap<String, Hessian>>>;

/// `B`, and the second moments of what its matrices are multiplied with.
pub(super) struct Recorder<B> {
    inner: B,
    moments: Moments,
}

/// A matrix and its name.
pub(super) struct Named<M> {
    name: String,
    inner: M,
}

/// A vector on the device, and its values.
pub(super) struct Known<V> {
    values: Vec<f32>,
    inner: V,
}

impl<B> Recorder<B> {
    pub(super) fn new(inner: B, moments: Moments) -> Self {
        Self { inner, moments }
    }
}

impl<B: Backend> Recorder<B> {
    fn is_wanted(&self, matrix: &Named<B::Matrix>) -> bool {
        self.moments.borrow().contains_key(&matrix.name)
    }

    /// Adds rows of inputs of `matrix`: those of `x`, normalised where there is a norm.
    fn record(
        &mut self,
        x: &B::Tensor,
        norm: Option<Norm<'_, Known<B::Vector>>>,
        matrix: &Named<B::Matrix>,
    ) -> Result<()> {
        if !self.is_wanted(matrix) {
            return Ok(());
        }
        let mut values = self.inner.read(x)?;
        if let Some(Norm { weight, eps }) = norm {
            for row in values.chunks_exact_mut(weight.values.len()) {
                let mean = row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32;
                let factor = 1.0 / (mean + eps).sqrt();
                row.iter_mut().zip(&weight.values).for_each(|(x, weight)| *x *= factor * weight);
            }
        }
        if let Some(hessian) = self.moments.borrow_mut().get_mut(&matrix.name) {
            hessian.add(&values);
        }
        Ok(())
    }
}

fn inner<V>(norm: Norm<'_, Known<V>>) -> Norm<'_, V> {
    Norm { weight: &norm.weight.inner, eps: norm.eps }
}

/// The weights of an artifact, with their names.
pub(super) struct NamedWeights<'a>(pub &'a Artifact);

impl<B: Backend> Weights<Recorder<B>> for NamedWeights<'_> {
    fn matrix(&self, name: &str, backend: &Recorder<B>) -> Result<(TensorKind, Named<B::Matrix>)> {
        let (kind, inner) = move_to(&backend.inner, self.0.matrix(name)?)?;
        Ok((kind, Named { name: name.to_owned(), inner }))
    }

    fn vector(&self, name: &str) -> Result<Vec<f32>> {
        self.0.vector(name)
    }
}

impl<B: Backend> Backend for Recorder<B> {
    type Matrix = Named<B::Matrix>;
    type Vector = Known<B::Vector>;
    type Rope = B::Rope;
    type Tensor = B::Tensor;
    type Kv = B::Kv;

    fn set_strict(&mut self, strict: bool) {
        self.inner.set_strict(strict);
    }
    fn matrix(&self, matrix: PackedMatrix) -> Result<Self::Matrix> {
        Ok(Named { name: String::new(), inner: self.inner.matrix(matrix)? })
    }

    fn vector(&self, values: Vec<f32>) -> Result<Self::Vector> {
        Ok(Known { inner: self.inner.vector(values.clone())?, values })
    }

    fn rope(&self, table: RopeTable) -> Result<B::Rope> {
        self.inner.rope(table)
    }

    fn tensor(&self) -> B::Tensor {
        self.inner.tensor()
    }

    fn kv(&self, shape: AttentionShape, capacity: usize) -> Result<B::Kv> {
        self.inner.kv(shape, capacity)
    }

    fn embed(&mut self, table: &Self::Matrix, ids: &[u32], scale: f32, x: &mut B::Tensor) -> Result<()> {
        self.inner.embed(&table.inner, ids, scale, x)
    }

    fn attention_input(
        &mut self,
        x: &B::Tensor,
        norm: Norm<'_, Self::Vector>,
        qkv: [&Self::Matrix; 3],
        heads: Heads<'_, B::Rope, Self::Vector>,
        pos: usize,
        kv: &mut B::Kv,
        queries: &mut B::Tensor,
    ) -> Result<()> {
        self.record(x, Some(norm), qkv[0])?;
        let heads = Heads { norms: heads.norms.map(|norms| norms.map(inner)), rope: heads.rope };
        let qkv = qkv.map(|matrix| &matrix.inner);
        self.inner.attention_input(x, inner(norm), qkv, heads, pos, kv, queries)
    }

    fn attention(&mut self, queries: &B::Tensor, kv: &B::Kv, pos: usize, out: &mut B::Tensor) -> Result<()> {
        self.inner.attention(queries, kv, pos, out)
    }

    fn linear_add(&mut self, y: &B::Tensor, matrix: &Self::Matrix, x: &mut B::Tensor) -> Result<()> {
        self.record(y, None, matrix)?;
        self.inner.linear_add(y, &matrix.inner, x)
    }

    fn linear_norm_add(
        &mut self,
        y: &B::Tensor,
        matrix: &Self::Matrix,
        norm: Norm<'_, Self::Vector>,
        x: &mut B::Tensor,
    ) -> Result<()> {
        self.record(y, None, matrix)?;
        self.inner.linear_norm_add(y, &matrix.inner, inner(norm), x)
    }

    fn gated(
        &mut self,
        x: &B::Tensor,
        norm: Norm<'_, Self::Vector>,
        act: Gate,
        gate_up: [&Self::Matrix; 2],
        out: &mut B::Tensor,
    ) -> Result<()> {
        self.record(x, Some(norm), gate_up[0])?;
        self.inner.gated(x, inner(norm), act, gate_up.map(|matrix| &matrix.inner), out)
    }

    /// Records the inputs of all rows, whichever are asked for.
    fn logits(
        &mut self,
        x: &B::Tensor,
        rows: Range<usize>,
        norm: Norm<'_, Self::Vector>,
        output: &Self::Matrix,
    ) -> Result<()> {
        self.record(x, Some(norm), output)?;
        self.inner.logits(x, rows, inner(norm), &output.inner)
    }

    fn fetch(&mut self, x: &B::Tensor) -> Result<()> {
        self.inner.fetch(x)
    }

    fn take(&mut self, values: &mut Vec<f32>) -> Poll<Result<()>> {
        self.inner.take(values)
    }
}
