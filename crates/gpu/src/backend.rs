//! The op set of models on a GPU: every op adds dispatches to a plan, which runs when its result is wanted.

use std::cell::RefCell;
use std::ops::Range;
use std::task::{Poll, ready};

use crate::attention::MAX_HEAD_DIM;
use crate::executor::Executor;
use crate::kernels::Kernels;
use crate::memory::{Device, Kv, Matrix, Rope, RowShape, Scratch, Tensor, Vector};
use crate::plan::{BufferId, Cost, Plan};
use crate::shader::Shader;
use lowbit_core::backend::{AttentionShape, Backend, Gate, Heads, Norm, RopeTable};
use lowbit_core::candidates::Candidate;
use lowbit_core::{Error, PackedMatrix, Result};

/// A GPU as a backend.
pub struct GpuBackend<E> {
    inner: RefCell<Inner<E>>,
}

pub(crate) struct Inner<E> {
    pub kernels: Kernels,
    /// Whether the scales of rows that have one are powers of two.
    pub strict: bool,
    pub device: Device<E>,
    /// What has been asked for and not yet run.
    pub plan: Plan,
    /// The position of the first row of the step.
    pub pos: usize,
    ids: Tensor,
    pub normed: Tensor,
    /// The rows that the next product reads, as codes.
    pub codes: Scratch,
    /// The tensor whose rows these are, if an op has left them for the next.
    pub coded: Option<BufferId>,
    /// What attention over each split of the positions gives.
    pub parts: Scratch,
    pub qkv: Tensor,
    logits: Tensor,
    /// Of the largest logits, those that are left.
    pub candidates: [Scratch; 2],
    last: Plan,
    /// The shape of the rows that were asked for; `None` when it was something else, or only the end.
    asked: Option<RowShape>,
}

impl<E: Executor> GpuBackend<E> {
    /// The backend on a device, with what every device can do.
    pub fn new(executor: E) -> Self {
        Self::with(executor, Kernels::default())
    }

    /// The backend on a device that can do what `kernels` ask for.
    pub fn with(executor: E, kernels: Kernels) -> Self {
        let tensor = Tensor::default;
        let (ids, normed, qkv, logits) = (tensor(), tensor(), tensor(), tensor());
        let (plan, last) = (Plan::default(), Plan::default());
        let device = Device::new(executor);
        let (codes, parts) = (Scratch::default(), Scratch::default());
        let inner = Inner {
            kernels,
            strict: false,
            device,
            plan,
            pos: 0,
            ids,
            normed,
            codes,
            coded: None,
            parts,
            qkv,
            logits,
            candidates: Default::default(),
            last,
            asked: None,
        };
        Self { inner: RefCell::new(inner) }
    }

    /// The variants it uses.
    pub fn kernels(&self) -> Kernels {
        self.inner.borrow().kernels
    }

    /// Goes on with other variants.
    pub fn set_kernels(&mut self, kernels: Kernels) {
        self.inner.get_mut().kernels = kernels;
    }

    /// The plan that ran last.
    pub fn last_plan(&self) -> Plan {
        self.inner.borrow().last.clone()
    }
}

impl<E: Executor> Inner<E> {
    /// Runs what has been asked for.
    fn flush(&mut self) -> Result<()> {
        let plan = std::mem::take(&mut self.plan);
        if plan.dispatches.is_empty() {
            return Ok(());
        }
        self.device.run(&plan, word(self.pos)?)?;
        self.last = plan;
        Ok(())
    }

    /// What is asked for from now on begins at position `pos`. A plan has one position.
    fn move_to(&mut self, pos: usize) -> Result<()> {
        if self.pos != pos && self.plan.dispatches.iter().any(|dispatch| dispatch.shader.reads_step()) {
            self.flush()?;
        }
        self.pos = pos;
        Ok(())
    }

    /// Runs what has been asked for, and asks for the first bytes of a buffer, or, without any, for the end.
    pub(crate) fn ask(&mut self, buffer: BufferId, bytes: u64) -> Result<()> {
        self.flush()?;
        self.asked = None;
        self.device.executor.ask(buffer, bytes)
    }

    /// Runs what has been asked for, and asks for rows.
    fn ask_rows(&mut self, buffer: BufferId, shape: RowShape) -> Result<()> {
        self.ask(buffer, shape.bytes())?;
        self.asked = Some(shape);
        Ok(())
    }

    /// `norm(x) * output` for some rows of `x`, in `self.logits`.
    pub(crate) fn product_of_rows(
        &mut self,
        x: &Tensor,
        rows: Range<usize>,
        norm: Norm<'_, Vector>,
        output: &Matrix,
    ) -> Result<BufferId> {
        let x = self.normalise(x, rows.clone(), norm, &[output.format])?;
        let to = self.logits.resize(&mut self.device, rows.len(), output.n)?;
        self.plan.linear(self.kernels, &x, output, &self.logits, 0, false)?;
        Ok(to)
    }
}

fn word(n: usize) -> Result<u32> {
    u32::try_from(n).or_else(|_| shape("GPU", format!("{n} is beyond 32 bits")))
}

/// Whether `x` has these rows.
pub(crate) fn check_rows(x: &Tensor, rows: &Range<usize>) -> Result<()> {
    if rows.start <= rows.end && rows.end <= x.rows {
        return Ok(());
    }
    shape("logits", format!("rows {rows:?} of {}", x.rows))
}

fn missing<T>(op: &str) -> Result<T> {
    Err(Error::gpu(format!("{op} is not there yet on the GPU; use the CPU")))
}

pub(crate) fn shape<T>(what: &str, problem: String) -> Result<T> {
    Err(Error::Shape { what: what.into(), problem })
}

impl<E: Executor> Backend for GpuBackend<E> {
    type Matrix = Matrix;
    type Vector = Vector;
    type Rope = Rope;
    type Tensor = Tensor;
    type Kv = Kv;

    fn matrix(&self, matrix: PackedMatrix) -> Result<Matrix> {
        Matrix::upload(&mut self.inner.borrow_mut().device.executor, &matrix)
    }

    fn vector(&self, values: Vec<f32>) -> Result<Vector> {
        let executor = &mut self.inner.borrow_mut().device.executor;
        let buffer = executor.buffer("parameters", values.len() as u64 * 4)?;
        executor.write(buffer, 0, bytemuck::cast_slice(&values));
        Ok(Vector { buffer, len: values.len() })
    }

    fn rope(&self, table: RopeTable) -> Result<Rope> {
        table.check()?;
        let positions = table.positions();
        let RopeTable { style, head_dim, mut cos, sin } = table;
        cos.extend(sin);
        let Vector { buffer, .. } = self.vector(cos)?;
        Ok(Rope { buffer, head_dim, positions, style })
    }

    fn set_strict(&mut self, strict: bool) {
        self.inner.get_mut().strict = strict;
    }

    fn tensor(&self) -> Tensor {
        Tensor::default()
    }

    fn kv(&self, heads: AttentionShape, capacity: usize) -> Result<Kv> {
        let AttentionShape { n_heads, n_kv_heads, head_dim, window } = heads;
        if window.is_some() {
            return missing("attention with a window");
        }
        if n_kv_heads == 0 || n_heads % n_kv_heads != 0 || head_dim % 2 != 0 || head_dim > MAX_HEAD_DIM {
            let problem = format!(
                "{n_heads} heads of {head_dim} over {n_kv_heads}; heads are even and at most {MAX_HEAD_DIM}"
            );
            return shape("attention on the GPU", problem);
        }
        let executor = &mut self.inner.borrow_mut().device.executor;
        let bytes = n_kv_heads as u64 * capacity as u64 * head_dim as u64 * 2;
        let (keys, values) = (executor.buffer("keys", bytes)?, executor.buffer("values", bytes)?);
        Ok(Kv { shape: heads, capacity, keys, values })
    }

    fn embed(&mut self, table: &Matrix, ids: &[u32], scale: f32, x: &mut Tensor) -> Result<()> {
        if let Some(id) = ids.iter().find(|id| **id as usize >= table.n) {
            return shape("embedding", format!("row {id} of {}", table.n));
        }
        let inner = self.inner.get_mut();
        inner.flush()?;
        inner.coded = None;
        let words = inner.ids.resize(&mut inner.device, 1, ids.len())?;
        inner.device.executor.write(words, 0, bytemuck::cast_slice(ids));
        let out = x.resize(&mut inner.device, ids.len(), table.k)?;
        for part in &table.parts {
            let mut params = table.words(part, 0).to_vec();
            params.extend([ids.len(), table.blocks(), table.k, x.stride()].map(|n| n as u32));
            params.extend([scale.to_bits(), 0, 0, 0]);
            let row = part.bytes / (part.tiles as u64 * 16);
            let cost = Cost { others: row * ids.len() as u64 + x.bytes(), ..Cost::default() };
            let workgroups = [table.k.div_ceil(4 * 64), ids.len()];
            inner.plan.push(
                Shader::Embed(table.format),
                &params,
                &[words, out, part.buffer],
                workgroups,
                cost,
            );
        }
        Ok(())
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
        let AttentionShape { n_heads, n_kv_heads, head_dim, .. } = kv.shape;
        let rope = heads.rope;
        if heads.norms.is_some() {
            return missing("norms of heads");
        }
        let (width, kv_width) = (n_heads * head_dim, n_kv_heads * head_dim);
        if qkv.map(|matrix| matrix.n) != [width, kv_width, kv_width] || rope.head_dim != head_dim {
            return shape(
                "attention",
                format!("matrices of {:?} for heads {:?}", qkv.map(|m| m.n), kv.shape),
            );
        }
        if pos.checked_add(x.rows).is_none_or(|end| end > rope.positions.min(kv.capacity)) {
            return shape("attention", format!("{} rows at {pos} for a cache of {}", x.rows, kv.capacity));
        }
        let inner = self.inner.get_mut();
        inner.move_to(pos)?;
        inner.attention_input(x, norm, qkv, rope, kv, queries)
    }

    fn attention(&mut self, queries: &Tensor, kv: &Kv, pos: usize, out: &mut Tensor) -> Result<()> {
        self.inner.get_mut().attention(queries, kv, pos, out)
    }

    fn linear_add(&mut self, y: &Tensor, matrix: &Matrix, x: &mut Tensor) -> Result<()> {
        if x.rows != y.rows || x.width != matrix.n {
            return shape("linear", format!("{} x {} plus {} x {}", x.rows, x.width, y.rows, matrix.n));
        }
        let inner = self.inner.get_mut();
        let y = inner.rows_of(y, &[matrix.format])?;
        inner.plan.linear(inner.kernels, &y, matrix, x, 0, true)
    }

    fn linear_norm_add(&mut self, _: &Tensor, _: &Matrix, _: Norm<'_, Vector>, _: &mut Tensor) -> Result<()> {
        missing("a product that is normalised")
    }

    fn gated(
        &mut self,
        x: &Tensor,
        norm: Norm<'_, Vector>,
        act: Gate,
        gate_up: [&Matrix; 2],
        out: &mut Tensor,
    ) -> Result<()> {
        let [gate, up] = gate_up;
        if gate.n != up.n {
            return shape("gated", format!("{} gates for {} values", gate.n, up.n));
        }
        let inner = self.inner.get_mut();
        inner.gated(x, norm, act, gate_up, out)
    }

    fn logits(
        &mut self,
        x: &Tensor,
        rows: Range<usize>,
        norm: Norm<'_, Vector>,
        output: &Matrix,
    ) -> Result<()> {
        check_rows(x, &rows)?;
        let inner = self.inner.get_mut();
        if rows.is_empty() {
            return inner.ask(x.buffer()?, 0);
        }
        let to = inner.product_of_rows(x, rows, norm, output)?;
        inner.ask_rows(to, inner.logits.shape())
    }

    fn top_k(
        &mut self,
        x: &Tensor,
        row: usize,
        norm: Norm<'_, Vector>,
        output: &Matrix,
        k: usize,
    ) -> Result<()> {
        self.inner.get_mut().top_k(x, row, norm, output, k)
    }

    fn take_top_k(&mut self, _: usize, top: &mut Vec<Candidate>) -> Poll<Result<()>> {
        self.inner.get_mut().take_top_k(top)
    }

    fn fetch(&mut self, x: &Tensor) -> Result<()> {
        self.inner.get_mut().ask_rows(x.buffer()?, x.shape())
    }

    fn take(&mut self, values: &mut Vec<f32>) -> Poll<Result<()>> {
        let inner = self.inner.get_mut();
        let bytes = ready!(inner.device.executor.take())?;
        values.clear();
        if let Some(RowShape { width, stride, .. }) = inner.asked {
            let all: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            values.extend(all.chunks_exact(stride).flat_map(|row| &row[..width]));
        }
        Poll::Ready(Ok(()))
    }
}
