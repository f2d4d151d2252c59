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

/// Most parts of an [`Output`].
const MAX_PARTS: usize = 16;

/// A matrix `[rows][n]` being written. Each of its tiles is handed out once: to one thread.
///
/// Its tiles lie in equal parts, a part a thread, which takes of the others only once its own is gone: so that it finds
/// most of the weights it reads in the caches near to it, where it has left them a token before.
#[derive(Debug)]
pub struct Output<'a> {
    data: *mut f32,
    rows: usize,
    n: usize,
    parts: usize,
    /// Tiles claimed of each part.
    claimed: [AtomicUsize; MAX_PARTS],
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: all access is through `Tiles`, which own disjoint columns of `data`, and `claimed` is atomic.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// The matrix `data`, `[rows][n]`, for `threads` threads to write.
    ///
    /// # Errors
    /// [`Error::Shape`] when `data` is not of that size.
    pub fn new(data: &'a mut [f32], rows: usize, n: usize, threads: usize) -> Result<Self> {
        if rows.checked_mul(n) != Some(data.len()) {
            let problem = format!("{} values for {rows} x {n}", data.len());
            return Err(Error::Shape { what: "output".into(), problem });
        }
        Ok(Self {
            data: data.as_mut_ptr(),
            rows,
            n,
            parts: threads.clamp(1, MAX_PARTS),
            claimed: [const { AtomicUsize::new(0) }; MAX_PARTS],
            lifetime: PhantomData,
        })
    }

    /// Number of tiles.
    pub fn tiles(&self) -> usize {
        self.n.div_ceil(TILE_N)
    }

    /// The next `count` tiles (fewer at the end of a part) that nobody has claimed yet; `None` when all are claimed.
    pub fn claim(&self, count: usize) -> Option<Tiles<'_>> {
        (0..self.parts).find_map(|part| self.claim_of(part, |_| count))
    }

    /// Most of what is left of the part of `thread`; `None` when nothing is. Pieces shrink, so that long runs of weights are
    /// read and yet something is left for threads that are done sooner: a lot, where a tile is much work.
    pub fn claim_own(&self, thread: usize) -> Option<Tiles<'_>> {
        self.claim_of(thread % self.parts, |left| match (self.parts, self.rows) {
            (1, _) => left,
            (_, 1) => self.piece(left * 7 / 8),
            _ => self.piece(left / 2),
        })
    }

    /// Half of what is left of the part of some thread, that of `thread` first; `None` when all tiles are claimed.
    pub fn claim_any(&self, thread: usize) -> Option<Tiles<'_>> {
        (thread..thread + self.parts)
            .find_map(|part| self.claim_of(part % self.parts, |left| self.piece(left / 2)))
    }

    /// About `tiles` tiles, of which a single row reads several at once.
    fn piece(&self, tiles: usize) -> usize {
        let together = if self.rows == 1 { STREAMS } else { 1 };
        (tiles / together).max(1) * together
    }

    /// The next `count(left)` tiles of a part, of which `left` are not claimed yet.
    fn claim_of(&self, part: usize, count: impl Fn(usize) -> usize) -> Option<Tiles<'_>> {
        let start = self.tiles() * part / self.parts;
        let len = self.tiles() * (part + 1) / self.parts - start;
        let end = |first: usize| first + count(len - first).clamp(1, len - first);
        let claimed = |first| (first < len).then(|| end(first));
        let first = self.claimed[part].fetch_update(Ordering::Relaxed, Ordering::Relaxed, claimed).ok()?;
        Some(Tiles { output: self, range: start + first..start + end(first) })
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

    /// Where `count` rows from `row` on of some tiles are, if these have all their columns: rows lie [`Tiles::n`] apart.
    #[cfg(target_arch = "aarch64")]
    pub(super) fn places(&mut self, row: usize, count: usize, tiles: Range<usize>) -> Option<*mut f32> {
        let is_claimed = self.range.start <= tiles.start && tiles.end <= self.range.end;
        assert!(row.saturating_add(count) <= self.rows() && is_claimed, "outside the claimed tiles");
        // SAFETY: inside the output, or at its end where there are no rows.
        let place = || unsafe { self.output.data.add(row * self.n() + tiles.start * TILE_N) };
        (tiles.end * TILE_N <= self.n()).then(place)
    }

    /// Columns of tile `tile` in `count` rows from `row` on.
    #[inline(always)]
    fn columns(&mut self, row: usize, count: usize, tile: usize) -> impl Iterator<Item = &mut [f32]> {
        let rows = row..row.saturating_add(count);
        assert!(rows.end <= self.rows() && self.range.contains(&tile), "outside the claimed tiles");
        let (data, n, column) = (self.output.data, self.n(), tile * TILE_N);
        let width = TILE_N.min(n - column);
        // SAFETY: the rows and the `width` columns from `column` lie inside the output, which `Output::new` was lent
        // mutably; the columns belong to this claim alone, and no row comes twice.
        rows.map(move |row| unsafe { std::slice::from_raw_parts_mut(data.add(row * n + column), width) })
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
        let Self { ref mut tiles, row, tile, values, write } = self;
        for (values, out) in values.iter().zip(tiles.columns(row, values.len(), tile)) {
            let v = s.load(values);
            if let Ok(out) = <&mut [f32; LANES]>::try_from(&mut *out) {
                let v = combine(s, s.load(out), v, write);
                s.store(v, out);
            } else {
                let mut padded = [0.0; LANES];
                let width = out.len();
                padded[..width].copy_from_slice(out);
                let v = combine(s, s.load(&padded), v, write);
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
