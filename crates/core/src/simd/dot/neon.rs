//! NEON: a register is 4 columns x 4 `k`. How its bytes are multiplied depends on the core: products of 16 bits that are
//! added up in pairs later, `sdot` (four products into a lane of 32 bits), or `smmla` (two rows times two columns of
//! eight `k`, where there are two rows, or two planes of one). The last two are written in assembly: their intrinsics
//! are not stable yet.

use core::arch::aarch64::*;
use core::arch::asm;
use core::ops::Range;

use super::{Codes, Dot};
use crate::activation::Block;
use crate::simd::{Kernel, Neon, NeonDotprod, NeonI8mm, Simd};

/// One intrinsic, or several, of the token's features.
macro_rules! isa {
    ($e:expr) => {{
        // SAFETY: the token of NEON is at hand; loads are unaligned and within the array that a reference promises.
        unsafe { $e }
    }};
}

/// Sums of rows and planes for 4 columns.
type Sums<const P: usize, const R: usize> = [[int32x4_t; P]; R];

/// How a core multiplies.
trait Multiply: Simd<I32 = [int32x4_t; 4]> {
    /// The sums over some words, in steps of two, of columns `4 * quarter..`.
    fn sums<U: Unpack, const P: usize, const R: usize>(
        self,
        codes: U,
        quarter: usize,
        x: Block<'_, P, R>,
        words: Range<usize>,
    ) -> Sums<P, R>;
}

/// Codes of 4 columns and one word, signed bytes.
trait Unpack: Copy {
    /// The largest magnitude.
    fn max(self) -> i32;
    fn unpack(self, quarter: usize, word: usize) -> int8x16_t;
}

#[derive(Clone, Copy)]
struct U4<'a>(&'a [u8; 256]);
#[derive(Clone, Copy)]
struct U5<'a>(&'a [u8; 256], &'a [u8; 64]);
#[derive(Clone, Copy)]
struct I8<'a>(&'a [u8; 512]);
/// Codes of any make, as a token reads them.
#[derive(Clone, Copy)]
struct Any<S, C>(S, C);

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
}

impl Unpack for U5<'_> {
    #[inline(always)]
    fn max(self) -> i32 {
        31
    }
    #[inline(always)]
    fn unpack(self, quarter: usize, word: usize) -> int8x16_t {
        let low = isa!(vreinterpretq_u8_s8(U4(self.0).unpack(quarter, word)));
        let high = load(self.1, 0, quarter);
        isa!({
            let moved = vshlq_u8(high, vdupq_n_s8(4 - word as i8));
            vreinterpretq_s8_u8(vorrq_u8(low, vandq_u8(moved, vdupq_n_u8(16))))
        })
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

/// Columns `4 * quarter..` of granule `granule`.
#[inline(always)]
fn load<const N: usize>(w: &[u8; N], granule: usize, quarter: usize) -> uint8x16_t {
    let columns = &w.as_chunks::<16>().0[4 * granule + quarter];
    isa!(vld1q_u8(columns.as_ptr()))
}

/// The same reference, of which LLVM no longer knows how it came about: else it computes the address of every load from
/// that, instead of folding offsets into the loads.
#[inline(always)]
fn hidden<T>(x: &T) -> &T {
    let mut address: *const T = x;
    // SAFETY: nothing is done; the address stays the one of `x`.
    unsafe {
        asm!("/* {0} */", inout(reg) address, options(pure, nomem, nostack, preserves_flags));
        &*address
    }
}

/// Does `$body` for every word of a block that is in `$words`, each a constant.
macro_rules! each_word {
    ($words:expr, |$word:ident| $body:expr) => {
        each_word!($words, $word, $body, 0 1 2 3 4 5 6 7)
    };
    ($words:expr, $word:ident, $body:expr, $($n:literal)*) => {$(
        if $words.contains(&$n) {
            const $word: usize = $n;
            $body
        }
    )*};
}

impl Multiply for Neon {
    #[inline(always)]
    fn sums<U: Unpack, const P: usize, const R: usize>(
        self,
        codes: U,
        quarter: usize,
        x: Block<'_, P, R>,
        words: Range<usize>,
    ) -> Sums<P, R> {
        // Words whose products, one of each, a lane of 16 bits holds.
        let together = if 4 * 127 * codes.max() < 1 << 15 { 4 } else { 2 };
        let mut sums = [[isa!(vdupq_n_s32(0)); P]; R];
        for first in words.step_by(together) {
            let mut pairs = [[[isa!(vdupq_n_s16(0)); 2]; P]; R];
            for word in first..first + together {
                let w = codes.unpack(quarter, word);
                for r in 0..R {
                    for p in 0..P {
                        let x: i32 = bytemuck::cast(x.codes[r].0[p].as_chunks::<4>().0[word]);
                        let [low, high] = pairs[r][p];
                        pairs[r][p] = isa!({
                            let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
                            [vmlal_s8(low, vget_low_s8(w), vget_low_s8(x)), vmlal_high_s8(high, w, x)]
                        });
                    }
                }
            }
            for r in 0..R {
                for p in 0..P {
                    let [low, high] = pairs[r][p];
                    let columns = isa!(vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
                    sums[r][p] = isa!(vaddq_s32(sums[r][p], columns));
                }
            }
        }
        sums
    }
}

/// `sum + w * x`, the bytes of a lane of `w` times those of lane `LANE` of `x`.
#[inline(always)]
fn sdot<const LANE: usize>(mut sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    isa!(asm!(
        ".arch_extension dotprod",
        "sdot {sum:v}.4s, {w:v}.16b, {x:v}.4b[{lane}]",
        sum = inout(vreg) sum,
        w = in(vreg) w,
        x = in(vreg) x,
        lane = const LANE,
        options(pure, nomem, nostack, preserves_flags),
    ));
    sum
}

/// `sum + x * w^T` for two rows of 8 `k` each.
#[inline(always)]
fn smmla(mut sum: int32x4_t, x: int8x16_t, w: int8x16_t) -> int32x4_t {
    isa!(asm!(
        ".arch_extension i8mm",
        "smmla {sum:v}.4s, {x:v}.16b, {w:v}.16b",
        sum = inout(vreg) sum,
        x = in(vreg) x,
        w = in(vreg) w,
        options(pure, nomem, nostack, preserves_flags),
    ));
    sum
}

/// The sums by [`sdot`].
#[inline(always)]
fn sums_by_dot<U: Unpack, const P: usize, const R: usize>(
    codes: U,
    quarter: usize,
    x: Block<'_, P, R>,
    words: Range<usize>,
) -> Sums<P, R> {
    let mut sums = [[isa!(vdupq_n_s32(0)); P]; R];
    each_word!(words, |WORD| {
        let w = codes.unpack(quarter, WORD);
        for r in 0..R {
            for p in 0..P {
                let x = isa!(vld1q_s8(x.codes[r].0[p].as_chunks::<16>().0[WORD / 4].as_ptr()));
                sums[r][p] = sdot::<{ WORD % 4 }>(sums[r][p], w, x);
            }
        }
    });
    sums
}

/// The sums by [`smmla`], of an even number of rows times planes.
#[inline(always)]
fn sums_by_matrix<U: Unpack, const P: usize, const R: usize>(
    codes: U,
    quarter: usize,
    x: Block<'_, P, R>,
    words: Range<usize>,
) -> Sums<P, R> {
    // Rows and planes in one order: pair `i` is `2 * i` and the next. Until the end, where its sums go are those of its
    // first two columns and those of its last two.
    let at = |i: usize| (i / P, i % P);
    let mut sums = [[isa!(vdupq_n_s32(0)); P]; R];
    for word in words.step_by(2) {
        let [even, odd] =
            [word, word + 1].map(|word| isa!(vreinterpretq_s32_s8(codes.unpack(quarter, word))));
        let columns = isa!([vzip1q_s32(even, odd), vzip2q_s32(even, odd)].map(|w| vreinterpretq_s8_s32(w)));
        for first in (0..P * R).step_by(2) {
            let [upper, lower] = [first, first + 1].map(|i| {
                let (r, p) = at(i);
                isa!(vld1_s8(x.codes[r].0[p].as_chunks::<8>().0[word / 2].as_ptr()))
            });
            let x = isa!(vcombine_s8(upper, lower));
            for (i, w) in columns.into_iter().enumerate() {
                let (r, p) = at(first + i);
                sums[r][p] = smmla(sums[r][p], x, w);
            }
        }
    }
    for first in (0..P * R).step_by(2) {
        let [(r, p), (next_r, next_p)] = [at(first), at(first + 1)];
        let [left, right] = isa!([sums[r][p], sums[next_r][next_p]].map(|sums| vreinterpretq_s64_s32(sums)));
        sums[r][p] = isa!(vreinterpretq_s32_s64(vzip1q_s64(left, right)));
        sums[next_r][next_p] = isa!(vreinterpretq_s32_s64(vzip2q_s64(left, right)));
    }
    sums
}

impl Multiply for NeonDotprod {
    #[inline(always)]
    fn sums<U: Unpack, const P: usize, const R: usize>(
        self,
        codes: U,
        quarter: usize,
        x: Block<'_, P, R>,
        words: Range<usize>,
    ) -> Sums<P, R> {
        sums_by_dot(codes, quarter, x, words)
    }
}

impl Multiply for NeonI8mm {
    #[inline(always)]
    fn sums<U: Unpack, const P: usize, const R: usize>(
        self,
        codes: U,
        quarter: usize,
        x: Block<'_, P, R>,
        words: Range<usize>,
    ) -> Sums<P, R> {
        if P * R % 2 == 0 {
            sums_by_matrix(codes, quarter, x, words)
        } else {
            sums_by_dot(codes, quarter, x, words)
        }
    }
}

/// The products of some words with all columns, minus `offset` times the sums of the rows.
#[inline(always)]
fn products<S: Multiply, U: Unpack, const P: usize, const R: usize>(
    s: S,
    codes: U,
    x: Block<'_, P, R>,
    words: Range<usize>,
    of_rows: [i32; R],
    offset: i32,
) -> [S::I32; R] {
    let mut sums = [[s.splat_i32(0); P]; R];
    for quarter in 0..4 {
        let columns = s.sums(codes, quarter, x, words.clone());
        for r in 0..R {
            for p in 0..P {
                sums[r][p][quarter] = columns[r][p];
            }
        }
    }
    super::join(s, sums, of_rows, offset)
}

macro_rules! dot {
    ($token:ident, $features:literal, $rows:literal, $name:literal) => {
        impl Dot for $token {
            const ROWS: usize = $rows;
            const NAME: &'static str = $name;
            type Bytes = uint8x16_t;
            const PARTS: usize = 4;

            #[inline(always)]
            fn load_bytes(self, granule: &[u8; 64], part: usize) -> uint8x16_t {
                load(granule, 0, part)
            }
            #[inline(always)]
            fn store_bytes(self, x: uint8x16_t, granule: &mut [u8; 64], part: usize) {
                let columns = &mut granule.as_chunks_mut::<16>().0[part];
                isa!(vst1q_u8(columns.as_mut_ptr(), x));
            }
            #[inline(always)]
            fn field(self, x: uint8x16_t, bits: usize, from: usize) -> uint8x16_t {
                isa!({
                    let moved = vshlq_u8(x, vdupq_n_s8(-(from as i8)));
                    vandq_u8(moved, vdupq_n_u8(((1 << bits) - 1) as u8))
                })
            }
            #[inline(always)]
            fn join(self, low: uint8x16_t, high: uint8x16_t, at: usize) -> uint8x16_t {
                isa!(vorrq_u8(low, vshlq_u8(high, vdupq_n_s8(at as i8))))
            }
            #[inline(always)]
            fn lookup(self, table: &[i8; 16], x: uint8x16_t) -> uint8x16_t {
                isa!(vqtbl1q_u8(vreinterpretq_u8_s8(vld1q_s8(table.as_ptr())), x))
            }

            #[inline(always)]
            fn dot_halves<C: Codes, const P: usize, const R: usize>(
                self,
                w: C,
                x: Block<'_, P, R>,
                offset: i32,
            ) -> [[Self::I32; R]; 2] {
                let of_rows = super::half_sums(x);
                let half = |half: usize| {
                    products(self, Any(self, w), x, 4 * half..4 * half + 4, of_rows[half], offset)
                };
                [half(0), half(1)]
            }
            /// All products are of signed bytes.
            #[inline(always)]
            fn dot_signed<C: Codes, const P: usize, const R: usize>(
                self,
                w: C,
                x: Block<'_, P, R>,
            ) -> [[Self::I32; R]; 2] {
                self.dot_halves(w, x, 0)
            }

            #[inline(always)]
            fn call<K: Kernel>(self, kernel: K) -> K::Output {
                #[inline(never)]
                #[target_feature(enable = $features)]
                fn outlined<K: Kernel>(s: $token, kernel: K) -> K::Output {
                    kernel.run(s)
                }
                isa!(outlined(self, kernel))
            }

            #[inline(always)]
            fn dot_u4<const P: usize, const R: usize>(
                self,
                w: &[u8; 256],
                x: Block<'_, P, R>,
                offset: i32,
            ) -> [Self::I32; R] {
                products(self, U4(hidden(w)), x, 0..8, *x.sums, offset)
            }
            #[inline(always)]
            fn dot_u5<const P: usize, const R: usize>(
                self,
                w: &[u8; 256],
                high: &[u8; 64],
                x: Block<'_, P, R>,
                offset: i32,
            ) -> [Self::I32; R] {
                products(self, U5(hidden(w), hidden(high)), x, 0..8, *x.sums, offset)
            }
            #[inline(always)]
            fn dot_i8<const P: usize, const R: usize>(
                self,
                w: &[u8; 512],
                x: Block<'_, P, R>,
            ) -> [Self::I32; R] {
                products(self, I8(hidden(w)), x, 0..8, *x.sums, 0)
            }
        }
    };
}

dot!(Neon, "neon", 4, "smlal");
dot!(NeonDotprod, "neon,dotprod", 8, "sdot");
dot!(NeonI8mm, "neon,dotprod,i8mm", 8, "smmla");
