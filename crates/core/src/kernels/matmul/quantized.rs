//! Packed weights with a scale per block of 32, or per half of one.
//!
//! With `P = sum of a * u` and `S = sum of a` over a block, in increasing order of blocks:
//! `acc = fl(acc + fl(fl(f32(P - offset * S) * s) * d))`, or with mins
//! `acc = fl(acc + fl(fl(fl(f32(P) * s) + fl(f32(S) * m)) * d))`. Of a block whose halves have scales of their own the terms
//! of both are added, rounded, before `d` is multiplied. `s` and `m` of two levels are products, which are exact.

use std::marker::PhantomData;
use std::ops::Range;

use super::packed::{Halves, I8, Lookup, LookupHalves, Packed, Tile, U4, U5, factors};
use super::{Tiles, Write, channel, unpacked};
use crate::activation::{Block, PANEL, Panel, Panels};
use crate::format::{Format, PackedMatrix};
use crate::simd::{Dot, Kernel, LANES};

/// Computes panels `from..` of checked tiles.
#[inline(always)]
pub(super) fn run<S: Dot, const P: usize>(
    s: S,
    x: Panels<'_, P>,
    w: &PackedMatrix,
    write: Write,
    tiles: Tiles<'_>,
    from: usize,
) {
    macro_rules! product {
        ($packed:ty) => {
            s.call(Product::<$packed, P, _>::new(x, w, write, tiles, from))
        };
    }
    // In modules whose size counts, these are for a single row, if at all; then formats share their loops.
    macro_rules! alone {
        ($packed:ty) => {
            if tiles.rows() == 1 {
                s.call(Row::<$packed, P, _>::only(x, w, write, tiles))
            } else {
                several!($packed)
            }
        };
    }
    macro_rules! several {
        ($packed:ty) => {
            if cfg!(target_family = "wasm") {
                unpacked::run(s, x, w, write, tiles, from)
            } else {
                product!($packed)
            }
        };
    }
    match w.format {
        Format::Q4 => product!(U4<{ Format::Q4 as usize }>),
        Format::Q4m => product!(U4<{ Format::Q4m as usize }>),
        Format::Q8 => product!(I8),
        Format::Q4k => alone!(U4<{ Format::Q4k as usize }>),
        Format::Q5 => several!(U5<{ Format::Q5 as usize }>),
        Format::Q5m => several!(U5<{ Format::Q5m as usize }>),
        Format::Q5k => several!(U5<{ Format::Q5k as usize }>),
        Format::Q2k => several!(Halves<{ Format::Q2k as usize }>),
        Format::Q3k => several!(Halves<{ Format::Q3k as usize }>),
        Format::Q6k => several!(Halves<{ Format::Q6k as usize }>),
        Format::Q1 => several!(Lookup<{ Format::Q1 as usize }>),
        Format::T2 => several!(Lookup<{ Format::T2 as usize }>),
        Format::Iq4 => several!(Lookup<{ Format::Iq4 as usize }>),
        Format::Iq4k => several!(Lookup<{ Format::Iq4k as usize }>),
        Format::Mxfp4 => several!(Lookup<{ Format::Mxfp4 as usize }>),
        Format::Nvfp4 => several!(LookupHalves<{ Format::Nvfp4 as usize }>),
        Format::C4 | Format::P4 => channel::run::<S, U4<{ Format::C4 as usize }>, P>(s, x, w, write, tiles),
        Format::C8 => channel::run::<S, I8, P>(s, x, w, write, tiles),
        _ => unpacked::run(s, x, w, write, tiles, from),
    }
}

/// The tiles of one format and precision: a function of its own, as the compiler takes long over large ones.
struct Product<'a, W, const P: usize, const G: usize> {
    x: Panels<'a, P>,
    w: &'a PackedMatrix,
    write: Write,
    tiles: Tiles<'a>,
    from: usize,
    format: PhantomData<W>,
}

impl<'a, W: Packed<G>, const P: usize, const G: usize> Product<'a, W, P, G> {
    #[inline(always)]
    fn new(x: Panels<'a, P>, w: &'a PackedMatrix, write: Write, tiles: Tiles<'a>, from: usize) -> Self {
        Self { x, w, write, tiles, from, format: PhantomData }
    }
}

impl<W: Packed<G>, const P: usize, const G: usize> Kernel for Product<'_, W, P, G> {
    type Output = ();

    /// All rows of a tile, then the next tile: the tile's weights come from memory once and then from the cache. A single
    /// row takes all tiles at once.
    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Self { x, w, write, mut tiles, from, .. } = self;
        let range = tiles.range();
        let step = if tiles.rows() == 1 { range.len().max(1) } else { 1 };
        for index in range.step_by(step) {
            for (panel, x) in x.iter().enumerate().skip(from) {
                let mut row = 0;
                macro_rules! groups_of {
                    ($r:literal) => {
                        while const { $r * P <= S::ROWS } && x.rows - row >= $r {
                            let mut values = [[0.0; LANES]; $r];
                            let tile = Tile::new(W::SPEC, w, index);
                            s.call(Group::<W, P, $r, G> {
                                tile,
                                x,
                                first: row,
                                values: &mut values,
                                format: PhantomData,
                            });
                            tiles.write(s, panel * PANEL + row, index, &values, write);
                            row += $r;
                        }
                    };
                }
                groups_of!(8);
                groups_of!(4);
                if const { S::ROWS < 4 * P } {
                    groups_of!(2);
                }
                while row < x.rows {
                    let (at, range) = (panel * PANEL + row, index..index + step);
                    s.call(Row::<W, P, G> {
                        x,
                        row,
                        w,
                        tiles: tiles.again(),
                        at,
                        range,
                        write,
                        format: PhantomData,
                    });
                    row += 1;
                }
            }
        }
    }
}

/// Tiles whose weights are read with one row in turn: two where nothing can be asked for ahead of its use, as memory serves
/// two streams faster than one.
pub(super) const STREAMS: usize = if cfg!(target_family = "wasm") { 2 } else { 1 };
/// Blocks of a tile in its turn, where the tiles are not multiplied together.
const TURN: usize = 3;

/// Row `row` of a panel times some tiles, written to row `at`. Every weight is read once, from memory, and [`STREAMS`]
/// tiles that lie far apart at the same time.
struct Row<'a, W, const P: usize, const G: usize> {
    x: Panel<'a, P>,
    row: usize,
    w: &'a PackedMatrix,
    tiles: Tiles<'a>,
    at: usize,
    range: Range<usize>,
    write: Write,
    format: PhantomData<W>,
}

impl<'a, W: Packed<G>, const P: usize, const G: usize> Row<'a, W, P, G> {
    /// Of a single one.
    #[inline(always)]
    fn only(x: Panels<'a, P>, w: &'a PackedMatrix, write: Write, tiles: Tiles<'a>) -> Self {
        let range = tiles.range();
        Self { x: x.panel(0), row: 0, w, tiles, at: 0, range, write, format: PhantomData }
    }

    /// Adds to `values` the row times blocks `turn` of tiles `indices`.
    #[inline(always)]
    fn add<S: Dot, const N: usize>(
        &self,
        s: S,
        indices: [usize; N],
        turn: Range<usize>,
        values: &mut [[f32; LANES]; N],
    ) {
        let Self { x, row, w, .. } = *self;
        let mut tiles = [Tile::new(W::SPEC, w, indices[0]); N];
        for n in 1..N {
            tiles[n] = Tile::new(W::SPEC, w, indices[n]);
        }
        let blocks = super::blocks(w);
        check(x, row..row + 1, blocks);
        assert!(turn.end <= blocks, "the blocks of a row");
        let mut sums = [[s.splat(0.0)]; N];
        for n in 0..N {
            sums[n][0] = s.load(&values[n]);
        }
        for b in turn {
            for tile in tiles {
                prefetch::<S, W, G>(s, tile, b);
            }
            // SAFETY: the row has all blocks, and `b` is one of them.
            let x = unsafe { block(x, b, row) };
            let products = W::dots(s, tiles, b, x);
            for n in 0..N {
                let factors = factors::<S, W, G>(s, tiles[n], b);
                factors.add(s, products[n].map(|product| [product]), x, &mut sums[n]);
            }
        }
        for n in 0..N {
            s.store(sums[n][0], &mut values[n]);
        }
    }
}

impl<W: Packed<G>, const P: usize, const G: usize> Kernel for Row<'_, W, P, G> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(mut self, s: S) {
        let range = self.range.clone();
        let apart = range.len().div_ceil(STREAMS);
        let blocks = super::blocks(self.w);
        for first in range.start..range.start + apart {
            let streams = (first..range.end).step_by(apart);
            let mut values = [[0.0; LANES]; STREAMS];
            if S::TILES >= STREAMS && streams.len() == STREAMS {
                self.add(s, std::array::from_fn(|i| first + i * apart), 0..blocks, &mut values);
            } else {
                for from in (0..blocks).step_by(TURN) {
                    for (index, values) in streams.clone().zip(&mut values) {
                        self.add(s, [index], from..blocks.min(from + TURN), std::array::from_mut(values));
                    }
                }
            }
            for (index, values) in streams.zip(&values) {
                self.tiles.write(s, self.at, index, std::slice::from_ref(values), self.write);
            }
        }
    }
}

/// Rows `first..first + R` of a panel times a tile.
struct Group<'a, W, const P: usize, const R: usize, const G: usize> {
    tile: Tile<'a>,
    x: Panel<'a, P>,
    first: usize,
    values: &'a mut [[f32; LANES]; R],
    format: PhantomData<W>,
}

impl<W: Packed<G>, const P: usize, const R: usize, const G: usize> Kernel for Group<'_, W, P, R, G> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Self { tile, x, first, values, .. } = self;
        let blocks = tile.blocks;
        check(x, first..first + R, blocks);
        let mut sums = [s.splat(0.0); R];
        for b in 0..blocks {
            // SAFETY: `b` is a block, and the assertions have found all of them and the rows.
            let x = unsafe { block::<P, R>(x, b, first) };
            W::add(s, tile, b, x, &mut sums);
        }
        W::totals::<S, P, R>(s, &mut sums);
        for r in 0..R {
            s.store(sums[r], &mut values[r]);
        }
    }
}

/// Panics unless a panel has these rows, of so many blocks.
#[inline(always)]
pub(super) fn check<const P: usize>(x: Panel<'_, P>, rows: Range<usize>, blocks: usize) {
    let items = blocks * x.rows;
    let of_codes = [x.sums.len(), x.first_sums.len()];
    let whole = x.codes.len() == items && x.scales.len() == items && of_codes == [items; 2];
    assert!(rows.end <= x.rows && whole, "the rows of a panel");
}

/// Block `b` of rows `first..first + R`.
///
/// # Safety
/// The panel must have that block and those rows.
#[inline(always)]
pub(super) unsafe fn block<const P: usize, const R: usize>(
    x: Panel<'_, P>,
    b: usize,
    first: usize,
) -> Block<'_, P, R> {
    let at = b * x.rows + first;
    // SAFETY: the items of the rows are neighbours, and inside the panel as the caller promises.
    unsafe {
        Block {
            codes: &*x.codes.as_ptr().add(at).cast(),
            scales: &*x.scales.as_ptr().add(at).cast(),
            sums: &*x.sums.as_ptr().add(at).cast(),
            first_sums: &*x.first_sums.as_ptr().add(at).cast(),
        }
    }
}

/// How far ahead of their use weights are asked for when they are used once, in bytes.
const AHEAD: usize = 2048;

/// Asks for the codes that follow block `b`, in this tile or the next.
#[inline(always)]
pub(super) fn prefetch<S: Dot, W: Packed<G>, const G: usize>(s: S, tile: Tile<'_>, b: usize) {
    let len = W::BLOCK_LEN;
    let at = b * len + AHEAD;
    if let Some(block) = tile.rest.get(at..at + len) {
        for line in block.as_chunks::<64>().0 {
            s.prefetch(line);
        }
    }
}
