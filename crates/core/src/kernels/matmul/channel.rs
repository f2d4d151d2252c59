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

use super::packed::{Packed, Tile};
use super::quantized::{block, check, prefetch};
use crate::activation::Panel;
use crate::simd::{Dot, LANES};

/// Lower bits of an integer that are summed on their own.
const LOW_BITS: u32 = 12;
const LOW: i32 = (1 << LOW_BITS) - 1;

/// Rows `first..first + R` of a panel times a tile.
#[inline(always)]
pub(super) fn multiply<S: Dot, W: Packed<G>, const P: usize, const R: usize, const G: usize>(
    s: S,
    tile: Tile<'_>,
    x: Panel<'_, P>,
    first: usize,
    values: &mut [[f32; LANES]; R],
) {
    check(x, first..first + R, tile.blocks);
    let mut sums = [[s.splat_i32(0); P]; R];
    for b in 0..tile.blocks {
        if R == 1 {
            prefetch::<S, W, G>(s, tile, b);
        }
        // SAFETY: `b` is a block, and the assertion has found all of them and the rows.
        let x = unsafe { block::<P, R>(x, b, first) };
        let products = W::dot(s, tile, b, x)[0];
        let steps = W::steps(s, tile, b);
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
        s.store(s.mul(sum, W::channels(s, tile)), &mut values[r]);
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
