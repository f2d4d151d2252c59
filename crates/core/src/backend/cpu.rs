//! The CPU: all threads of a team, the instructions of one ISA.
//!
//! An op is one job of the team, or two with many rows; what is small is done by the caller before or after a job.
//! Threads take tiles, rows and heads in turn. Nothing depends on who takes what.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use super::rows::{self, RowQueue};
use super::{AttentionShape, Backend, Gate, Heads, Norm, RopeTable};
use crate::activation::{Activations, QuantizedRows, Scaling};
use crate::candidates::{self, Candidate};
use crate::kernels::attention::{self, Attention, Kv};
use crate::kernels::matmul::{Output, Rows, Write, gated_tiles, matmul_tiles, scaling};
use crate::parallel::{Parts, Team};
use crate::simd::Isa;
use crate::{Error, Format, PackedMatrix, Result};

/// The CPU backend.
pub struct CpuBackend {
    isa: Isa,
    activations: Activations,
    team: Team,
    /// Normalised rows.
    normed: Vec<f32>,
    quantized: Quantized,
    keys: Vec<f32>,
    values: Vec<f32>,
    /// A product that is yet to be normalised.
    product: Vec<f32>,
    /// Results of parts of attention.
    states: Vec<f32>,
    /// What was asked for last.
    results: Vec<f32>,
    /// One a thread.
    scratch: Vec<Mutex<attention::Scratch>>,
}

/// Quantised rows, for matrices of either kind.
struct Quantized {
    /// A scale a block.
    blocks: QuantizedRows,
    /// A scale a row.
    rows: QuantizedRows,
}

impl Quantized {
    fn new(activations: Activations, of_rows: Scaling) -> Self {
        let with = |scaling| QuantizedRows::with(activations, scaling);
        Self { blocks: with(Scaling::Block), rows: with(of_rows) }
    }

    /// The rows that matrices of a format read.
    fn of(&self, format: Format) -> Option<&QuantizedRows> {
        [&self.blocks, &self.rows].into_iter().find(|rows| self.is_read(rows.scaling(), format))
    }

    fn is_read(&self, of_rows: Scaling, format: Format) -> bool {
        scaling(format, self.rows.scaling() == Scaling::Strict) == Some(of_rows)
    }
}

/// Activations `[rows][width]`.
#[derive(Clone, Debug, Default)]
pub struct Tensor {
    width: usize,
    data: Vec<f32>,
}

impl Tensor {
    fn rows(&self) -> usize {
        self.data.len() / self.width.max(1)
    }

    /// Gives it a shape; what it holds is not defined.
    fn resize(&mut self, rows: usize, width: usize) -> &mut [f32] {
        self.width = width;
        self.data.resize(rows * width, 0.0);
        &mut self.data
    }
}

impl CpuBackend {
    /// The backend on at most `threads` threads.
    ///
    /// # Errors
    /// [`Error::Isa`] when this machine or module lacks `isa`.
    pub fn new(isa: Isa, threads: usize, activations: Activations) -> Result<Self> {
        if !isa.is_available() {
            return Err(Error::Isa(format!("ISA {isa} is not available here; use {}", Isa::best())));
        }
        let team = Team::new(threads);
        Ok(Self {
            isa,
            activations,
            scratch: (0..team.threads()).map(|_| Mutex::default()).collect(),
            team,
            normed: Vec::new(),
            quantized: Quantized::new(activations, Scaling::Row),
            keys: Vec::new(),
            values: Vec::new(),
            product: Vec::new(),
            states: Vec::new(),
            results: Vec::new(),
        })
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads that run the ops.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }

    /// The precision of activations.
    pub fn activations(&self) -> Activations {
        self.activations
    }

    /// Prepares rows of `width` for products with `matrices`: normalises and quantises them as needed.
    fn prepare<const N: usize>(
        &mut self,
        x: &[f32],
        width: usize,
        norm: Option<Norm<'_, Vec<f32>>>,
        matrices: [&PackedMatrix; N],
    ) -> Result<()> {
        for matrix in matrices {
            if matrix.k != width {
                return shape("rows", format!("{width} values for a matrix of {} inputs", matrix.k));
            }
        }
        if let Some(norm) = norm {
            check_norm(norm, width)?;
        }
        let rows = x.len() / width.max(1);
        let Self { quantized, .. } = self;
        let wanted = |of: Scaling| matrices.iter().any(|matrix| quantized.is_read(of, matrix.format));
        let wanted = [quantized.blocks.scaling(), quantized.rows.scaling()].map(wanted);
        if norm.is_some() {
            self.normed.resize(x.len(), 0.0);
        }
        let normed = if norm.is_some() { &mut self.normed[..x.len()] } else { &mut [] };
        let Quantized { blocks, rows: of_rows } = &mut self.quantized;
        let [for_blocks, for_rows] = wanted;
        let quantized =
            [for_blocks.then(|| blocks.resize(rows, width)), for_rows.then(|| of_rows.resize(rows, width))];
        let queue = RowQueue::new(x, width, norm, normed, quantized);
        rows::prepare(&self.team, self.isa, queue)
    }
}

/// The prepared rows, in the form that a matrix reads.
#[derive(Clone, Copy)]
struct Prepared<'a> {
    quantized: &'a Quantized,
    floats: &'a [f32],
}

impl<'a> Prepared<'a> {
    fn for_matrix(self, matrix: &PackedMatrix) -> Rows<'a> {
        self.quantized.of(matrix.format).map_or(Rows::Float(self.floats), Rows::Quantized)
    }
}

/// Computes all tiles of the outputs.
fn multiply<const N: usize>(
    team: &Team,
    isa: Isa,
    x: Prepared<'_>,
    products: [(&PackedMatrix, Write, Output<'_>); N],
) -> Result<()> {
    let failure = Failure::default();
    team.run(&|thread| {
        let isa = isa.of_thread(thread);
        for claim in [Output::claim_own, Output::claim_any] {
            for (matrix, write, output) in &products {
                while let Some(tiles) = claim(output, thread) {
                    failure.note(matmul_tiles(isa, x.for_matrix(matrix), matrix, *write, tiles));
                }
            }
        }
    });
    failure.result()
}

impl Backend for CpuBackend {
    type Matrix = PackedMatrix;
    type Vector = Vec<f32>;
    type Rope = RopeTable;
    type Tensor = Tensor;
    type Kv = Kv;

    fn matrix(&self, matrix: PackedMatrix) -> Result<PackedMatrix> {
        Ok(matrix)
    }

    fn vector(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }

    fn rope(&self, table: RopeTable) -> Result<RopeTable> {
        table.check()?;
        Ok(table)
    }

    fn set_strict(&mut self, strict: bool) {
        let scaling = if strict { Scaling::Strict } else { Scaling::Row };
        self.quantized = Quantized::new(self.activations, scaling);
    }

    fn tensor(&self) -> Tensor {
        Tensor::default()
    }

    fn kv(&self, shape: AttentionShape, capacity: usize) -> Result<Kv> {
        Kv::new(shape, capacity)
    }

    fn embed(&mut self, table: &PackedMatrix, ids: &[u32], scale: f32, x: &mut Tensor) -> Result<()> {
        let width = table.k;
        if let Some(id) = ids.iter().find(|id| **id as usize >= table.n) {
            return shape("embedding", format!("row {id} of {}", table.n));
        }
        let out = x.resize(ids.len(), width);
        // One row is cheaper than a job.
        let rows = Parts::new(out, width);
        let embed_rows = || {
            while let Some((row, out)) = rows.take() {
                table.dequantize_row(ids[row] as usize, out);
                out.iter_mut().for_each(|x| *x *= scale);
            }
        };
        if ids.len() == 1 {
            embed_rows()
        } else {
            self.team.run(&|_| embed_rows())
        }
        Ok(())
    }

    fn attention_input(
        &mut self,
        x: &Tensor,
        norm: Norm<'_, Vec<f32>>,
        qkv: [&PackedMatrix; 3],
        heads: Heads<'_, RopeTable, Vec<f32>>,
        pos: usize,
        kv: &mut Kv,
        queries: &mut Tensor,
    ) -> Result<()> {
        let (rows, rope) = (x.rows(), heads.rope);
        let AttentionShape { n_heads, n_kv_heads, head_dim, .. } = kv.shape();
        let (width, kv_width) = (n_heads * head_dim, n_kv_heads * head_dim);
        if qkv.map(|matrix| matrix.n) != [width, kv_width, kv_width] || rope.head_dim != head_dim {
            return shape(
                "attention",
                format!("matrices of {:?} for heads {:?}", qkv.map(|m| m.n), kv.shape()),
            );
        }
        if pos.checked_add(rows).is_none_or(|end| end > rope.positions()) {
            return shape("rope", format!("{rows} rows at {pos} for a table of {}", rope.positions()));
        }
        heads.norms.into_iter().flatten().try_for_each(|norm| check_norm(norm, head_dim))?;
        self.prepare(&x.data, x.width, Some(norm), qkv)?;
        let Self { team, isa, normed, quantized, keys, values, .. } = self;
        let (team, isa) = (&*team, *isa);
        let queries = queries.resize(rows, width);
        keys.resize(rows * kv_width, 0.0);
        values.resize(rows * kv_width, 0.0);
        let [q, k, v] = qkv;
        let threads = team.threads();
        let products = [
            (q, Write::Store, Output::new(queries, rows, width, threads)?),
            (k, Write::Store, Output::new(keys, rows, kv_width, threads)?),
            (v, Write::Store, Output::new(values, rows, kv_width, threads)?),
        ];
        multiply(team, isa, Prepared { quantized, floats: &normed[..x.data.len()] }, products)?;
        rows::rotate_and_append(team, isa, heads, pos, queries, keys, values, kv)
    }

    fn attention(&mut self, queries: &Tensor, kv: &Kv, pos: usize, out: &mut Tensor) -> Result<()> {
        let Self { team, isa, states, scratch, .. } = self;
        let (isa, scratch) = (*isa, &*scratch);
        let attention = Attention::new(&queries.data, kv, pos)?;
        let out = out.resize(queries.rows(), queries.width);
        if team.threads() > 1
            && let Some(parts) = attention.parts()
        {
            states.resize(parts.count() * parts.state_len(), 0.0);
            let slices = Parts::new(states, parts.state_len());
            team.run(&|thread| {
                let mut scratch = lock(&scratch[thread]);
                while let Some((index, state)) = slices.take() {
                    parts.compute(isa, &mut scratch, index, state);
                }
            });
            return parts.merge(isa, &mut lock(&scratch[0]), states, out);
        }
        let cells = attention.cells(out)?;
        team.run(&|thread| {
            let mut scratch = lock(&scratch[thread]);
            while let Some(cell) = cells.take() {
                cell.compute(isa, &mut scratch);
            }
        });
        Ok(())
    }

    fn linear_add(&mut self, y: &Tensor, matrix: &PackedMatrix, x: &mut Tensor) -> Result<()> {
        check_sum(x, y, matrix)?;
        self.prepare(&y.data, y.width, None, [matrix])?;
        let output = Output::new(&mut x.data, y.rows(), matrix.n, self.team.threads())?;
        let prepared = Prepared { quantized: &self.quantized, floats: &y.data };
        multiply(&self.team, self.isa, prepared, [(matrix, Write::Add, output)])
    }

    fn linear_norm_add(
        &mut self,
        y: &Tensor,
        matrix: &PackedMatrix,
        norm: Norm<'_, Vec<f32>>,
        x: &mut Tensor,
    ) -> Result<()> {
        check_sum(x, y, matrix)?;
        check_norm(norm, x.width)?;
        self.prepare(&y.data, y.width, None, [matrix])?;
        self.product.resize(x.data.len(), 0.0);
        let output = Output::new(&mut self.product, y.rows(), matrix.n, self.team.threads())?;
        let prepared = Prepared { quantized: &self.quantized, floats: &y.data };
        multiply(&self.team, self.isa, prepared, [(matrix, Write::Store, output)])?;
        rows::add_normalised(&self.team, self.isa, norm, &self.product, &mut x.data);
        Ok(())
    }

    fn gated(
        &mut self,
        x: &Tensor,
        norm: Norm<'_, Vec<f32>>,
        act: Gate,
        gate_up: [&PackedMatrix; 2],
        out: &mut Tensor,
    ) -> Result<()> {
        let [gate, up] = gate_up;
        if gate.n != up.n {
            return shape("gated", format!("{} gates for {} values", gate.n, up.n));
        }
        self.prepare(&x.data, x.width, Some(norm), gate_up)?;
        let rows = x.rows();
        let output = Output::new(out.resize(rows, gate.n), rows, gate.n, self.team.threads())?;
        let prepared = Prepared { quantized: &self.quantized, floats: &self.normed[..x.data.len()] };
        let (failure, isa) = (Failure::default(), self.isa);
        self.team.run(&|thread| {
            let isa = isa.of_thread(thread);
            let (gate, up) = ((prepared.for_matrix(gate), gate), (prepared.for_matrix(up), up));
            while let Some(tiles) = output.claim_own(thread).or_else(|| output.claim_any(thread)) {
                failure.note(gated_tiles(isa, gate, up, act, tiles));
            }
        });
        failure.result()
    }

    fn logits(
        &mut self,
        x: &Tensor,
        rows: Range<usize>,
        norm: Norm<'_, Vec<f32>>,
        output: &PackedMatrix,
    ) -> Result<()> {
        if rows.start > rows.end || rows.end > x.rows() {
            return shape("logits", format!("rows {rows:?} of {}", x.rows()));
        }
        if rows.is_empty() {
            self.results.clear();
            return Ok(());
        }
        let wanted = &x.data[rows.start * x.width..rows.end * x.width];
        self.prepare(wanted, x.width, Some(norm), [output])?;
        self.results.resize(rows.len() * output.n, 0.0);
        let out = Output::new(&mut self.results, rows.len(), output.n, self.team.threads())?;
        let prepared = Prepared { quantized: &self.quantized, floats: &self.normed[..wanted.len()] };
        multiply(&self.team, self.isa, prepared, [(output, Write::Store, out)])
    }

    fn fetch(&mut self, x: &Tensor) -> Result<()> {
        self.results.clone_from(&x.data);
        Ok(())
    }

    fn take_top_k(&mut self, k: usize, top: &mut Vec<Candidate>) -> Poll<Result<()>> {
        candidates::top_k(&self.results, k, top);
        Poll::Ready(Ok(()))
    }

    fn take(&mut self, values: &mut Vec<f32>) -> Poll<Result<()>> {
        std::mem::swap(values, &mut self.results);
        Poll::Ready(Ok(()))
    }
}

fn check_norm(norm: Norm<'_, Vec<f32>>, width: usize) -> Result<()> {
    if norm.weight.len() == width {
        return Ok(());
    }
    shape("norm", format!("{} weights for rows of {width}", norm.weight.len()))
}

/// Whether rows of `y * matrix` can be added to those of `x`.
fn check_sum(x: &Tensor, y: &Tensor, matrix: &PackedMatrix) -> Result<()> {
    if x.rows() == y.rows() && x.width == matrix.n {
        return Ok(());
    }
    shape("linear", format!("{} x {} plus {} x {}", x.rows(), x.width, y.rows(), matrix.n))
}

fn shape<T>(what: &str, problem: String) -> Result<T> {
    Err(Error::Shape { what: what.into(), problem })
}

/// The first error of the threads of a job.
#[derive(Default)]
pub(super) struct Failure(Mutex<Option<Error>>);

impl Failure {
    /// Keeps the error, if it is the first.
    pub(super) fn note(&self, result: Result<()>) {
        if let Err(error) = result {
            lock(&self.0).get_or_insert(error);
        }
    }

    pub(super) fn result(self) -> Result<()> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

/// Locks; a panic leaves nothing behind that the next op relies on.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
