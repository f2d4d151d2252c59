//! The result of attention, cut into cells that several threads compute at the same time.

use std::marker::PhantomData;

use super::{Attention, Scratch, Unit};
use crate::parallel::Chunks;
use crate::simd::Isa;
use crate::{Error, Result};

/// The cells of one result, each handed out once, the longest first.
pub struct Cells<'a> {
    attention: Attention<'a>,
    out: *mut f32,
    numbers: Chunks,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: `out` is written only through cells, which own disjoint parts of it; all else is shared safely.
unsafe impl Sync for Cells<'_> {}

/// The query heads of one kv head in the rows that lie in one tile of positions.
pub struct Cell<'a> {
    cells: &'a Cells<'a>,
    unit: Unit,
}

impl<'a> Cells<'a> {
    pub(super) fn new(attention: Attention<'a>, out: &'a mut [f32]) -> Result<Self> {
        if out.len() != attention.queries.len() {
            let problem = format!("{} values for {} queries", out.len(), attention.queries.len());
            return Err(Error::Shape { what: "attention".into(), problem });
        }
        let count = attention.row_tiles() * attention.kv.shape().n_kv_heads;
        Ok(Self { attention, out: out.as_mut_ptr(), numbers: Chunks::new(count, 1), lifetime: PhantomData })
    }

    /// A cell that nobody has taken.
    pub fn take(&self) -> Option<Cell<'_>> {
        let index = self.numbers.take()?.start;
        let n_kv_heads = self.attention.kv.shape().n_kv_heads;
        let rows = self.attention.rows_of_tile(self.attention.row_tiles() - 1 - index / n_kv_heads);
        Some(Cell { cells: self, unit: Unit { kv_head: index % n_kv_heads, rows } })
    }
}

impl Cell<'_> {
    /// Computes the cell.
    pub fn compute(mut self, isa: Isa, scratch: &mut Scratch) {
        let attention = self.cells.attention;
        let queries = attention.queries_of(&self.unit);
        attention.start(queries, &mut scratch.total);
        scratch.segment.resize(attention.state_len(queries), 0.0);
        let rows = &self.unit.rows;
        let segments = attention.segments(rows.start, rows.end - 1);
        for segment in segments.clone() {
            let first = segment == segments.start;
            let Scratch { tile, segment: state, .. } = &mut *scratch;
            attention.segment(isa, &self.unit, segment, first, tile, state);
            attention.fold(isa, queries, &mut scratch.total, &scratch.segment);
        }
        self.finish(&scratch.total);
    }

    /// Writes the results of the state of the cell's queries.
    pub(super) fn finish(&mut self, total: &[f32]) {
        let kv = self.cells.attention.kv;
        let queries = self.cells.attention.queries_of(&self.unit);
        let (results, sums) = (total, &total[queries * (kv.width() + 1)..]);
        for (query, result) in results.chunks_exact(kv.width()).take(queries).enumerate() {
            let factor = 1.0 / sums[query];
            for (out, x) in self.head(query / kv.group(), query % kv.group()).iter_mut().zip(result) {
                *out = x * factor;
            }
        }
    }

    /// The result of the cell's row `row` and the group's head `head`.
    fn head(&mut self, row: usize, head: usize) -> &mut [f32] {
        let shape = self.cells.attention.kv.shape();
        let group = self.cells.attention.kv.group();
        assert!(row < self.unit.rows.len() && head < group, "outside the cell");
        let head = self.unit.kv_head * group + head;
        let start = ((self.unit.rows.start + row) * shape.n_heads + head) * shape.head_dim;
        // SAFETY: rows and heads of the unit lie inside the output, whose size `Cells::new` has checked and which was
        // lent mutably; they belong to this cell alone.
        unsafe { std::slice::from_raw_parts_mut(self.cells.out.add(start), shape.head_dim) }
    }
}
