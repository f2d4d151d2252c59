//! Causal grouped-query attention over a cache of halves, with the online softmax (Milakov and Gimelshein 2018, Dao et
//! al. 2022): no matrix of scores is kept.
//!
//! Positions are taken in tiles of 16 and segments of 8 tiles, both counted from position 0. A query visits the tiles
//! of a segment in order; the segments are added in order. So a result depends on the query's position alone: neither
//! on the chunk of the prompt that it comes in nor on the threads, which may compute segments apart. What lies before a
//! query's window has weight zero, and a segment of which it sees nothing changes nothing.

mod cells;
mod kv;
#[cfg(test)]
mod tests;
mod tile;

use std::ops::Range;

pub use cells::{Cell, Cells};
pub use kv::{Kv, KvHead, KvWriter};

use crate::simd::{Isa, LANES, dispatch};
use crate::{Error, Result};

/// Positions of a tile: one a lane.
pub const TILE: usize = LANES;
/// Tiles of a segment.
const SEGMENT: usize = 8;
/// Positions of a segment.
const SEGMENT_LEN: usize = TILE * SEGMENT;

/// Queries `[row][n_heads * head_dim]` at positions `pos..pos + rows`, and the cache that they look at.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    kv: &'a Kv,
    queries: &'a [f32],
    pos: usize,
    rows: usize,
}

/// The query heads of one kv head in rows that lie in one tile of positions: `[row][head of the group]`.
#[derive(Clone, Debug)]
struct Unit {
    kv_head: usize,
    rows: Range<usize>,
}

/// What one thread needs. It keeps its memory from call to call.
#[derive(Default)]
pub struct Scratch {
    tile: tile::Scratch,
    segment: Vec<f32>,
    total: Vec<f32>,
}

impl<'a> Attention<'a> {
    /// Positions below `pos + rows` must have been written to `kv`.
    ///
    /// # Errors
    /// [`Error::Shape`] when the queries are not rows of `kv`'s heads or lie past its end.
    pub fn new(queries: &'a [f32], kv: &'a Kv, pos: usize) -> Result<Self> {
        let width = kv.shape().n_heads * kv.shape().head_dim;
        let rows = queries.len() / width;
        if !queries.len().is_multiple_of(width) || pos.checked_add(rows).is_none_or(|end| end > kv.capacity())
        {
            let (len, capacity) = (queries.len(), kv.capacity());
            let problem = format!("{len} values at {pos} for rows of {width} and {capacity} positions");
            return Err(Error::Shape { what: "queries".into(), problem });
        }
        Ok(Self { kv, queries, pos, rows })
    }

    /// The units of work for whole results, each to be computed once; `out` is like the queries.
    ///
    /// # Errors
    /// [`Error::Shape`] when `out` is not of their size.
    pub fn cells(self, out: &'a mut [f32]) -> Result<Cells<'a>> {
        Cells::new(self, out)
    }

    /// Tiles of positions that the rows lie in.
    fn row_tiles(&self) -> usize {
        if self.rows == 0 { 0 } else { (self.pos + self.rows - 1) / TILE - self.pos / TILE + 1 }
    }

    /// The rows whose positions lie in the `index`-th of those tiles.
    fn rows_of_tile(&self, index: usize) -> Range<usize> {
        let start = (self.pos / TILE + index) * TILE;
        start.saturating_sub(self.pos)..(start + TILE - self.pos).min(self.rows)
    }

    /// The first position that row `row` sees.
    fn first_seen(&self, row: usize) -> usize {
        self.kv.shape().first_seen(self.pos + row)
    }

    /// The segments that the rows from `first` to `last` look at.
    fn segments(&self, first: usize, last: usize) -> Range<usize> {
        self.first_seen(first) / SEGMENT_LEN..(self.pos + last) / SEGMENT_LEN + 1
    }

    /// The tile of positions that a unit's rows lie in.
    fn tile_of(&self, unit: &Unit) -> usize {
        (self.pos + unit.rows.start) / TILE
    }

    /// Queries of a unit.
    fn queries_of(&self, unit: &Unit) -> usize {
        unit.rows.len() * self.kv.group()
    }

    /// Floats of the state of so many queries: results so far `[query][width]`, largest scores, sums of weights.
    fn state_len(&self, queries: usize) -> usize {
        queries * (self.kv.width() + 2)
    }

    /// The state of a unit's queries after one segment alone.
    fn segment(
        &self,
        isa: Isa,
        unit: &Unit,
        segment: usize,
        first: bool,
        scratch: &mut tile::Scratch,
        state: &mut [f32],
    ) {
        dispatch(isa, tile::Segment { attention: self, unit, segment, first, scratch, state });
    }

    /// Adds the next segment to the state of `queries` queries.
    fn fold(&self, isa: Isa, queries: usize, total: &mut [f32], segment: &[f32]) {
        dispatch(isa, tile::Fold { width: self.kv.width(), queries, total, segment });
    }

    /// The state before the first segment.
    fn start(&self, queries: usize, total: &mut Vec<f32>) {
        total.clear();
        total.resize(queries * self.kv.width(), 0.0);
        total.resize(queries * (self.kv.width() + 1), f32::NEG_INFINITY);
        total.resize(self.state_len(queries), 0.0);
    }
}

/// Few rows: their segments are computed apart, by several threads, and then put together.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    attention: Attention<'a>,
    first_segment: usize,
    segments: usize,
}

impl<'a> Attention<'a> {
    /// The work in parts, if all rows lie in one tile of positions and look at several segments.
    pub fn parts(self) -> Option<Parts<'a>> {
        if self.row_tiles() != 1 {
            return None;
        }
        let segments = self.segments(0, self.rows - 1);
        let parts = Parts { attention: self, first_segment: segments.start, segments: segments.len() };
        (parts.segments > 1).then_some(parts)
    }
}

impl Parts<'_> {
    /// Number of parts.
    pub fn count(&self) -> usize {
        self.attention.kv.shape().n_kv_heads * self.segments
    }

    /// Floats of the result of one part.
    pub fn state_len(&self) -> usize {
        self.attention.state_len(self.attention.queries_of(&self.unit(0)))
    }

    fn unit(&self, kv_head: usize) -> Unit {
        Unit { kv_head, rows: 0..self.attention.rows }
    }

    /// Computes part `index` into `state`, [`Parts::state_len`] floats.
    pub fn compute(&self, isa: Isa, scratch: &mut Scratch, index: usize, state: &mut [f32]) {
        let unit = self.unit(index / self.segments);
        let segment = self.first_segment + index % self.segments;
        self.attention.segment(isa, &unit, segment, true, &mut scratch.tile, state);
    }

    /// Puts the states of all parts, in their order, together.
    ///
    /// # Errors
    /// [`Error::Shape`] when `out` is not like the queries.
    pub fn merge(&self, isa: Isa, scratch: &mut Scratch, states: &[f32], out: &mut [f32]) -> Result<()> {
        let cells = self.attention.cells(out)?;
        let queries = self.attention.queries_of(&self.unit(0));
        let mut heads = states.chunks_exact(self.state_len() * self.segments);
        // The cells of one tile of rows come in the order of their heads.
        while let (Some(mut cell), Some(segments)) = (cells.take(), heads.next()) {
            self.attention.start(queries, &mut scratch.total);
            for segment in segments.chunks_exact(self.state_len()) {
                self.attention.fold(isa, queries, &mut scratch.total, segment);
            }
            cell.finish(&scratch.total);
        }
        Ok(())
    }
}
