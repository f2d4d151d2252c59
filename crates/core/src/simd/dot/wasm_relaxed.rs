//! WebAssembly relaxed-simd: a register is 4 columns x 4 `k`; `i16x8.relaxed_dot_i8x16_i7x16_s` multiplies bytes and adds
//! pairs in 16 bits.
//!
//! Its second operand must be in `0..=127`, or engines differ: codes go there, activations into the first. No pair
//! saturates. With 4-bit codes a lane of 16 bits holds the 16 products of a whole block (16 * 15 * 127 = 30480), with
//! 5-bit codes 8 (8 * 31 * 127 = 31496).

use core::arch::wasm32::*;

use super::Dot;
use super::wasm::load;
use crate::activation::Block;
use crate::simd::WasmRelaxed;

/// Sums of rows and planes of 4 columns in 16-bit lanes, two neighbouring lanes a column.
type Sums<const P: usize, const R: usize> = [[v128; P]; R];

/// Word `word` of a plane, in all lanes.
#[inline(always)]
fn splat<const P: usize>(x: &Block<P>, p: usize, word: usize) -> v128 {
    let word = &x.codes[p].as_chunks::<4>().0[word];
    // SAFETY: 4 bytes; loads may be unaligned.
    unsafe { v128_load32_splat(word.as_ptr().cast()) }
}

/// Adds the products of `codes` in `0..=127` with word `word` of every row.
#[inline(always)]
fn add<const P: usize, const R: usize>(sums: &mut Sums<P, R>, codes: v128, x: [&Block<P>; R], word: usize) {
    for r in 0..R {
        for p in 0..P {
            let products = i16x8_relaxed_dot_i8x16_i7x16(splat(x[r], p, word), codes);
            sums[r][p] = i16x8_add(sums[r][p], products);
        }
    }
}

#[inline(always)]
fn zero() -> v128 {
    i32x4_splat(0)
}

/// The low and the high nibbles. (A shift of bytes would be three instructions on x86.)
#[inline(always)]
fn nibbles(words: v128) -> [v128; 2] {
    let mask = u8x16_splat(15);
    [v128_and(words, mask), v128_and(u16x8_shr(words, 4), mask)]
}

/// Bit `j` of every byte, moved to bit 4 and joined to `codes`.
#[inline(always)]
fn with_bit(codes: v128, high: v128, j: u32) -> v128 {
    let moved = if j <= 4 { i32x4_shl(high, 4 - j) } else { u32x4_shr(high, j - 4) };
    v128_or(codes, v128_and(moved, u8x16_splat(16)))
}

/// 32-bit sums of rows and planes from those of 16 bits.
#[inline(always)]
fn widen<const P: usize, const R: usize>(mut sums: Sums<P, R>) -> Sums<P, R> {
    for r in 0..R {
        for p in 0..P {
            sums[r][p] = i32x4_extadd_pairwise_i16x8(sums[r][p]);
        }
    }
    sums
}

/// Joins the 32-bit sums of the four quarters of a tile.
#[inline(always)]
fn join<const P: usize, const R: usize>(
    s: WasmRelaxed,
    quarters: [Sums<P, R>; 4],
    x: [&Block<P>; R],
    offset: i32,
) -> [[v128; 4]; R] {
    let mut planes = [[[zero(); 4]; P]; R];
    for r in 0..R {
        for p in 0..P {
            planes[r][p] = [quarters[0][r][p], quarters[1][r][p], quarters[2][r][p], quarters[3][r][p]];
        }
    }
    super::join(s, planes, x, offset)
}

#[inline(always)]
fn quarter_u4<const P: usize, const R: usize>(
    w: &[u8; 256],
    x: [&Block<P>; R],
    quarter: usize,
) -> Sums<P, R> {
    let mut sums = [[zero(); P]; R];
    for g in 0..4 {
        let [low, high] = nibbles(load(w, g, quarter));
        add(&mut sums, low, x, 2 * g);
        add(&mut sums, high, x, 2 * g + 1);
    }
    widen(sums)
}

#[inline(always)]
fn quarter_u5<const P: usize, const R: usize>(
    w: &[u8; 256],
    high: &[u8; 64],
    x: [&Block<P>; R],
    quarter: usize,
) -> Sums<P, R> {
    let bits = load(high, 0, quarter);
    let half = |granules: std::ops::Range<usize>| {
        let mut sums = [[zero(); P]; R];
        for g in granules {
            let [low, high] = nibbles(load(w, g, quarter));
            add(&mut sums, with_bit(low, bits, 2 * g as u32), x, 2 * g);
            add(&mut sums, with_bit(high, bits, 2 * g as u32 + 1), x, 2 * g + 1);
        }
        widen(sums)
    };
    let (mut sums, rest) = (half(0..2), half(2..4));
    for r in 0..R {
        for p in 0..P {
            sums[r][p] = i32x4_add(sums[r][p], rest[r][p]);
        }
    }
    sums
}

#[inline(always)]
fn quarter_i8<const P: usize, const R: usize>(
    w: &[u8; 512],
    x: [&Block<P>; R],
    quarter: usize,
) -> Sums<P, R> {
    let mut low_sums = [[zero(); P]; R];
    let mut high_sums = [[zero(); P]; R];
    for word in 0..8 {
        let codes = v128_xor(load(w, word, quarter), u8x16_splat(0x80));
        let [low, high] = nibbles(codes);
        add(&mut low_sums, low, x, word);
        add(&mut high_sums, high, x, word);
    }
    let (mut sums, high) = (widen(low_sums), widen(high_sums));
    for r in 0..R {
        for p in 0..P {
            sums[r][p] = i32x4_add(i32x4_shl(high[r][p], 4), sums[r][p]);
        }
    }
    sums
}

impl Dot for WasmRelaxed {
    const ROWS: usize = 4;
    const NAME: &'static str = "i16x8.relaxed_dot_i8x16_i7x16_s";

    #[inline(always)]
    fn dot_u4<const P: usize, const R: usize>(
        self,
        w: &[u8; 256],
        x: [&Block<P>; R],
        offset: i32,
    ) -> [Self::I32; R] {
        let quarter = |q| quarter_u4(w, x, q);
        join(self, [quarter(0), quarter(1), quarter(2), quarter(3)], x, offset)
    }

    #[inline(always)]
    fn dot_u5<const P: usize, const R: usize>(
        self,
        w: &[u8; 256],
        high: &[u8; 64],
        x: [&Block<P>; R],
        offset: i32,
    ) -> [Self::I32; R] {
        let quarter = |q| quarter_u5(w, high, x, q);
        join(self, [quarter(0), quarter(1), quarter(2), quarter(3)], x, offset)
    }

    /// `w + 128 = 16 * high + low`: two products of nibbles, and the offset 128.
    #[inline(always)]
    fn dot_i8<const P: usize, const R: usize>(self, w: &[u8; 512], x: [&Block<P>; R]) -> [Self::I32; R] {
        let quarter = |q| quarter_i8(w, x, q);
        join(self, [quarter(0), quarter(1), quarter(2), quarter(3)], x, 128)
    }
}
