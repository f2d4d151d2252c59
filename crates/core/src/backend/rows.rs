//! The CPU's work on rows, between the products.

use std::sync::Mutex;

use super::cpu::{Failure, lock};
use super::{Heads, Norm, RopeTable};
use crate::Result;
use crate::activation::{PANEL, RowsMut};
use crate::kernels::attention::{Kv, KvHead};
use crate::kernels::norm::{add_rms_norm, rms_norm};
use crate::kernels::rope::rope;
use crate::parallel::{Parts, Team};
use crate::simd::{Dot, Isa, Kernel, Simd, dispatch};

/// Rows that a thread rotates at once.
const ROWS_AT_ONCE: usize = 8;
/// Values below which a job costs more than it saves.
const ALONE: usize = 4096;

/// Rows to be normalised, quantised, or both.
pub(super) struct RowQueue<'a> {
    width: usize,
    norm: Option<Norm<'a, Vec<f32>>>,
    rest: Part<'a>,
}

/// Some of them.
struct Part<'a> {
    x: &'a [f32],
    /// As `x`, when rows are normalised, else empty.
    normed: &'a mut [f32],
    quantized: [Option<RowsMut<'a>>; 2],
}

impl<'a> RowQueue<'a> {
    pub(super) fn new(
        x: &'a [f32],
        width: usize,
        norm: Option<Norm<'a, Vec<f32>>>,
        normed: &'a mut [f32],
        quantized: [Option<RowsMut<'a>>; 2],
    ) -> Self {
        Self { width, norm, rest: Part { x, normed, quantized } }
    }

    /// The rows of the next panels.
    fn take(&mut self, panels: usize) -> Option<Part<'a>> {
        let count = panels.saturating_mul(PANEL).min(self.rest.x.len() / self.width.max(1));
        if count == 0 {
            return None;
        }
        let (x, x_rest) = self.rest.x.split_at(count * self.width);
        let normed = std::mem::take(&mut self.rest.normed);
        let (normed, normed_rest) = normed.split_at_mut(normed.len().min(count * self.width));
        let mut quantized = [None, None];
        for (quantized, rest) in quantized.iter_mut().zip(&mut self.rest.quantized) {
            if let Some(rows) = rest.take() {
                let (first, others) = rows.split_at(panels);
                (*quantized, *rest) = (Some(first), Some(others));
            }
        }
        (self.rest.x, self.rest.normed) = (x_rest, normed_rest);
        Some(Part { x, normed, quantized })
    }
}

/// Normalises and quantises all rows.
pub(super) fn prepare(team: &Team, isa: Isa, mut queue: RowQueue<'_>) -> Result<()> {
    let (width, norm) = (queue.width, queue.norm);
    if norm.is_none() && queue.rest.quantized.iter().all(Option::is_none) {
        return Ok(());
    }
    if queue.rest.x.len() <= ALONE {
        return match queue.take(usize::MAX) {
            Some(part) => dispatch(isa, Prepare { width, norm, part }),
            None => Ok(()),
        };
    }
    let (queue, failure) = (Mutex::new(queue), Failure::default());
    team.run(&|_| {
        loop {
            // The lock is for taking rows only.
            let part = lock(&queue).take(1);
            let Some(part) = part else { return };
            failure.note(dispatch(isa, Prepare { width, norm, part }));
        }
    });
    failure.result()
}

struct Prepare<'a> {
    width: usize,
    norm: Option<Norm<'a, Vec<f32>>>,
    part: Part<'a>,
}

impl Kernel for Prepare<'_> {
    type Output = Result<()>;

    #[inline(always)]
    fn run<S: Simd + Dot>(self, s: S) -> Result<()> {
        let Self { width, norm, part: Part { x, normed, quantized } } = self;
        let mut prepared = x;
        if let Some(norm) = norm {
            for (x, out) in x.chunks_exact(width).zip(normed.chunks_exact_mut(width)) {
                rms_norm(s, x, norm.weight, norm.eps, out);
            }
            prepared = normed;
        }
        // No closure: it may be compiled without the ISA's instructions.
        for rows in quantized.into_iter().flatten() {
            rows.quantize(s, prepared)?;
        }
        Ok(())
    }
}

/// `x += norm(y)` for all rows.
pub(super) fn add_normalised(team: &Team, isa: Isa, norm: Norm<'_, Vec<f32>>, y: &[f32], x: &mut [f32]) {
    let width = norm.weight.len();
    let alone = x.len() <= ALONE;
    let rows = Parts::new(x, width);
    let work = |_| {
        while let Some((row, x)) = rows.take() {
            dispatch(isa, AddNormalised { norm, y: &y[row * width..][..width], x });
        }
    };
    if alone { work(0) } else { team.run(&work) }
}

struct AddNormalised<'a> {
    norm: Norm<'a, Vec<f32>>,
    y: &'a [f32],
    x: &'a mut [f32],
}

impl Kernel for AddNormalised<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd + Dot>(self, s: S) {
        add_rms_norm(s, self.y, self.norm.weight, self.norm.eps, self.x);
    }
}

/// Normalises, where there are norms, and rotates the queries and keys of positions `pos..`, and appends keys and values to
/// the cache.
#[expect(clippy::too_many_arguments, reason = "the operands of one op")]
pub(super) fn rotate_and_append(
    team: &Team,
    isa: Isa,
    heads: Heads<'_, RopeTable, Vec<f32>>,
    pos: usize,
    queries: &mut [f32],
    keys: &[f32],
    values: &[f32],
    kv: &mut Kv,
) -> Result<()> {
    let shape = kv.shape();
    let width = shape.n_heads * shape.head_dim;
    let rows = queries.len() / width;
    let writer = kv.writer();
    writer.check(pos..pos + rows, keys, values)?;
    let alone = queries.len() <= ALONE;
    let queries = Parts::new(queries, ROWS_AT_ONCE * width);
    let kv_width = shape.n_kv_heads * shape.head_dim;
    let [query_norm, key_norm] = heads.norms.map_or([None; 2], |norms| norms.map(Some));
    let table = heads.rope;
    let work = |_| {
        while let Some(head) = writer.take() {
            dispatch(isa, Append { norm: key_norm, table, pos, head, width: kv_width, keys, values });
        }
        while let Some((part, rows)) = queries.take() {
            dispatch(isa, Rotate { norm: query_norm, table, pos: pos + part * ROWS_AT_ONCE, width, rows });
        }
    };
    if alone {
        work(0)
    } else {
        team.run(&work)
    }
    Ok(())
}

struct Rotate<'a> {
    norm: Option<Norm<'a, Vec<f32>>>,
    table: &'a RopeTable,
    pos: usize,
    width: usize,
    rows: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd + Dot>(self, s: S) {
        let mut query = Vec::new();
        for (row, heads) in self.rows.chunks_exact_mut(self.width).enumerate() {
            if let Some(norm) = self.norm {
                for head in heads.chunks_exact_mut(self.table.head_dim) {
                    query.clear();
                    query.extend_from_slice(head);
                    rms_norm(s, &query, norm.weight, norm.eps, head);
                }
            }
            rope(self.table, self.pos + row, heads);
        }
    }
}

/// Normalises, where there is a norm, and rotates the keys of one head and writes them, and its values, to the cache.
struct Append<'a> {
    norm: Option<Norm<'a, Vec<f32>>>,
    table: &'a RopeTable,
    pos: usize,
    head: KvHead<'a>,
    width: usize,
    keys: &'a [f32],
    values: &'a [f32],
}

impl Kernel for Append<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd + Dot>(self, s: S) {
        let Self { norm, table, pos, mut head, width, keys, values } = self;
        let columns = head.index * table.head_dim..(head.index + 1) * table.head_dim;
        let (mut small, mut large) = ([0.0; 256], Vec::new());
        let key = if let Some(key) = small.get_mut(..table.head_dim) {
            key
        } else {
            large.resize(table.head_dim, 0.0);
            &mut large
        };
        for (row, (keys, values)) in keys.chunks_exact(width).zip(values.chunks_exact(width)).enumerate() {
            let product = &keys[columns.clone()];
            match norm {
                Some(norm) => rms_norm(s, product, norm.weight, norm.eps, key),
                None => key.copy_from_slice(product),
            }
            rope(table, pos + row, key);
            head.write(s, pos + row, key, &values[columns.clone()]);
        }
    }
}
