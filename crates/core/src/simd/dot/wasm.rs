//! WebAssembly simd128: a register is 4 columns x 4 `k`. `i32x4.dot_i16x8_s` multiplies pairs of 16-bit lanes and adds
//! them to one 32-bit lane a column: even bytes (`k` = 0 and 2 of a word) and odd bytes (1 and 3) are taken apart by a
//! shift, which needs no shuffles. The 16-bit codes of a16 are multiplied as they are, for the price of a8.

use core::arch::wasm32::*;
use core::ops::Range;

use super::{Codes, Dot};
use crate::activation::{Block, RowCodes};
use crate::simd::{Simd, Wasm};

/// Columns `4 * quarter..` of granule `granule`.
#[inline(always)]
pub(super) fn load<const N: usize>(w: &[u8; N], granule: usize, quarter: usize) -> v128 {
    let columns = &w.as_chunks::<16>().0[4 * granule + quarter];
    // SAFETY: 16 bytes; loads may be unaligned.
    unsafe { v128_load(columns.as_ptr().cast()) }
}

/// Stores columns `4 * quarter..` of a granule.
#[inline(always)]
pub(super) fn store(columns: v128, granule: &mut [u8; 64], quarter: usize) {
    let bytes = &mut granule.as_chunks_mut::<16>().0[quarter];
    // SAFETY: 16 bytes; stores may be unaligned.
    unsafe { v128_store(bytes.as_mut_ptr().cast(), columns) }
}

/// The codes `q` of a row as pairs of 16 bits, ready to be splatted: even bytes and odd bytes of every word.
struct Pairs {
    even: [u32; 8],
    odd: [u32; 8],
}

impl Pairs {
    #[inline(always)]
    fn new<const P: usize>(x: &RowCodes<P>) -> Self {
        let mut pairs = Self { even: [0; 8], odd: [0; 8] };
        for half in 0..2 {
            let codes = |p: usize| {
                let codes = &x.0[p].as_chunks::<16>().0[half];
                // SAFETY: 16 bytes; loads may be unaligned.
                unsafe { v128_load(codes.as_ptr().cast()) }
            };
            let low = codes(P - 1);
            let (mut evens, mut odds) = (even(low), odd(low));
            if P == 2 {
                let high = codes(0);
                evens = i16x8_add(evens, i16x8_shl(even(high), 7));
                odds = i16x8_add(odds, i16x8_shl(odd(high), 7));
            }
            // SAFETY: 16 bytes each; stores may be unaligned.
            unsafe {
                v128_store(pairs.even.as_mut_ptr().add(4 * half).cast(), evens);
                v128_store(pairs.odd.as_mut_ptr().add(4 * half).cast(), odds);
            }
        }
        pairs
    }
}

/// Even bytes, sign-extended to 16 bits.
#[inline(always)]
fn even(x: v128) -> v128 {
    i16x8_shr(i16x8_shl(x, 8), 8)
}

/// Odd bytes, sign-extended to 16 bits.
#[inline(always)]
fn odd(x: v128) -> v128 {
    i16x8_shr(x, 8)
}

/// The products of one block, given how the even and odd codes of word `word` of a quarter are unpacked.
#[inline(always)]
pub(super) fn dot<S: Simd<I32 = [v128; 4]>, const P: usize, const R: usize>(
    s: S,
    x: Block<'_, P, R>,
    offset: i32,
    codes: impl Unpack,
) -> [[v128; 4]; R] {
    let pairs = x.codes.each_ref().map(Pairs::new);
    super::join(s, sums(&pairs, codes, 0..8), *x.sums, offset)
}

/// The sums over some words.
#[inline(always)]
fn sums<const R: usize>(pairs: &[Pairs; R], codes: impl Unpack, words: Range<usize>) -> [[[v128; 4]; 1]; R] {
    let quarter = |quarter: usize| {
        let mut sums = [i32x4_splat(0); R];
        for word in words.clone() {
            let [even, odd] = codes.unpack(quarter, word);
            for r in 0..R {
                let products = i32x4_add(
                    i32x4_dot_i16x8(even, u32x4_splat(pairs[r].even[word])),
                    i32x4_dot_i16x8(odd, u32x4_splat(pairs[r].odd[word])),
                );
                sums[r] = i32x4_add(sums[r], products);
            }
        }
        sums
    };
    let quarters = [quarter(0), quarter(1), quarter(2), quarter(3)];
    let mut sums = [[[i32x4_splat(0); 4]; 1]; R];
    for r in 0..R {
        sums[r][0] = [quarters[0][r], quarters[1][r], quarters[2][r], quarters[3][r]];
    }
    sums
}

/// [`Dot::field`]
#[inline(always)]
pub(super) fn field(x: v128, bits: usize, from: usize) -> v128 {
    v128_and(u32x4_shr(x, from as u32), u8x16_splat(((1 << bits) - 1) as u8))
}

/// [`Dot::lookup`]
#[inline(always)]
pub(super) fn lookup(table: &[i8; 16], x: v128) -> v128 {
    // SAFETY: 16 bytes; loads may be unaligned.
    let table = unsafe { v128_load(table.as_ptr().cast()) };
    i8x16_swizzle(table, x)
}

/// [`Dot::join`]
#[inline(always)]
pub(super) fn join(low: v128, high: v128, at: usize) -> v128 {
    v128_or(low, i32x4_shl(high, at as u32))
}

/// Codes of 4 columns and one word: those of `k` = 0, 2 and those of `k` = 1, 3, in 16-bit lanes.
pub(super) trait Unpack {
    fn unpack(&self, quarter: usize, word: usize) -> [v128; 2];
}

struct U4<'a>(&'a [u8; 256]);
struct U5<'a>(&'a [u8; 256], &'a [u8; 64]);
pub(super) struct I8<'a>(pub &'a [u8; 512]);
/// Codes of any make.
struct Any<C>(C);

impl<C: Codes> Unpack for Any<C> {
    #[inline(always)]
    fn unpack(&self, quarter: usize, word: usize) -> [v128; 2] {
        let codes = self.0.word(Wasm::new(), word, quarter);
        [v128_and(codes, u16x8_splat(255)), u16x8_shr(codes, 8)]
    }
}

impl Unpack for U4<'_> {
    #[inline(always)]
    fn unpack(&self, quarter: usize, word: usize) -> [v128; 2] {
        let codes = load(self.0, word / 2, quarter);
        let mask = u16x8_splat(15);
        if word.is_multiple_of(2) {
            [v128_and(codes, mask), v128_and(u16x8_shr(codes, 8), mask)]
        } else {
            [v128_and(u16x8_shr(codes, 4), mask), u16x8_shr(codes, 12)]
        }
    }
}

impl Unpack for U5<'_> {
    #[inline(always)]
    fn unpack(&self, quarter: usize, word: usize) -> [v128; 2] {
        let [even, odd] = U4(self.0).unpack(quarter, word);
        let high = v128_and(u16x8_shr(load(self.1, 0, quarter), word as u32), u16x8_splat(0x0101));
        let bit = u16x8_splat(16);
        [v128_or(even, v128_and(u16x8_shl(high, 4), bit)), v128_or(odd, v128_and(u16x8_shr(high, 4), bit))]
    }
}

impl Unpack for I8<'_> {
    #[inline(always)]
    fn unpack(&self, quarter: usize, word: usize) -> [v128; 2] {
        let codes = load(self.0, word, quarter);
        [even(codes), odd(codes)]
    }
}

impl Dot for Wasm {
    const ROWS: usize = 4;
    const NAME: &'static str = "i32x4.dot_i16x8_s";
    type Bytes = v128;
    const PARTS: usize = 4;

    #[inline(always)]
    fn load_bytes(self, granule: &[u8; 64], part: usize) -> v128 {
        load(granule, 0, part)
    }
    #[inline(always)]
    fn store_bytes(self, x: v128, granule: &mut [u8; 64], part: usize) {
        store(x, granule, part);
    }
    #[inline(always)]
    fn field(self, x: v128, bits: usize, from: usize) -> v128 {
        field(x, bits, from)
    }
    #[inline(always)]
    fn join(self, low: v128, high: v128, at: usize) -> v128 {
        join(low, high, at)
    }

    #[inline(always)]
    fn dot_halves<C: Codes, const P: usize, const R: usize>(
        self,
        w: C,
        x: Block<'_, P, R>,
        offset: i32,
    ) -> [[Self::I32; R]; 2] {
        let pairs = x.codes.each_ref().map(Pairs::new);
        let of_rows = super::half_sums(x);
        let mut products = [[[i32x4_splat(0); 4]; R]; 2];
        for half in 0..2 {
            let sums = sums(&pairs, Any(w), 4 * half..4 * half + 4);
            products[half] = super::join(self, sums, of_rows[half], offset);
        }
        products
    }

    #[inline(always)]
    fn lookup(self, table: &[i8; 16], x: v128) -> v128 {
        lookup(table, x)
    }

    #[inline(always)]
    fn dot_u4<const P: usize, const R: usize>(
        self,
        w: &[u8; 256],
        x: Block<'_, P, R>,
        offset: i32,
    ) -> [Self::I32; R] {
        dot(self, x, offset, U4(w))
    }

    #[inline(always)]
    fn dot_u5<const P: usize, const R: usize>(
        self,
        w: &[u8; 256],
        high: &[u8; 64],
        x: Block<'_, P, R>,
        offset: i32,
    ) -> [Self::I32; R] {
        dot(self, x, offset, U5(w, high))
    }

    #[inline(always)]
    fn dot_i8<const P: usize, const R: usize>(self, w: &[u8; 512], x: Block<'_, P, R>) -> [Self::I32; R] {
        dot(self, x, 0, I8(w))
    }
}
