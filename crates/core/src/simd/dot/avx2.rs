//! AVX2: a register is 8 columns x 4 `k`; `vpmaddubsw` multiplies unsigned by signed bytes and adds pairs in 16 bits.
//!
//! With 4-bit codes a lane of 16 bits holds the 16 products of a whole block: 16 * 15 * 127 = 30480. With 5-bit codes
//! it holds 8: 8 * 31 * 127 = 31496.

use core::arch::x86_64::*;

use super::{Codes, Dot};
use crate::activation::{Block, RowCodes};
use crate::simd::{Avx2, Kernel};

/// One intrinsic, or several, of the token's features.
macro_rules! isa {
    ($e:expr) => {{
        // SAFETY: the token of AVX2 is at hand; loads are unaligned and within the array that a reference promises.
        unsafe { $e }
    }};
}

/// Sums of rows and planes in 16-bit lanes, two neighbouring lanes a column.
type Sums<const P: usize, const R: usize> = [[__m256i; P]; R];

/// Columns `8 * half..` of granule `granule`.
#[inline(always)]
fn load<const N: usize>(w: &[u8; N], granule: usize, half: usize) -> __m256i {
    let columns = &w.as_chunks::<32>().0[2 * granule + half];
    isa!(_mm256_loadu_si256(columns.as_ptr().cast()))
}

/// Word `word` of a plane, in all lanes.
#[inline(always)]
fn splat<const P: usize>(x: &RowCodes<P>, p: usize, word: usize) -> __m256i {
    isa!(_mm256_set1_epi32(bytemuck::cast(x.0[p].as_chunks::<4>().0[word])))
}

/// Adds the products of unsigned `codes` with word `word` of every row.
#[inline(always)]
fn add<const P: usize, const R: usize>(
    sums: &mut Sums<P, R>,
    codes: __m256i,
    x: Block<'_, P, R>,
    word: usize,
) {
    for r in 0..R {
        for p in 0..P {
            let products = isa!(_mm256_maddubs_epi16(codes, splat(&x.codes[r], p, word)));
            sums[r][p] = isa!(_mm256_add_epi16(sums[r][p], products));
        }
    }
}

/// The same of signed codes: `|w|` times the activation with the sign of `w`.
#[inline(always)]
fn add_signed<const P: usize, const R: usize>(
    sums: &mut Sums<P, R>,
    codes: __m256i,
    x: Block<'_, P, R>,
    word: usize,
) {
    let magnitude = isa!(_mm256_abs_epi8(codes));
    for r in 0..R {
        for p in 0..P {
            let signed = isa!(_mm256_sign_epi8(splat(&x.codes[r], p, word), codes));
            let products = isa!(_mm256_maddubs_epi16(magnitude, signed));
            sums[r][p] = isa!(_mm256_add_epi16(sums[r][p], products));
        }
    }
}

/// Adds both lanes of every column to the 32-bit sums of half `half`.
#[inline(always)]
fn widen<const P: usize, const R: usize>(sums: Sums<P, R>, half: usize, wide: &mut [[[__m256i; 2]; P]; R]) {
    for r in 0..R {
        for p in 0..P {
            let pairs = isa!(_mm256_madd_epi16(sums[r][p], _mm256_set1_epi16(1)));
            wide[r][p][half] = isa!(_mm256_add_epi32(wide[r][p][half], pairs));
        }
    }
}

/// [`Dot::dot_halves`] or, `SIGNED`, [`Dot::dot_signed`].
#[inline(always)]
fn halves<C: Codes, const P: usize, const R: usize, const SIGNED: bool>(
    s: Avx2,
    w: C,
    x: Block<'_, P, R>,
    offset: i32,
) -> [[[__m256i; 2]; R]; 2] {
    // Words whose products a lane of 16 bits holds, two of each.
    let together = match 4 * 2 * 127 * w.max() < 1 << 15 {
        true => 4,
        false if SIGNED => 1,
        false => 2,
    };
    let of_rows = super::half_sums(x);
    let mut products = [[[zero(); 2]; R]; 2];
    for half in 0..2 {
        let mut wide = [[[zero(); 2]; P]; R];
        for part in 0..2 {
            for first in (4 * half..4 * half + 4).step_by(together) {
                let mut sums = [[zero(); P]; R];
                for word in first..first + together {
                    let codes = w.word(s, word, part);
                    if SIGNED {
                        add_signed(&mut sums, codes, x, word);
                    } else {
                        add(&mut sums, codes, x, word);
                    }
                }
                widen(sums, part, &mut wide);
            }
        }
        products[half] = super::join(s, wide, of_rows[half], offset);
    }
    products
}

#[inline(always)]
fn zero() -> __m256i {
    isa!(_mm256_setzero_si256())
}

#[inline(always)]
fn nibbles(words: __m256i) -> [__m256i; 2] {
    isa!({
        let mask = _mm256_set1_epi8(15);
        [_mm256_and_si256(words, mask), _mm256_and_si256(_mm256_srli_epi32::<4>(words), mask)]
    })
}

/// Bit `j` of every byte, moved to bit 4 and joined to `codes`.
#[inline(always)]
fn with_bit(codes: __m256i, high: __m256i, j: i32) -> __m256i {
    isa!({
        let by = _mm256_set1_epi32((4 - j).abs());
        let moved = if j <= 4 { _mm256_sllv_epi32(high, by) } else { _mm256_srlv_epi32(high, by) };
        _mm256_or_si256(codes, _mm256_and_si256(moved, _mm256_set1_epi8(16)))
    })
}

impl Dot for Avx2 {
    const ROWS: usize = 4;
    const NAME: &'static str = "vpmaddubsw ymm";
    type Bytes = __m256i;
    const PARTS: usize = 2;

    #[inline(always)]
    fn load_bytes(self, granule: &[u8; 64], part: usize) -> __m256i {
        load(granule, 0, part)
    }
    #[inline(always)]
    fn store_bytes(self, x: __m256i, granule: &mut [u8; 64], part: usize) {
        let columns = &mut granule.as_chunks_mut::<32>().0[part];
        isa!(_mm256_storeu_si256(columns.as_mut_ptr().cast(), x));
    }
    #[inline(always)]
    fn field(self, x: __m256i, bits: usize, from: usize) -> __m256i {
        isa!({
            let moved = _mm256_srlv_epi32(x, _mm256_set1_epi32(from as i32));
            _mm256_and_si256(moved, _mm256_set1_epi8(((1 << bits) - 1) as i8))
        })
    }
    #[inline(always)]
    fn join(self, low: __m256i, high: __m256i, at: usize) -> __m256i {
        isa!(_mm256_or_si256(low, _mm256_sllv_epi32(high, _mm256_set1_epi32(at as i32))))
    }

    #[inline(always)]
    fn dot_halves<C: Codes, const P: usize, const R: usize>(
        self,
        w: C,
        x: Block<'_, P, R>,
        offset: i32,
    ) -> [[Self::I32; R]; 2] {
        halves::<C, P, R, false>(self, w, x, offset)
    }

    #[inline(always)]
    fn lookup(self, table: &[i8; 16], x: __m256i) -> __m256i {
        isa!({
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), x)
        })
    }

    /// As [`Dot::dot_i8`].
    #[inline(always)]
    fn dot_signed<C: Codes, const P: usize, const R: usize>(
        self,
        w: C,
        x: Block<'_, P, R>,
    ) -> [[Self::I32; R]; 2] {
        halves::<C, P, R, true>(self, w, x, 0)
    }

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx2,f16c")]
        fn outlined<K: Kernel>(s: Avx2, kernel: K) -> K::Output {
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
        let mut wide = [[[zero(); 2]; P]; R];
        for half in 0..2 {
            let mut sums = [[zero(); P]; R];
            for g in 0..4 {
                let [low, high] = nibbles(load(w, g, half));
                add(&mut sums, low, x, 2 * g);
                add(&mut sums, high, x, 2 * g + 1);
            }
            widen(sums, half, &mut wide);
        }
        super::join(self, wide, *x.sums, offset)
    }

    #[inline(always)]
    fn dot_u5<const P: usize, const R: usize>(
        self,
        w: &[u8; 256],
        high: &[u8; 64],
        x: Block<'_, P, R>,
        offset: i32,
    ) -> [Self::I32; R] {
        let mut wide = [[[zero(); 2]; P]; R];
        for half in 0..2 {
            let bits = load(high, 0, half);
            for granules in [0..2, 2..4] {
                let mut sums = [[zero(); P]; R];
                for g in granules {
                    let [low, high] = nibbles(load(w, g, half));
                    add(&mut sums, with_bit(low, bits, 2 * g as i32), x, 2 * g);
                    add(&mut sums, with_bit(high, bits, 2 * g as i32 + 1), x, 2 * g + 1);
                }
                widen(sums, half, &mut wide);
            }
        }
        super::join(self, wide, *x.sums, offset)
    }

    /// A pair of products is at most 2 * 128 * 127 = 32512.
    #[inline(always)]
    fn dot_i8<const P: usize, const R: usize>(self, w: &[u8; 512], x: Block<'_, P, R>) -> [Self::I32; R] {
        let mut wide = [[[zero(); 2]; P]; R];
        for half in 0..2 {
            for word in 0..8 {
                let mut sums = [[zero(); P]; R];
                add_signed(&mut sums, load(w, word, half), x, word);
                widen(sums, half, &mut wide);
            }
        }
        super::join(self, wide, *x.sums, 0)
    }
}
