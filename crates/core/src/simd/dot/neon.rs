//! NEON: a register is 4 columns x 4 `k`. How its bytes are multiplied depends on the core: products of 16 bits that are
//! added up in pairs later, `sdot` (four products into a lane of 32 bits), or `smmla` (two rows times two columns of
//! eight `k`, where there are two rows, or two planes of one). The last two are written in assembly: their intrinsics
//! are not stable yet.

use core::arch::aarch64::*;
use core::arch::asm;
use core::ops::Range;

use super::{Codes, Dot, Factors};
use crate::activation::Block;
use crate::simd::{Kernel, Neon, NeonDotprod, NeonI8mm, Simd};

/// One intrinsic, or several, of the token's features.
macro_rules! isa {
    ($e:expr) => {{
        // SAFETY: the token of NEON is at hand; loads are unaligned and within the array that a reference promises.
        unsafe { $e }
    }};
}

mod unpack;

use unpack::{Any, I8, U4, U5, Unpack, hidden, load};

/// Sums of rows and planes for 4 columns.
type Sums<const P: usize, const R: usize> = [[int32x4_t; P]; R];

/// How a core multiplies.
trait Multiply: Simd<I32 = [int32x4_t; 4]> {
    /// Whether [`add`] leaves sums of two rows as [`sums_in_pairs`] has them.
    const IN_PAIRS: bool = false;

    /// The sums over some words, in steps of four, of columns `4 * quarter..`; those of the last plane begin as
    /// `start` says.
    fn sums<U: Unpack, const P: usize, const R: usize>(
        self,
        codes: U,
        quarter: usize,
        x: Block<'_, P, R>,
        words: Range<usize>,
        start: Start<'_, R>,
    ) -> Sums<P, R>;
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
        start: Start<'_, R>,
    ) -> Sums<P, R> {
        // Words whose products with 127, one of each, a lane of 16 bits holds; there are at most 8.
        let together = match codes.max() {
            ..=32 => words.len(),
            33..=64 => 4,
            _ => 2,
        };
        let mut sums = start.sums();
        let mut pairs = [[[isa!(vdupq_n_s16(0)); 2]; P]; R];
        each_word!(words, |WORD| {
            let w = codes.unpack(quarter, WORD);
            for r in 0..R {
                for p in 0..P {
                    let x: i32 = bytemuck::cast(x.codes[r].0[p].as_chunks::<4>().0[WORD]);
                    let x = isa!(vreinterpretq_s8_s32(vdupq_n_s32(x)));
                    let [low, high] = pairs[r][p];
                    pairs[r][p] = isa!(match WORD % together {
                        0 => [vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x)],
                        _ => [vmlal_s8(low, vget_low_s8(w), vget_low_s8(x)), vmlal_high_s8(high, w, x)],
                    });
                }
            }
            if WORD % together == together - 1 {
                for r in 0..R {
                    for p in 0..P {
                        let [low, high] = pairs[r][p];
                        let columns = isa!(vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
                        sums[r][p] = isa!(vaddq_s32(sums[r][p], columns));
                    }
                }
            }
        });
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

/// Where sums begin: so much below zero that the codes need no offset.
#[derive(Clone, Copy)]
struct Start<'a, const R: usize> {
    offset: i32,
    of_rows: &'a [i32; R],
}

impl<const R: usize> Start<'_, R> {
    /// Of row `r`.
    #[inline(always)]
    fn row(self, r: usize) -> int32x4_t {
        isa!(vdupq_n_s32(-self.offset * self.of_rows[r]))
    }
    /// Of rows `r` and `r + 1`, two lanes each.
    #[inline(always)]
    fn rows(self, r: usize) -> int32x4_t {
        isa!(vmulq_n_s32(twice(vreinterpret_s8_s32(load_two(self.of_rows, r))), -self.offset))
    }
    /// Of all.
    #[inline(always)]
    fn sums<const P: usize>(self) -> Sums<P, R> {
        let mut sums = [[isa!(vdupq_n_s32(0)); P]; R];
        for r in 0..R {
            sums[r][P - 1] = self.row(r);
        }
        sums
    }
}

/// Items `i` and `i + 1`.
#[inline(always)]
fn load_two<const R: usize>(x: &[i32; R], i: usize) -> int32x2_t {
    isa!(vld1_s32(x[i..i + 2].as_ptr()))
}

/// Every lane of 32 bits twice.
#[inline(always)]
fn twice(x: int8x8_t) -> int32x4_t {
    isa!({
        let x = vreinterpretq_s32_s8(vcombine_s8(x, x));
        vzip1q_s32(x, x)
    })
}

/// The sums by [`sdot`].
#[inline(always)]
fn sums_by_dot<U: Unpack, const P: usize, const R: usize>(
    codes: U,
    quarter: usize,
    x: Block<'_, P, R>,
    words: Range<usize>,
    start: Start<'_, R>,
) -> Sums<P, R> {
    let mut sums = start.sums();
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
    start: Start<'_, R>,
) -> Sums<P, R> {
    let mut sums = sums_in_pairs(codes, quarter, x, words, start);
    for i in (0..P * R).step_by(2) {
        let [(r, p), (next_r, next_p)] = [at::<P>(i), at::<P>(i + 1)];
        let [left, right] = isa!([sums[r][p], sums[next_r][next_p]].map(|sums| vreinterpretq_s64_s32(sums)));
        sums[r][p] = isa!(vreinterpretq_s32_s64(vzip1q_s64(left, right)));
        sums[next_r][next_p] = isa!(vreinterpretq_s32_s64(vzip2q_s64(left, right)));
    }
    sums
}

/// Item `i` of all rows and planes in one order: its row and plane.
#[inline(always)]
fn at<const P: usize>(i: usize) -> (usize, usize) {
    (i / P, i % P)
}

/// The same in pairs of rows or planes: where the sums of the first go are those of the first two columns of both, and
/// where those of the second go are those of the last two.
#[inline(always)]
fn sums_in_pairs<U: Unpack, const P: usize, const R: usize>(
    codes: U,
    quarter: usize,
    x: Block<'_, P, R>,
    words: Range<usize>,
    start: Start<'_, R>,
) -> Sums<P, R> {
    let mut sums = [[isa!(vdupq_n_s32(0)); P]; R];
    for i in (0..P * R).step_by(2) {
        let [(r, p), (next_r, next_p)] = [at::<P>(i), at::<P>(i + 1)];
        let zero = isa!(vdup_n_s32(0));
        sums[r][p] = match P {
            1 => start.rows(r),
            _ => isa!(vcombine_s32(zero, vget_low_s32(start.row(next_r)))),
        };
        sums[next_r][next_p] = sums[r][p];
    }
    for word in words.step_by(4) {
        let columns = codes.pairs(quarter, word);
        for first in (0..P * R).step_by(2) {
            let [upper, lower] = [first, first + 1].map(|i| {
                let (r, p) = at::<P>(i);
                isa!(vld1q_s32(x.codes[r].0[p].as_chunks::<16>().0[word / 4].as_ptr().cast()))
            });
            let x = isa!([vuzp1q_s32(upper, lower), vuzp2q_s32(upper, lower)]);
            for (x, columns) in x.into_iter().zip(columns) {
                for (i, w) in columns.into_iter().enumerate() {
                    let (r, p) = at::<P>(first + i);
                    sums[r][p] = smmla(sums[r][p], isa!(vreinterpretq_s8_s32(x)), w);
                }
            }
        }
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
        start: Start<'_, R>,
    ) -> Sums<P, R> {
        sums_by_dot(codes, quarter, x, words, start)
    }
}

impl Multiply for NeonI8mm {
    const IN_PAIRS: bool = true;

    #[inline(always)]
    fn sums<U: Unpack, const P: usize, const R: usize>(
        self,
        codes: U,
        quarter: usize,
        x: Block<'_, P, R>,
        words: Range<usize>,
        start: Start<'_, R>,
    ) -> Sums<P, R> {
        if (P * R).is_multiple_of(2) {
            sums_by_matrix(codes, quarter, x, words, start)
        } else {
            sums_by_dot(codes, quarter, x, words, start)
        }
    }
}

/// The products of some words with all columns.
#[inline(always)]
fn products<S: Multiply, U: Unpack, const P: usize, const R: usize>(
    s: S,
    codes: U,
    x: Block<'_, P, R>,
    words: Range<usize>,
    start: Start<'_, R>,
) -> [S::I32; R] {
    let mut sums = [[s.splat_i32(0); P]; R];
    macro_rules! quarter {
        ($quarter:expr) => {
            let columns = s.sums(codes, $quarter, x, words.clone(), start);
            for r in 0..R {
                for p in 0..P {
                    sums[r][p][$quarter] = columns[r][p];
                }
            }
        };
    }
    if P * R <= 2 {
        // Written out: LLVM does not unroll what holds assembly.
        quarter!(0);
        quarter!(1);
        quarter!(2);
        quarter!(3);
    } else {
        for quarter in 0..4 {
            quarter!(quarter);
        }
    }
    super::join(s, sums, *start.of_rows, 0)
}

/// Adds the terms of a block to `sums`, a quarter at a time: so its products need no memory.
#[inline(always)]
fn add<S, U, const P: usize, const R: usize>(
    s: S,
    codes: U,
    x: Block<'_, P, R>,
    offset: i32,
    factors: Factors<S::F32, 1>,
    sums: &mut [S::F32; R],
) where
    S: Multiply<F32 = [float32x4_t; 4]>,
    U: Unpack,
{
    let start = Start { offset, of_rows: x.sums };
    for quarter in 0..4 {
        let scales = factors.scales[0][quarter];
        let mins = factors.mins.map(|mins| mins[0][quarter]);
        if S::IN_PAIRS && P == 1 && R.is_multiple_of(2) {
            let products = sums_in_pairs(codes, quarter, x, 0..8, start);
            let halves = |x: float32x4_t| {
                isa!({
                    let x = vreinterpretq_f64_f32(x);
                    [vdupq_laneq_f64::<0>(x), vdupq_laneq_f64::<1>(x)].map(|x| vreinterpretq_f32_f64(x))
                })
            };
            let (scales, mins) = (halves(scales), mins.map(halves));
            for r in (0..R).step_by(2) {
                let d = isa!(vreinterpretq_f32_s32(twice(vld1_s8(x.scales[r..r + 2].as_ptr().cast()))));
                let sum = isa!(vcvtq_f32_s32(twice(vreinterpret_s8_s32(load_two(x.sums, r)))));
                for i in 0..2 {
                    let product = products[r + i][P - 1];
                    let min = mins.map(|mins| (sum, mins[i]));
                    add_term(&mut sums[r + i][quarter], product, scales[i], min, d);
                }
            }
        } else {
            let products = s.sums(codes, quarter, x, 0..8, start);
            for r in 0..R {
                let low = products[r][P - 1];
                let high = products[r][0];
                let product = if P == 2 { isa!(vaddq_s32(vshlq_n_s32::<7>(high), low)) } else { low };
                let d = isa!(vdupq_n_f32(x.scales[r]));
                let min = mins.map(|mins| (isa!(vdupq_n_f32(x.sums[r] as f32)), mins));
                add_term(&mut sums[r][quarter], product, scales, min, d);
            }
        }
    }
}

/// Puts the sums of [`add`] where they belong.
#[inline(always)]
fn apart<const R: usize>(sums: &mut [[float32x4_t; 4]; R]) {
    for pair in sums.as_chunks_mut::<2>().0 {
        for quarter in 0..4 {
            isa!({
                let [left, right] = [pair[0], pair[1]].map(|sums| vreinterpretq_f64_f32(sums[quarter]));
                pair[0][quarter] = vreinterpretq_f32_f64(vzip1q_f64(left, right));
                pair[1][quarter] = vreinterpretq_f32_f64(vzip2q_f64(left, right));
            });
        }
    }
}

/// The term of four columns; `min` is what there is to multiply and add.
#[inline(always)]
fn add_term(
    sum: &mut float32x4_t,
    product: int32x4_t,
    scale: float32x4_t,
    min: Option<(float32x4_t, float32x4_t)>,
    d: float32x4_t,
) {
    isa!({
        let mut term = vmulq_f32(vcvtq_f32_s32(product), scale);
        if let Some((sum, min)) = min {
            term = vaddq_f32(term, vmulq_f32(sum, min));
        }
        *sum = vaddq_f32(*sum, vmulq_f32(term, d));
    })
}

macro_rules! dot {
    ($token:ident, $features:literal, $rows:literal, $name:literal) => {
        impl Dot for $token {
            const ROWS: usize = $rows;
            const NAME: &'static str = $name;
            type Bytes = uint8x16_t;
            const PARTS: usize = 4;
            const ADDS: bool = true;

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
                    let start = Start { offset, of_rows: &of_rows[half] };
                    products(self, Any(self, w), x, 4 * half..4 * half + 4, start)
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
                products(self, U4(hidden(w)), x, 0..8, Start { offset, of_rows: x.sums })
            }
            #[inline(always)]
            fn dot_u5<const P: usize, const R: usize>(
                self,
                w: &[u8; 256],
                high: &[u8; 64],
                x: Block<'_, P, R>,
                offset: i32,
            ) -> [Self::I32; R] {
                products(self, U5(hidden(w), hidden(high)), x, 0..8, Start { offset, of_rows: x.sums })
            }
            #[inline(always)]
            fn dot_i8<const P: usize, const R: usize>(
                self,
                w: &[u8; 512],
                x: Block<'_, P, R>,
            ) -> [Self::I32; R] {
                products(self, I8(hidden(w)), x, 0..8, Start { offset: 0, of_rows: x.sums })
            }
            #[inline(always)]
            fn add_u4<const P: usize, const R: usize>(
                self,
                w: &[u8; 256],
                x: Block<'_, P, R>,
                offset: i32,
                factors: Factors<Self::F32, 1>,
                sums: &mut [Self::F32; R],
            ) {
                add(self, U4(hidden(w)), x, offset, factors, sums);
            }
            #[inline(always)]
            fn add_u5<const P: usize, const R: usize>(
                self,
                w: (&[u8; 256], &[u8; 64]),
                x: Block<'_, P, R>,
                offset: i32,
                factors: Factors<Self::F32, 1>,
                sums: &mut [Self::F32; R],
            ) {
                add(self, U5(hidden(w.0), hidden(w.1)), x, offset, factors, sums);
            }
            #[inline(always)]
            fn add_i8<const P: usize, const R: usize>(
                self,
                w: &[u8; 512],
                x: Block<'_, P, R>,
                factors: Factors<Self::F32, 1>,
                sums: &mut [Self::F32; R],
            ) {
                add(self, I8(hidden(w)), x, 0, factors, sums);
            }
            #[inline(always)]
            fn totals<const P: usize, const R: usize>(self, sums: &mut [Self::F32; R]) {
                if <Self as Multiply>::IN_PAIRS && P == 1 && R.is_multiple_of(2) {
                    apart(sums);
                }
            }
        }
    };
}

dot!(Neon, "neon", 4, "smlal");
dot!(NeonDotprod, "neon,dotprod", 8, "sdot");
dot!(NeonI8mm, "neon,dotprod,i8mm", 8, "smmla");
