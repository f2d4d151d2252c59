//! AVX-512 VNNI: a register is 16 columns x 4 `k`; `vpdpbusd` multiplies unsigned by signed bytes.

use core::arch::x86_64::*;

use super::{Codes, Dot};
use crate::activation::Block;
use crate::simd::{Avx512, Kernel, Simd};

/// One intrinsic, or several, of the token's features.
macro_rules! isa {
    ($e:expr) => {{
        // SAFETY: the token of AVX-512 is at hand; loads are unaligned and within the array that a reference promises.
        unsafe { $e }
    }};
}

/// Sums of rows and planes that are being formed.
struct Sums<const P: usize, const R: usize>([[__m512i; P]; R]);

impl<const P: usize, const R: usize> Sums<P, R> {
    /// Minus `offset * sum`, in the plane that counts once.
    #[inline(always)]
    fn new(s: Avx512, of_rows: &[i32; R], offset: i32) -> Self {
        let mut sums = [[s.splat_i32(0); P]; R];
        if offset != 0 {
            for r in 0..R {
                sums[r][P - 1] = s.splat_i32(-offset * of_rows[r]);
            }
        }
        Self(sums)
    }

    /// Adds the products of `codes`, 16 columns x 4 `k`, with word `word` of every row.
    #[inline(always)]
    fn add(&mut self, codes: __m512i, x: Block<'_, P, R>, word: usize) {
        for r in 0..R {
            for p in 0..P {
                let a: i32 = bytemuck::cast(x.codes[r].0[p].as_chunks::<4>().0[word]);
                self.0[r][p] = isa!(_mm512_dpbusd_epi32(self.0[r][p], codes, _mm512_set1_epi32(a)));
            }
        }
    }

    #[inline(always)]
    fn join(self, s: Avx512, x: Block<'_, P, R>) -> [__m512i; R] {
        super::join(s, self.0, *x.sums, 0)
    }
}

#[inline(always)]
fn load(bytes: &[u8; 64]) -> __m512i {
    isa!(_mm512_loadu_si512(bytes.as_ptr().cast()))
}

/// Signed bytes plus 128, as unsigned.
#[inline(always)]
fn plus_128(codes: __m512i) -> __m512i {
    isa!(_mm512_xor_si512(codes, _mm512_set1_epi8(i8::MIN)))
}

/// The low and the high nibbles of a granule.
#[inline(always)]
fn nibbles(words: __m512i) -> [__m512i; 2] {
    isa!({
        let mask = _mm512_set1_epi8(15);
        [_mm512_and_si512(words, mask), _mm512_and_si512(_mm512_srli_epi32::<4>(words), mask)]
    })
}

/// Bit `j` of every byte, moved to bit 4 and joined to `codes`.
#[inline(always)]
fn with_bit(codes: __m512i, high: __m512i, j: i32) -> __m512i {
    isa!({
        let by = _mm512_set1_epi32((4 - j).abs());
        let moved = if j <= 4 { _mm512_sllv_epi32(high, by) } else { _mm512_srlv_epi32(high, by) };
        // codes | (moved & 16)
        _mm512_ternarylogic_epi32::<0xf8>(codes, moved, _mm512_set1_epi8(16))
    })
}

impl Dot for Avx512 {
    const ROWS: usize = 8;
    const NAME: &'static str = "vpdpbusd zmm";
    type Bytes = __m512i;
    const PARTS: usize = 1;

    #[inline(always)]
    fn load_bytes(self, granule: &[u8; 64], _: usize) -> __m512i {
        load(granule)
    }
    #[inline(always)]
    fn store_bytes(self, x: __m512i, granule: &mut [u8; 64], _: usize) {
        isa!(_mm512_storeu_si512(granule.as_mut_ptr().cast(), x));
    }
    #[inline(always)]
    fn field(self, x: __m512i, bits: usize, from: usize) -> __m512i {
        isa!({
            let moved = _mm512_srlv_epi32(x, _mm512_set1_epi32(from as i32));
            _mm512_and_si512(moved, _mm512_set1_epi8(((1 << bits) - 1) as i8))
        })
    }
    #[inline(always)]
    fn join(self, low: __m512i, high: __m512i, at: usize) -> __m512i {
        isa!(_mm512_or_si512(low, _mm512_sllv_epi32(high, _mm512_set1_epi32(at as i32))))
    }

    #[inline(always)]
    fn dot_halves<C: Codes, const P: usize, const R: usize>(
        self,
        w: C,
        x: Block<'_, P, R>,
        offset: i32,
    ) -> [[__m512i; R]; 2] {
        let of_rows = super::half_sums(x);
        let mut products = [[self.splat_i32(0); R]; 2];
        for half in 0..2 {
            let mut sums = Sums::new(self, &of_rows[half], offset);
            for word in 4 * half..4 * half + 4 {
                sums.add(w.word(self, word, 0), x, word);
            }
            products[half] = sums.join(self, x);
        }
        products
    }

    #[inline(always)]
    fn lookup(self, table: &[i8; 16], x: __m512i) -> __m512i {
        isa!({
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), x)
        })
    }

    #[inline(always)]
    fn dot_signed<C: Codes, const P: usize, const R: usize>(
        self,
        w: C,
        x: Block<'_, P, R>,
    ) -> [[__m512i; R]; 2] {
        let of_rows = super::half_sums(x);
        let mut products = [[self.splat_i32(0); R]; 2];
        for half in 0..2 {
            let mut sums = Sums::new(self, &of_rows[half], 128);
            for word in 4 * half..4 * half + 4 {
                sums.add(plus_128(w.word(self, word, 0)), x, word);
            }
            products[half] = sums.join(self, x);
        }
        products
    }

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
        fn outlined<K: Kernel>(s: Avx512, kernel: K) -> K::Output {
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
    ) -> [__m512i; R] {
        let mut sums = Sums::new(self, x.sums, offset);
        for (g, granule) in w.as_chunks().0.iter().enumerate() {
            let [low, high] = nibbles(load(granule));
            sums.add(low, x, 2 * g);
            sums.add(high, x, 2 * g + 1);
        }
        sums.join(self, x)
    }

    #[inline(always)]
    fn dot_u5<const P: usize, const R: usize>(
        self,
        w: &[u8; 256],
        high: &[u8; 64],
        x: Block<'_, P, R>,
        offset: i32,
    ) -> [__m512i; R] {
        let mut sums = Sums::new(self, x.sums, offset);
        let bits = load(high);
        for (g, granule) in w.as_chunks().0.iter().enumerate() {
            let [low, high] = nibbles(load(granule));
            sums.add(with_bit(low, bits, 2 * g as i32), x, 2 * g);
            sums.add(with_bit(high, bits, 2 * g as i32 + 1), x, 2 * g + 1);
        }
        sums.join(self, x)
    }

    #[inline(always)]
    fn dot_i8<const P: usize, const R: usize>(self, w: &[u8; 512], x: Block<'_, P, R>) -> [__m512i; R] {
        let mut sums = Sums::new(self, x.sums, 128);
        for (word, granule) in w.as_chunks().0.iter().enumerate() {
            sums.add(plus_128(load(granule)), x, word);
        }
        sums.join(self, x)
    }
}
