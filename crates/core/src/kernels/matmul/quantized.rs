//! Packed weights with a scale per block of 32.
//!
//! With `P = sum of a * u` and `S = sum of a` over a block, in increasing order of blocks:
//! `acc = fl(acc + fl(fl(f32(P - offset * S) * s) * d))`, or with mins
//! `acc = fl(acc + fl(fl(fl(f32(P) * s) + fl(f32(S) * m)) * d))`.

use std::marker::PhantomData;

use super::{Tiles, Write};
use crate::activation::Block;
use crate::format::{FORMATS, Format, PackedMatrix, ScaleForm, TILE_N};
use crate::simd::{Dot, Kernel, LANES};

/// The planes of one tile, a block an item.
#[derive(Clone, Copy)]
struct Tile<'a> {
    w: &'a [u8],
    x: &'a [u8],
    s: &'a [[u16; LANES]],
    m: &'a [[u16; LANES]],
    /// Codes of this tile and all that follow.
    rest: &'a [u8],
}

impl<'a> Tile<'a> {
    /// Tile `tile` of `w`, whose planes have the sizes that its format demands.
    #[inline(always)]
    fn of(w: &'a PackedMatrix, tile: usize) -> Self {
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
trait Packed {
    const FORMAT: Format;
    const MIN: bool = matches!(FORMATS[Self::FORMAT as usize].scale, ScaleForm::F16Min);
    const OFFSET: i32 = FORMATS[Self::FORMAT as usize].offset;
    /// Bytes of a block in the plane of codes.
    const BLOCK: usize = if FORMATS[Self::FORMAT as usize].bits == 8 { 512 } else { 256 };

    /// `P - offset * S` of block `b`.
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: [&Block<P>; R],
    ) -> [S::I32; R];
}

struct U4<const MIN: bool>;
struct U5<const MIN: bool>;
struct I8;

impl<const MIN: bool> Packed for U4<MIN> {
    const FORMAT: Format = if MIN { Format::Q4m } else { Format::Q4 };
    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: [&Block<P>; R],
    ) -> [S::I32; R] {
        s.dot_u4(&tile.w.as_chunks().0[b], x, Self::OFFSET)
    }
}

impl<const MIN: bool> Packed for U5<MIN> {
    const FORMAT: Format = if MIN { Format::Q5m } else { Format::Q5 };
    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: [&Block<P>; R],
    ) -> [S::I32; R] {
        s.dot_u5(&tile.w.as_chunks().0[b], &tile.x.as_chunks().0[b], x, Self::OFFSET)
    }
}

impl Packed for I8 {
    const FORMAT: Format = Format::Q8;
    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: [&Block<P>; R],
    ) -> [S::I32; R] {
        s.dot_i8(&tile.w.as_chunks().0[b], x)
    }
}

/// Computes checked tiles.
#[inline(always)]
pub(super) fn run<S: Dot, const P: usize>(
    s: S,
    x: &[Block<P>],
    w: &PackedMatrix,
    write: Write,
    tiles: Tiles<'_>,
) {
    match w.format {
        Format::Q4 => s.call(Product::<U4<false>, P>::new(x, w, write, tiles)),
        Format::Q4m => s.call(Product::<U4<true>, P>::new(x, w, write, tiles)),
        Format::Q5 => s.call(Product::<U5<false>, P>::new(x, w, write, tiles)),
        Format::Q5m => s.call(Product::<U5<true>, P>::new(x, w, write, tiles)),
        _ => s.call(Product::<I8, P>::new(x, w, write, tiles)),
    }
}

/// The tiles of one format and precision: a function of its own, as the compiler takes long over large ones.
struct Product<'a, W, const P: usize> {
    x: &'a [Block<P>],
    w: &'a PackedMatrix,
    write: Write,
    tiles: Tiles<'a>,
    format: PhantomData<W>,
}

impl<'a, W: Packed, const P: usize> Product<'a, W, P> {
    #[inline(always)]
    fn new(x: &'a [Block<P>], w: &'a PackedMatrix, write: Write, tiles: Tiles<'a>) -> Self {
        Self { x, w, write, tiles, format: PhantomData }
    }
}

impl<W: Packed, const P: usize> Kernel for Product<'_, W, P> {
    type Output = ();

    /// All rows of a tile, then the next tile: the tile's weights come from memory once and then from the cache.
    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Self { x, w, write, mut tiles, .. } = self;
        let blocks = super::blocks(w);
        let rows = tiles.rows();
        for index in tiles.range() {
            let tile = Tile::of(w, index);
            let mut row = 0;
            macro_rules! groups_of {
                ($r:literal) => {
                    while const { $r == 1 || $r * P <= S::ROWS } && rows - row >= $r {
                        let x = &x[row * blocks..][..$r * blocks];
                        let mut values = [[0.0; LANES]; $r];
                        group::<S, W, P, $r>(s, tile, x, blocks, &mut values);
                        tiles.write(s, row, index, &values, write);
                        row += $r;
                    }
                };
            }
            groups_of!(8);
            groups_of!(4);
            if const { S::ROWS < 4 * P } {
                groups_of!(2);
            }
            groups_of!(1);
        }
    }
}

/// `R` rows `x` times one tile.
#[inline(always)]
fn group<S: Dot, W: Packed, const P: usize, const R: usize>(
    s: S,
    tile: Tile<'_>,
    x: &[Block<P>],
    blocks: usize,
    values: &mut [[f32; LANES]; R],
) {
    let mut sums = [s.splat(0.0); R];
    for b in 0..blocks {
        let mut rows = [&x[b]; R];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = &x[r * blocks + b];
        }
        if const { R == 1 } {
            prefetch::<S, W>(s, tile, b);
        }
        let products = W::dot(s, tile, b, rows);
        let scale = s.load_f16(&tile.s[b]);
        for r in 0..R {
            let mut term = s.mul(s.i32_to_f32(products[r]), scale);
            if W::MIN {
                term = s.add(term, s.mul(s.splat(rows[r].sum as f32), s.load_f16(&tile.m[b])));
            }
            sums[r] = s.add(sums[r], s.mul(term, s.splat(rows[r].scale)));
        }
    }
    for r in 0..R {
        s.store(sums[r], &mut values[r]);
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
