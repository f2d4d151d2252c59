//! Raw float weights: `out[n] = sum over k of fl(x[k] * w[k][n])`, one product at a time, `k` increasing.

use std::marker::PhantomData;

use super::{Tiles, Write};
use crate::format::{BLOCK_K, Format, PackedMatrix, TILE_N};
use crate::simd::{Dot, Kernel, LANES, Simd};

/// Rows that share one reading of the weights.
const ROWS: usize = 4;

/// A float format: how 16 weights are read.
trait Weights {
    type Stored: bytemuck::Pod;
    fn load<S: Simd>(s: S, w: &[Self::Stored; TILE_N]) -> S::F32;
}

struct F32;
struct F16;
struct Bf16;

impl Weights for F32 {
    type Stored = f32;
    #[inline(always)]
    fn load<S: Simd>(s: S, w: &[f32; LANES]) -> S::F32 {
        s.load(w)
    }
}

impl Weights for F16 {
    type Stored = u16;
    #[inline(always)]
    fn load<S: Simd>(s: S, w: &[u16; LANES]) -> S::F32 {
        s.load_f16(w)
    }
}

impl Weights for Bf16 {
    type Stored = u16;
    #[inline(always)]
    fn load<S: Simd>(s: S, w: &[u16; LANES]) -> S::F32 {
        let mut bits = [0; LANES];
        for (bits, &w) in bits.iter_mut().zip(w) {
            *bits = i32::from(w) << 16;
        }
        s.bits_to_f32(s.load_i32(&bits))
    }
}

/// Computes checked tiles.
#[inline(always)]
pub(super) fn run<S: Dot>(s: S, x: &[f32], w: &PackedMatrix, write: Write, tiles: Tiles<'_>) {
    match w.format {
        Format::F16 => s.call(Product::<F16> { x, w, write, tiles, format: PhantomData }),
        Format::Bf16 => s.call(Product::<Bf16> { x, w, write, tiles, format: PhantomData }),
        _ => s.call(Product::<F32> { x, w, write, tiles, format: PhantomData }),
    }
}

/// The tiles of one format, as a function of its own.
struct Product<'a, W> {
    x: &'a [f32],
    w: &'a PackedMatrix,
    write: Write,
    tiles: Tiles<'a>,
    format: PhantomData<W>,
}

impl<W: Weights> Kernel for Product<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Self { x, w, write, mut tiles, .. } = self;
        let weights: &[[W::Stored; TILE_N]] = bytemuck::cast_slice::<u8, W::Stored>(&w.w).as_chunks().0;
        let padded = w.k.next_multiple_of(BLOCK_K);
        for tile in tiles.range() {
            let weights = &weights[tile * padded..][..w.k];
            let mut row = 0;
            while row + ROWS <= tiles.rows() {
                group::<S, W, ROWS>(s, x, weights, row, tile, write, &mut tiles);
                row += ROWS;
            }
            while row < tiles.rows() {
                group::<S, W, 1>(s, x, weights, row, tile, write, &mut tiles);
                row += 1;
            }
        }
    }
}

#[inline(always)]
fn group<S: Dot, W: Weights, const R: usize>(
    s: S,
    x: &[f32],
    weights: &[[W::Stored; TILE_N]],
    row: usize,
    tile: usize,
    write: Write,
    tiles: &mut Tiles<'_>,
) {
    let k = weights.len();
    let x = &x[row * k..][..R * k];
    let mut sums = [s.splat(0.0); R];
    for (i, w) in weights.iter().enumerate() {
        let w = W::load(s, w);
        for (r, sum) in sums.iter_mut().enumerate() {
            *sum = s.add(*sum, s.mul(s.splat(x[r * k + i]), w));
        }
    }
    let mut values = [[0.0; LANES]; R];
    for (sum, values) in sums.into_iter().zip(&mut values) {
        s.store(sum, values);
    }
    tiles.write(s, row, tile, &values, write);
}
