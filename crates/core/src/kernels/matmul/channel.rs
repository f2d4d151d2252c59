//! Packed weights with one float scale a column, times rows with one scale each.
//!
//! With `P = sum of a * u` and `S = sum of a` over a block, and an integer `s` a block where the format has one, the sum over
//! all blocks, `acc = sum of s * (P - offset * S)`, is an integer and exact. Then, rounded to f32 after every operation,
//!
//! ```text
//! out = (float(acc) * d) * c        float(acc) = float(acc >> 12) * 4096 + float(acc & 4095)
//! ```
//!
//! with the scale `d` of the row and `c` of the column. `float(acc)` is the float nearest to `acc` up to 2^36.
//! With a8, `acc` has 32 bits, as the format's largest `k` sees to, and one conversion gives the same float. With a16 it has
//! more: every term, which has less than 28 bits, is cut in two before it is added, so that the sums of its upper and its
//! lower bits each fit.

use std::marker::PhantomData;

use super::packed::{Packed, Tile};
use super::quantized::{block, check, prefetch};
use super::{Tiles, Write};
use crate::activation::{PANEL, Panel, Panels};
use crate::format::PackedMatrix;
use crate::simd::{Dot, Kernel, LANES};

/// Lower bits of an integer that are summed on their own.
const LOW_BITS: u32 = 12;
const LOW: i32 = (1 << LOW_BITS) - 1;

/// Computes checked tiles; the codes of `W` are those of the matrix, whatever its scales.
#[inline(always)]
pub(super) fn run<S: Dot, W: Packed<1>, const P: usize>(
    s: S,
    x: Panels<'_, P>,
    w: &PackedMatrix,
    write: Write,
    tiles: Tiles<'_>,
) {
    s.call(Product::<W, P> { x, w, write, tiles, codes: PhantomData });
}

struct Product<'a, W, const P: usize> {
    x: Panels<'a, P>,
    w: &'a PackedMatrix,
    write: Write,
    tiles: Tiles<'a>,
    codes: PhantomData<W>,
}

impl<W: Packed<1>, const P: usize> Kernel for Product<'_, W, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Self { x, w, write, mut tiles, .. } = self;
        for index in tiles.range() {
            let tile = Tile::new(w.format.spec(), w, index);
            for (panel, x) in x.iter().enumerate() {
                let mut row = 0;
                macro_rules! rows {
                    ($r:literal) => {
                        while const { $r == 1 || $r * P <= S::ROWS } && x.rows - row >= $r {
                            let mut values = [[0.0; LANES]; $r];
                            s.call(Group::<W, P, $r> {
                                tile,
                                x,
                                first: row,
                                values: &mut values,
                                codes: PhantomData,
                            });
                            tiles.write(s, panel * PANEL + row, index, &values, write);
                            row += $r;
                        }
                    };
                }
                rows!(4);
                rows!(1);
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
    codes: PhantomData<W>,
}

impl<W: Packed<1>, const P: usize, const R: usize> Kernel for Group<'_, W, P, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Self { tile, x, first, values, .. } = self;
        check(x, first..first + R, tile.blocks);
        let mut sums = [[s.splat_i32(0); P]; R];
        for b in 0..tile.blocks {
            if R == 1 {
                prefetch::<S, W, 1>(s, tile, b);
            }
            // SAFETY: `b` is a block, and the assertion has found all of them and the rows.
            let x = unsafe { block::<P, R>(x, b, first) };
            let [products] = W::dot(s, tile, b, x);
            let steps = tile.steps(s, b);
            for r in 0..R {
                let mut term = products[r];
                if let Some(steps) = steps {
                    term = s.mul_i32(term, steps);
                }
                if P == 2 {
                    sums[r][0] = s.add_i32(sums[r][0], s.sar_i32::<LOW_BITS>(term));
                    term = s.and_i32(term, s.splat_i32(LOW));
                }
                sums[r][P - 1] = s.add_i32(sums[r][P - 1], term);
            }
        }
        for r in 0..R {
            let sum = s.mul(float(s, sums[r]), s.splat(x.scales[first + r]));
            s.store(s.mul(sum, tile.channels(s)), &mut values[r]);
        }
    }
}

/// A sum, or one of upper and one of lower bits, as float.
#[inline(always)]
fn float<S: Dot, const P: usize>(s: S, sum: [S::I32; P]) -> S::F32 {
    if P == 1 {
        return s.i32_to_f32(sum[0]);
    }
    let low = sum[P - 1];
    let high = s.add_i32(sum[0], s.sar_i32::<LOW_BITS>(low));
    let low = s.and_i32(low, s.splat_i32(LOW));
    s.add(s.mul(s.i32_to_f32(high), s.splat((LOW + 1) as f32)), s.i32_to_f32(low))
}
