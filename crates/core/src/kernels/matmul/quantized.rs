//! Packed weights with a scale per block of 32.
//!
//! With `P = sum of a * u` and `S = sum of a` over a block, in increasing order of blocks:
//! `acc = fl(acc + fl(fl(f32(P - offset * S) * s) * d))`, or with mins
//! `acc = fl(acc + fl(fl(fl(f32(P) * s) + fl(f32(S) * m)) * d))`.

use std::marker::PhantomData;
use std::ops::Range;

use super::{Tiles, Write};
use crate::activation::{Block, PANEL, Panel, Panels};
use crate::format::{FORMATS, Format, PackedMatrix, ScaleForm, TILE_N};
#[cfg(target_arch = "x86_64")]
use crate::simd::BlockCodes;
use crate::simd::{Dot, Kernel, LANES};

/// The planes of one tile, a block an item.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    w: &'a [u8],
    x: &'a [u8],
    pub(super) s: &'a [[u16; LANES]],
    pub(super) m: &'a [[u16; LANES]],
    /// Codes of this tile and all that follow.
    rest: &'a [u8],
}

impl<'a> Tile<'a> {
    /// Tile `tile` of `w`, whose planes have the sizes that its format demands.
    #[inline(always)]
    pub(super) fn of(w: &'a PackedMatrix, tile: usize) -> Self {
        let blocks = super::blocks(w);
        let part = |plane: &'a [u8], block: usize| {
            if plane.is_empty() { plane } else { &plane[tile * blocks * block..][..blocks * block] }
        };
        let spec = w.format.spec();
        let codes = if spec.bits == 8 { 512 } else { 256 };
        let halves = |plane| bytemuck::cast_slice::<u8, u16>(part(plane, TILE_N * 2)).as_chunks().0;
        let rest = &w.w[tile * blocks * codes..];
        Self { w: part(&w.w, codes), x: part(&w.x, 64), s: halves(&w.s), m: halves(&w.m), rest }
    }
}

/// A packed format at compile time.
pub(super) trait Packed {
    const FORMAT: Format;
    const MIN: bool = matches!(FORMATS[Self::FORMAT as usize].scale, ScaleForm::F16Min);
    const OFFSET: i32 = FORMATS[Self::FORMAT as usize].offset;
    /// Bytes of a block in the plane of codes.
    const BLOCK: usize = if FORMATS[Self::FORMAT as usize].bits == 8 { 512 } else { 256 };

    /// The codes of block `b` minus their offset.
    #[cfg(target_arch = "x86_64")]
    fn unpack(tile: Tile<'_>, b: usize, codes: &mut BlockCodes);

    /// `P - offset * S` of block `b`.
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [S::I32; R];

    /// The same for one row and several tiles.
    #[inline(always)]
    fn dots<S: Dot, const P: usize, const N: usize>(
        s: S,
        tiles: [Tile<'_>; N],
        b: usize,
        x: Block<'_, P, 1>,
    ) -> [S::I32; N] {
        let mut products = [s.splat_i32(0); N];
        for n in 0..N {
            products[n] = Self::dot(s, tiles[n], b, x)[0];
        }
        products
    }
}

pub(super) struct U4<const MIN: bool>;
pub(super) struct U5<const MIN: bool>;
pub(super) struct I8;

impl<const MIN: bool> Packed for U4<MIN> {
    const FORMAT: Format = if MIN { Format::Q4m } else { Format::Q4 };
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn unpack(tile: Tile<'_>, b: usize, codes: &mut BlockCodes) {
        let w: &[u8; 256] = &tile.w.as_chunks().0[b];
        for (i, out) in codes.0.iter_mut().enumerate() {
            nibbles(w, i, out);
            subtract(Self::OFFSET, out);
        }
    }
    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [S::I32; R] {
        s.dot_u4(&tile.w.as_chunks().0[b], x, Self::OFFSET)
    }
    #[inline(always)]
    fn dots<S: Dot, const P: usize, const N: usize>(
        s: S,
        tiles: [Tile<'_>; N],
        b: usize,
        x: Block<'_, P, 1>,
    ) -> [S::I32; N] {
        let mut codes: [&[u8; 256]; N] = [&tiles[0].w.as_chunks().0[b]; N];
        for n in 1..N {
            codes[n] = &tiles[n].w.as_chunks().0[b];
        }
        s.dots_u4(codes, x, Self::OFFSET)
    }
}

impl<const MIN: bool> Packed for U5<MIN> {
    const FORMAT: Format = if MIN { Format::Q5m } else { Format::Q5 };
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn unpack(tile: Tile<'_>, b: usize, codes: &mut BlockCodes) {
        let (w, high): (&[u8; 256], &[u8; 64]) = (&tile.w.as_chunks().0[b], &tile.x.as_chunks().0[b]);
        for (i, out) in codes.0.iter_mut().enumerate() {
            nibbles(w, i, out);
            for (code, high) in out.iter_mut().zip(high) {
                *code |= (high >> i & 1) << 4;
            }
            subtract(Self::OFFSET, out);
        }
    }
    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [S::I32; R] {
        s.dot_u5(&tile.w.as_chunks().0[b], &tile.x.as_chunks().0[b], x, Self::OFFSET)
    }
}

impl Packed for I8 {
    const FORMAT: Format = Format::Q8;
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn unpack(tile: Tile<'_>, b: usize, codes: &mut BlockCodes) {
        codes.0.as_flattened_mut().copy_from_slice(&tile.w[b * Self::BLOCK..][..Self::BLOCK]);
    }
    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [S::I32; R] {
        s.dot_i8(&tile.w.as_chunks().0[b], x)
    }
}

/// Word `i` of every column: the low or the high nibbles of a granule.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn nibbles(w: &[u8; 256], i: usize, codes: &mut [u8; 64]) {
    let granule: &[u8; 64] = &w.as_chunks().0[i / 2];
    for (code, byte) in codes.iter_mut().zip(granule) {
        *code = if i.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
    }
}

/// Codes minus their offset, as signed bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn subtract(offset: i32, codes: &mut [u8; 64]) {
    for code in codes {
        *code = code.wrapping_sub(offset as u8);
    }
}

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
    match w.format {
        Format::Q4 => s.call(Product::<U4<false>, P>::new(x, w, write, tiles, from)),
        Format::Q4m => s.call(Product::<U4<true>, P>::new(x, w, write, tiles, from)),
        Format::Q5 => s.call(Product::<U5<false>, P>::new(x, w, write, tiles, from)),
        Format::Q5m => s.call(Product::<U5<true>, P>::new(x, w, write, tiles, from)),
        _ => s.call(Product::<I8, P>::new(x, w, write, tiles, from)),
    }
}

/// The tiles of one format and precision: a function of its own, as the compiler takes long over large ones.
struct Product<'a, W, const P: usize> {
    x: Panels<'a, P>,
    w: &'a PackedMatrix,
    write: Write,
    tiles: Tiles<'a>,
    from: usize,
    format: PhantomData<W>,
}

impl<'a, W: Packed, const P: usize> Product<'a, W, P> {
    #[inline(always)]
    fn new(x: Panels<'a, P>, w: &'a PackedMatrix, write: Write, tiles: Tiles<'a>, from: usize) -> Self {
        Self { x, w, write, tiles, from, format: PhantomData }
    }
}

impl<W: Packed, const P: usize> Kernel for Product<'_, W, P> {
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
                            let tile = Tile::of(w, index);
                            s.call(Group::<W, P, $r> {
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
                    s.call(Row::<W, P> {
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
struct Row<'a, W, const P: usize> {
    x: Panel<'a, P>,
    row: usize,
    w: &'a PackedMatrix,
    tiles: Tiles<'a>,
    at: usize,
    range: Range<usize>,
    write: Write,
    format: PhantomData<W>,
}

impl<W: Packed, const P: usize> Row<'_, W, P> {
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
        let mut tiles = [Tile::of(w, indices[0]); N];
        for n in 1..N {
            tiles[n] = Tile::of(w, indices[n]);
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
                prefetch::<S, W>(s, tile, b);
            }
            // SAFETY: the row has all blocks, and `b` is one of them.
            let x = unsafe { block(x, b, row) };
            let products = W::dots(s, tiles, b, x);
            for n in 0..N {
                add_block::<S, W, P, 1>(s, tiles[n], b, x, [products[n]], &mut sums[n]);
            }
        }
        for n in 0..N {
            s.store(sums[n][0], &mut values[n]);
        }
    }
}

impl<W: Packed, const P: usize> Kernel for Row<'_, W, P> {
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
struct Group<'a, W, const P: usize, const R: usize> {
    tile: Tile<'a>,
    x: Panel<'a, P>,
    first: usize,
    values: &'a mut [[f32; LANES]; R],
    format: PhantomData<W>,
}

impl<W: Packed, const P: usize, const R: usize> Kernel for Group<'_, W, P, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Self { tile, x, first, values, .. } = self;
        let blocks = tile.s.len();
        check(x, first..first + R, blocks);
        let mut sums = [s.splat(0.0); R];
        for b in 0..blocks {
            // SAFETY: `b` is a block, and the assertions have found all of them and the rows.
            let x = unsafe { block::<P, R>(x, b, first) };
            add_block::<S, W, P, R>(s, tile, b, x, W::dot(s, tile, b, x), &mut sums);
        }
        for r in 0..R {
            s.store(sums[r], &mut values[r]);
        }
    }
}

/// Adds to `sums` the products of block `b` of a tile with that of some rows.
#[inline(always)]
fn add_block<S: Dot, W: Packed, const P: usize, const R: usize>(
    s: S,
    tile: Tile<'_>,
    b: usize,
    x: Block<'_, P, R>,
    products: [S::I32; R],
    sums: &mut [S::F32; R],
) {
    let scale = s.load_f16(&tile.s[b]);
    for r in 0..R {
        let mut term = s.mul(s.i32_to_f32(products[r]), scale);
        if W::MIN {
            term = s.add(term, s.mul(s.splat(x.sums[r] as f32), s.load_f16(&tile.m[b])));
        }
        sums[r] = s.add(sums[r], s.mul(term, s.splat(x.scales[r])));
    }
}

/// Panics unless a panel has these rows, of so many blocks.
#[inline(always)]
fn check<const P: usize>(x: Panel<'_, P>, rows: Range<usize>, blocks: usize) {
    let items = blocks * x.rows;
    let whole = x.codes.len() == items && x.scales.len() == items && x.sums.len() == items;
    assert!(rows.end <= x.rows && whole, "the rows of a panel");
}

/// Block `b` of rows `first..first + R`.
///
/// # Safety
/// The panel must have that block and those rows.
#[inline(always)]
unsafe fn block<const P: usize, const R: usize>(x: Panel<'_, P>, b: usize, first: usize) -> Block<'_, P, R> {
    let at = b * x.rows + first;
    // SAFETY: the items of the rows are neighbours, and inside the panel as the caller promises.
    unsafe {
        Block {
            codes: &*x.codes.as_ptr().add(at).cast(),
            scales: &*x.scales.as_ptr().add(at).cast(),
            sums: &*x.sums.as_ptr().add(at).cast(),
        }
    }
}

/// How far ahead of their use weights are asked for when they are used once, in bytes.
const AHEAD: usize = 2048;

/// Asks for the codes that follow block `b`, in this tile or the next.
#[inline(always)]
fn prefetch<S: Dot, W: Packed>(s: S, tile: Tile<'_>, b: usize) {
    let at = b * W::BLOCK + AHEAD;
    if let Some(block) = tile.rest.get(at..at + W::BLOCK) {
        for line in block.as_chunks::<64>().0 {
            s.prefetch(line);
        }
    }
}
