//! How codes are taken apart: registers of 4 columns x 4 `k`, or, for products of small matrices, of 2 columns x 8.

use core::arch::aarch64::*;
use core::arch::asm;

use super::Codes;
use crate::simd::Dot;

/// Codes of 4 columns and one word, signed bytes.
pub(super) trait Unpack: Copy {
    /// The largest magnitude.
    fn max(self) -> i32;
    fn unpack(self, quarter: usize, word: usize) -> int8x16_t;

    /// Words `first..first + 4` as operands of [`smmla`], in each two words of two columns: the first and the third, and
    /// the second and the last.
    #[inline(always)]
    fn pairs(self, quarter: usize, first: usize) -> [[int8x16_t; 2]; 2] {
        [first, first + 1].map(|word| zip(self.unpack(quarter, word), self.unpack(quarter, word + 2)))
    }
}

#[derive(Clone, Copy)]
pub(super) struct U4<'a>(pub(super) &'a [u8; 256]);
#[derive(Clone, Copy)]
pub(super) struct U5<'a>(pub(super) &'a [u8; 256], pub(super) &'a [u8; 64]);
#[derive(Clone, Copy)]
pub(super) struct I8<'a>(pub(super) &'a [u8; 512]);
/// Codes of any make, as a token reads them.
#[derive(Clone, Copy)]
pub(super) struct Any<S, C>(pub(super) S, pub(super) C);

impl Unpack for U4<'_> {
    #[inline(always)]
    fn max(self) -> i32 {
        15
    }
    #[inline(always)]
    fn unpack(self, quarter: usize, word: usize) -> int8x16_t {
        let codes = load(self.0, word / 2, quarter);
        isa!(vreinterpretq_s8_u8(match word % 2 {
            0 => vandq_u8(codes, vdupq_n_u8(15)),
            _ => vshrq_n_u8::<4>(codes),
        }))
    }
    /// Zipped before they are taken apart: half the zips.
    #[inline(always)]
    fn pairs(self, quarter: usize, first: usize) -> [[int8x16_t; 2]; 2] {
        let [upper, lower] =
            [first / 2, first / 2 + 1].map(|i| isa!(vreinterpretq_s8_u8(load(self.0, i, quarter))));
        let codes = zip(upper, lower).map(|codes| isa!(vreinterpretq_u8_s8(codes)));
        isa!([
            codes.map(|codes| vreinterpretq_s8_u8(vandq_u8(codes, vdupq_n_u8(15)))),
            codes.map(|codes| vreinterpretq_s8_u8(vshrq_n_u8::<4>(codes))),
        ])
    }
}

impl Unpack for U5<'_> {
    #[inline(always)]
    fn max(self) -> i32 {
        31
    }
    #[inline(always)]
    fn unpack(self, quarter: usize, word: usize) -> int8x16_t {
        let high = load(self.1, 0, quarter);
        with_bit_4(U4(self.0).unpack(quarter, word), isa!(vshlq_u8(high, vdupq_n_s8(4 - word as i8))))
    }
    #[inline(always)]
    fn pairs(self, quarter: usize, first: usize) -> [[int8x16_t; 2]; 2] {
        let high = load(self.1, 0, quarter);
        // The bits of a word and of the next but one, in the same place.
        let high = isa!(zip(vreinterpretq_s8_u8(high), vreinterpretq_s8_u8(vshrq_n_u8::<2>(high))));
        let mut pairs = U4(self.0).pairs(quarter, first);
        for (i, pair) in pairs.iter_mut().enumerate() {
            let by = isa!(vdupq_n_s8(4 - (first + i) as i8));
            for (codes, high) in pair.iter_mut().zip(high) {
                *codes = with_bit_4(*codes, isa!(vshlq_u8(vreinterpretq_u8_s8(high), by)));
            }
        }
        pairs
    }
}

impl Unpack for I8<'_> {
    #[inline(always)]
    fn max(self) -> i32 {
        128
    }
    #[inline(always)]
    fn unpack(self, quarter: usize, word: usize) -> int8x16_t {
        isa!(vreinterpretq_s8_u8(load(self.0, word, quarter)))
    }
}

impl<S: Dot<Bytes = uint8x16_t>, C: Codes> Unpack for Any<S, C> {
    #[inline(always)]
    fn max(self) -> i32 {
        self.1.max()
    }
    #[inline(always)]
    fn unpack(self, quarter: usize, word: usize) -> int8x16_t {
        isa!(vreinterpretq_s8_u8(self.1.word(self.0, word, quarter)))
    }
}

/// Codes with bit 4 from `high`. In assembly, as LLVM, which knows that the bit is clear, makes two instructions of it.
#[inline(always)]
fn with_bit_4(mut codes: int8x16_t, high: uint8x16_t) -> int8x16_t {
    isa!(asm!(
        "bit {codes:v}.16b, {high:v}.16b, {bit:v}.16b",
        codes = inout(vreg) codes,
        high = in(vreg) high,
        bit = in(vreg) vdupq_n_u8(16),
        options(pure, nomem, nostack, preserves_flags),
    ));
    codes
}

/// The lanes of 32 bits of two registers, in turn.
#[inline(always)]
fn zip(a: int8x16_t, b: int8x16_t) -> [int8x16_t; 2] {
    isa!({
        let [a, b] = [vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)];
        [vreinterpretq_s8_s32(vzip1q_s32(a, b)), vreinterpretq_s8_s32(vzip2q_s32(a, b))]
    })
}

/// Columns `4 * quarter..` of granule `granule`.
#[inline(always)]
pub(super) fn load<const N: usize>(w: &[u8; N], granule: usize, quarter: usize) -> uint8x16_t {
    let columns = &w.as_chunks::<16>().0[4 * granule + quarter];
    isa!(vld1q_u8(columns.as_ptr()))
}

/// The same reference, of which LLVM no longer knows how it came about: else it computes the address of every load from
/// that, instead of folding offsets into the loads.
#[inline(always)]
pub(super) fn hidden<T>(x: &T) -> &T {
    let mut address: *const T = x;
    // SAFETY: nothing is done; the address stays the one of `x`.
    unsafe {
        asm!("/* {0} */", inout(reg) address, options(pure, nomem, nostack, preserves_flags));
        &*address
    }
}
