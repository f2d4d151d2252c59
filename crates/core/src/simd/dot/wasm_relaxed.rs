//! WebAssembly relaxed-simd: a register is 4 columns x 4 `k`; `i32x4.relaxed_dot_i8x16_i7x16_add_s` multiplies bytes and
//! adds the products of a column to its 32-bit lane. It is one instruction where the CPU has VNNI or Arm's `sdot`.
//!
//! Its second operand must be in `0..=127`, or engines differ; the sum of two products then fits in 16 bits, so that
//! none saturates. With 4 and 5 bits the codes of weights go there, activations into the first. With 8 bits the weights
//! go into the first, and the second is activations taken apart by their sign; for a16, of two planes and two signs, the
//! 16-bit products of simd128 are fewer.

use core::arch::wasm32::*;
use core::hint::black_box;
use core::ops::Range;

use super::wasm::{self, load};
use super::{Codes, Dot};
use crate::activation::Block;
use crate::format::BLOCK_K;
use crate::simd::WasmRelaxed;

/// Sums of rows and planes of 4 columns, a 32-bit lane a column.
type Sums<const P: usize, const R: usize> = [[v128; P]; R];

/// Word `word` of a plane, in all lanes.
#[inline(always)]
fn splat(plane: &[i8; BLOCK_K], word: usize) -> v128 {
    let word = &plane.as_chunks::<4>().0[word];
    // SAFETY: 4 bytes; loads may be unaligned.
    unsafe { v128_load32_splat(word.as_ptr().cast()) }
}

/// Adds the products of `codes` in `0..=127` with word `word` of every row.
#[inline(always)]
fn add<const P: usize, const R: usize>(
    sums: &mut [Sums<P, R>; 2],
    codes: v128,
    x: Block<'_, P, R>,
    word: usize,
) {
    let sums = &mut sums[word % chains(P * R)];
    for r in 0..R {
        for p in 0..P {
            let activations = splat(&x.codes[r].0[p], word);
            sums[r][p] = i32x4_relaxed_dot_i8x16_i7x16_add(activations, codes, sums[r][p]);
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

/// Sums up the four quarters of a tile. `add(sums, granule, quarter)` adds one granule.
///
/// A sum can be added to once in five cycles, so that it takes eight to keep two multipliers busy. Quarters are summed up
/// side by side, as many as leave registers for the activations, which they share; with few rows, even and odd words
/// have sums of their own besides.
#[inline(always)]
fn quarters<const P: usize, const R: usize>(
    granules: usize,
    mut add: impl FnMut(&mut [Sums<P, R>; 2], usize, usize),
) -> [Sums<P, R>; 4] {
    let together = match P * R {
        1 | 2 => 4,
        4 => 2,
        _ => 1,
    };
    let mut sums = [[[[zero(); P]; R]; 2]; 4];
    let mut first = 0;
    while first < 4 {
        for granule in 0..granules {
            for quarter in first..first + together {
                add(&mut sums[quarter], granule, quarter);
            }
        }
        first += together;
    }
    let mut joined = [[[zero(); P]; R]; 4];
    for quarter in 0..4 {
        for r in 0..R {
            for p in 0..P {
                let [even, odd] = [sums[quarter][0][r][p], sums[quarter][1][r][p]];
                joined[quarter][r][p] = if chains(P * R) == 2 { i32x4_add(even, odd) } else { even };
            }
        }
    }
    joined
}

/// Sums of a quarter for each of `planes` planes of rows.
const fn chains(planes: usize) -> usize {
    if planes <= 2 { 2 } else { 1 }
}

/// Joins the sums of the four quarters of a tile.
#[inline(always)]
fn join<const P: usize, const R: usize>(
    s: WasmRelaxed,
    quarters: [Sums<P, R>; 4],
    sums: [i32; R],
    offset: i32,
) -> [[v128; 4]; R] {
    let mut planes = [[[zero(); 4]; P]; R];
    for r in 0..R {
        for p in 0..P {
            planes[r][p] = [quarters[0][r][p], quarters[1][r][p], quarters[2][r][p], quarters[3][r][p]];
        }
    }
    super::join(s, planes, sums, offset)
}

/// The codes of a plane that are above zero, and the magnitudes of those below; zeros elsewhere.
struct Signs {
    above: [i8; BLOCK_K],
    below: [i8; BLOCK_K],
}

impl Signs {
    #[inline(always)]
    fn new(codes: &[i8; BLOCK_K]) -> Self {
        let mut signs = Self { above: [0; BLOCK_K], below: [0; BLOCK_K] };
        for half in 0..2 {
            let codes = &codes.as_chunks::<16>().0[half];
            let above = &mut signs.above.as_chunks_mut::<16>().0[half];
            let below = &mut signs.below.as_chunks_mut::<16>().0[half];
            // SAFETY: 16 bytes each; loads and stores may be unaligned.
            unsafe {
                let codes = v128_load(codes.as_ptr().cast());
                v128_store(above.as_mut_ptr().cast(), i8x16_max(codes, zero()));
                v128_store(below.as_mut_ptr().cast(), i8x16_max(i8x16_neg(codes), zero()));
            }
        }
        signs
    }
}

/// The sums over some words of the products of signed bytes.
#[inline(always)]
fn signed<const R: usize>(
    signs: &[Signs; R],
    words: Range<usize>,
    codes: impl Fn(usize, usize) -> v128,
) -> [Sums<1, R>; 4] {
    let mut below = [[[zero()]; R]; 4];
    let mut sums: [Sums<1, R>; 4] = quarters(words.len(), |above, word, quarter| {
        let word = words.start + word;
        let codes = codes(word, quarter);
        for r in 0..R {
            let above = &mut above[0][r][0];
            let below = &mut below[quarter][r][0];
            *above = i32x4_relaxed_dot_i8x16_i7x16_add(codes, splat(&signs[r].above, word), *above);
            *below = i32x4_relaxed_dot_i8x16_i7x16_add(codes, splat(&signs[r].below, word), *below);
        }
    });
    for (sums, below) in
        sums.as_flattened_mut().as_flattened_mut().iter_mut().zip(below.as_flattened().as_flattened())
    {
        *sums = i32x4_sub(*sums, *below);
    }
    sums
}

/// [`Dot::dots_u4`] for as many tiles as have registers for their sums.
///
/// The number of granules and the addresses are hidden from LLVM. If it knew them, it would put all the loads of a block
/// ahead of its dot products, which spills half of them, and would compute every address instead of folding its offset
/// into the load: 250 instructions a block rather than 187 in V8's code for x64.
#[inline(always)]
fn row<const P: usize, const N: usize>(
    s: WasmRelaxed,
    w: [&[u8; 256]; N],
    x: Block<'_, P, 1>,
    offset: i32,
) -> [[v128; 4]; N] {
    let mut sums = [[[[zero(); P]; 1]; 4]; N];
    for quarter in sums.as_flattened_mut() {
        quarter[0][P - 1] = i32x4_splat(-(offset * x.sums[0]));
    }
    let granules: [&[[u8; 64]; 4]; N] = w.map(bytemuck::cast_ref);
    let (granules, [codes], count) = black_box((granules, x.codes, 4));
    for i in 0..count.min(4) {
        for (granules, sums) in granules.iter().zip(&mut sums) {
            for (quarter, [sums]) in sums.iter_mut().enumerate() {
                let [low, high] = nibbles(load(&granules[i], 0, quarter));
                for (sum, plane) in sums.iter_mut().zip(&codes.0) {
                    *sum = i32x4_relaxed_dot_i8x16_i7x16_add(splat(plane, 2 * i), low, *sum);
                    *sum = i32x4_relaxed_dot_i8x16_i7x16_add(splat(plane, 2 * i + 1), high, *sum);
                }
            }
        }
    }
    sums.map(|sums| join(s, sums, *x.sums, 0)[0])
}

impl Dot for WasmRelaxed {
    const ROWS: usize = 4;
    const TILES: usize = 2;
    const NAME: &'static str = "i32x4.relaxed_dot_i8x16_i7x16_add_s";
    type Bytes = v128;
    const PARTS: usize = 4;

    #[inline(always)]
    fn load_bytes(self, granule: &[u8; 64], part: usize) -> v128 {
        load(granule, 0, part)
    }
    #[inline(always)]
    fn store_bytes(self, x: v128, granule: &mut [u8; 64], part: usize) {
        wasm::store(x, granule, part);
    }
    #[inline(always)]
    fn field(self, x: v128, bits: usize, from: usize) -> v128 {
        wasm::field(x, bits, from)
    }
    #[inline(always)]
    fn join(self, low: v128, high: v128, at: usize) -> v128 {
        wasm::join(low, high, at)
    }

    #[inline(always)]
    fn dot_halves<C: Codes, const P: usize, const R: usize>(
        self,
        w: C,
        x: Block<'_, P, R>,
        offset: i32,
    ) -> [[Self::I32; R]; 2] {
        let of_rows = super::half_sums(x);
        let mut products = [[[zero(); 4]; R]; 2];
        for half in 0..2 {
            let sums = quarters(4, |sums, word, quarter| {
                let word = 4 * half + word;
                add(sums, w.word(self, word, quarter), x, word);
            });
            products[half] = join(self, sums, of_rows[half], offset);
        }
        products
    }

    /// A single row: as in [`row`], what is known is hidden from LLVM.
    #[inline(always)]
    fn dot_bytes<const P: usize, const R: usize>(
        self,
        w: &[u8; 512],
        x: Block<'_, P, R>,
        offset: i32,
    ) -> [[Self::I32; R]; 2] {
        if const { R > 1 } {
            return self.dot_halves(super::Bytes(w), x, offset);
        }
        let halves: &[[[u8; 64]; 4]; 2] = bytemuck::cast_ref(w);
        let (halves, codes, count) = black_box((halves, x.codes, 4));
        let of_rows = super::half_sums(x);
        // Both halves side by side: eight sums, for the reason that [`quarters`] gives.
        let mut sums: [[Sums<P, R>; 4]; 2] = [[[[zero(); P]; R]; 4]; 2];
        for half in 0..2 {
            for sums in &mut sums[half] {
                sums[0][P - 1] = i32x4_splat(-(offset * of_rows[half][0]));
            }
        }
        for word in 0..count.min(4) {
            for half in 0..2 {
                for (quarter, sums) in sums[half].iter_mut().enumerate() {
                    let columns = load(&halves[half][word], 0, quarter);
                    for (sum, plane) in sums[0].iter_mut().zip(&codes[0].0) {
                        let activations = splat(plane, 4 * half + word);
                        *sum = i32x4_relaxed_dot_i8x16_i7x16_add(activations, columns, *sum);
                    }
                }
            }
        }
        let [first, second] = sums;
        [join(self, first, of_rows[0], 0), join(self, second, of_rows[1], 0)]
    }

    #[inline(always)]
    fn lookup(self, table: &[i8; 16], x: v128) -> v128 {
        wasm::lookup(table, x)
    }

    #[inline(always)]
    fn dot_u4<const P: usize, const R: usize>(
        self,
        w: &[u8; 256],
        x: Block<'_, P, R>,
        offset: i32,
    ) -> [Self::I32; R] {
        let sums = quarters(4, |sums, granule, quarter| {
            let [low, high] = nibbles(load(w, granule, quarter));
            add(sums, low, x, 2 * granule);
            add(sums, high, x, 2 * granule + 1);
        });
        join(self, sums, *x.sums, offset)
    }

    #[inline(always)]
    fn dots_u4<const P: usize, const N: usize>(
        self,
        w: [&[u8; 256]; N],
        x: Block<'_, P, 1>,
        offset: i32,
    ) -> [Self::I32; N] {
        if const { P == 1 } { row(self, w, x, offset) } else { w.map(|w| row(self, [w], x, offset)[0]) }
    }

    #[inline(always)]
    fn dot_u5<const P: usize, const R: usize>(
        self,
        w: &[u8; 256],
        high: &[u8; 64],
        x: Block<'_, P, R>,
        offset: i32,
    ) -> [Self::I32; R] {
        let sums = quarters(4, |sums, granule, quarter| {
            let bits = load(high, 0, quarter);
            let words = nibbles(load(w, granule, quarter));
            for (i, codes) in words.into_iter().enumerate() {
                let word = 2 * granule + i;
                add(sums, with_bit(codes, bits, word as u32), x, word);
            }
        });
        join(self, sums, *x.sums, offset)
    }

    #[inline(always)]
    fn dot_i8<const P: usize, const R: usize>(self, w: &[u8; 512], x: Block<'_, P, R>) -> [Self::I32; R] {
        if const { P == 2 } {
            return wasm::dot(self, x, 0, wasm::I8(w));
        }
        let signs = x.codes.each_ref().map(|codes| Signs::new(&codes.0[0]));
        let sums = signed(&signs, 0..8, |word, quarter| load(w, word, quarter));
        join(self, sums, *x.sums, 0)
    }
}
