//! Where a product goes: a row-major matrix whose columns several threads write at the same time.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::quantized::STREAMS;
use crate::backend::Gate;
use crate::format::TILE_N;
use crate::kernels::gate::gated;
use crate::simd::{Dot, Kernel, LANES};
use crate::{Error, Result};

/// What becomes of a product `v` that is to go where `out` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// `out = v`
    Store,
    /// `out = out + v`
    Add,
    /// `out = act(out) * v`: the product with `up` where that with `gate` is.
    Gate(Gate),
}

/// A matrix `[rows][n]` being written. Each of its tiles is handed out once: to one thread.
#[derive(Debug)]
pub struct Output<'a> {
    data: *mut f32,
    rows: usize,
    n: usize,
    next: AtomicUsize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: all access is through `Tiles`, which own disjoint columns of `data`, and `next` is atomic.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// The matrix `data`, `[rows][n]`.
    ///
    /// # Errors
    /// [`Error::Shape`] when `data` is not of that size.
    pub fn new(data: &'a mut [f32], rows: usize, n: usize) -> Result<Self> {
        if rows.checked_mul(n) != Some(data.len()) {
            let problem = format!("{} values for {rows} x {n}", data.len());
            return Err(Error::Shape { what: "output".into(), problem });
        }
        Ok(Self { data: data.as_mut_ptr(), rows, n, next: AtomicUsize::new(0), lifetime: PhantomData })
    }

    /// Number of tiles.
    pub fn tiles(&self) -> usize {
        self.n.div_ceil(TILE_N)
    }

    /// The next `count` tiles (fewer at the end) that nobody has claimed yet; `None` when all are claimed.
    pub fn claim(&self, count: usize) -> Option<Tiles<'_>> {
        self.claim_of_rest(|_| count)
    }

    /// Three quarters of one thread's share of the tiles that nobody has claimed yet, but at least one, or as many as
    /// take turns with a single row; `None` when all are claimed. Pieces shrink towards the end, so that `threads` threads
    /// read long runs of weights and yet end together.
    pub fn claim_share(&self, threads: usize) -> Option<Tiles<'_>> {
        let least = if self.rows == 1 { STREAMS } else { 1 };
        match threads {
            0 | 1 => self.claim(usize::MAX),
            _ => self.claim_of_rest(|rest| (rest * 3 / (4 * threads)).max(least)),
        }
    }

    /// The next `count(rest)` tiles (at least one), `rest` being the number of tiles that nobody has claimed yet.
    fn claim_of_rest(&self, count: impl Fn(usize) -> usize) -> Option<Tiles<'_>> {
        let tiles = self.tiles();
        let end = |first: usize| first + count(tiles - first).clamp(1, tiles - first);
        let claimed = |first| (first < tiles).then(|| end(first));
        let first = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claimed).ok()?;
        Some(Tiles { output: self, range: first..end(first) })
    }
}

/// Some neighbouring tiles of an [`Output`], owned: nobody else reads or writes them.
#[derive(Debug)]
pub struct Tiles<'a> {
    output: &'a Output<'a>,
    range: Range<usize>,
}

impl Tiles<'_> {
    /// Rows of the output.
    pub fn rows(&self) -> usize {
        self.output.rows
    }

    /// The same tiles again, for another product once this one is written.
    pub fn again(&mut self) -> Tiles<'_> {
        Tiles { output: self.output, range: self.range.clone() }
    }

    /// Columns of the whole output.
    pub fn n(&self) -> usize {
        self.output.n
    }

    /// Which tiles.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Writes rows `row..` of tile `tile`; lanes past the last column are dropped.
    #[inline(always)]
    pub(super) fn write<S: Dot>(
        &mut self,
        s: S,
        row: usize,
        tile: usize,
        values: &[[f32; LANES]],
        write: Write,
    ) {
        s.call(WriteRows { tiles: self.again(), row, tile, values, write });
    }

    /// Columns of tile `tile` in row `row`.
    #[inline(always)]
    fn columns(&mut self, row: usize, tile: usize) -> &mut [f32] {
        assert!(row < self.rows() && self.range.contains(&tile), "outside the claimed tiles");
        let column = tile * TILE_N;
        let width = TILE_N.min(self.n() - column);
        // SAFETY: `row` and the `width` columns from `column` lie inside the output, which `Output::new` was lent
        // mutably; the columns belong to this claim alone.
        unsafe { std::slice::from_raw_parts_mut(self.output.data.add(row * self.n() + column), width) }
    }
}

/// [`Tiles::write`], as a function of its own.
struct WriteRows<'a> {
    tiles: Tiles<'a>,
    row: usize,
    tile: usize,
    values: &'a [[f32; LANES]],
    write: Write,
}

impl Kernel for WriteRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(mut self, s: S) {
        for (r, values) in self.values.iter().enumerate() {
            let out = self.tiles.columns(self.row + r, self.tile);
            let v = s.load(values);
            if let Ok(out) = <&mut [f32; LANES]>::try_from(&mut *out) {
                let v = combine(s, s.load(out), v, self.write);
                s.store(v, out);
            } else {
                let mut padded = [0.0; LANES];
                let width = out.len();
                padded[..width].copy_from_slice(out);
                let v = combine(s, s.load(&padded), v, self.write);
                s.store(v, &mut padded);
                out.copy_from_slice(&padded[..width]);
            }
        }
    }
}

#[inline(always)]
fn combine<S: Dot>(s: S, out: S::F32, v: S::F32, write: Write) -> S::F32 {
    match write {
        Write::Store => v,
        Write::Add => s.add(out, v),
        Write::Gate(act) => gated(s, act, out, v),
    }
}
