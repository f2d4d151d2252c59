//! AVX2: two registers are a virtual vector.

use core::arch::x86_64::*;

use super::{F16_MAX, Isa, Kernel, LANES, Simd};

/// The token of AVX2 with F16C. It exists only where the CPU has them.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// The token, if this CPU has the features.
    pub fn new() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")).then_some(Self(()))
    }

    /// Runs `kernel` compiled for these features.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,f16c")]
        fn with_features<K: Kernel>(token: Avx2, kernel: K) -> K::Output {
            kernel.run(token)
        }
        // SAFETY: the token exists only where the CPU has these features.
        unsafe { with_features(self, kernel) }
    }
}

/// One intrinsic, or several, of the token's features.
macro_rules! isa {
    ($e:expr) => {{
        // SAFETY: `self` exists only where the CPU has the features; loads and stores are unaligned and within the
        // array that the reference promises.
        unsafe { $e }
    }};
}

/// Rounding to nearest even, without exceptions.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

type F32 = [__m256; 2];
type I32 = [__m256i; 2];

impl Simd for Avx2 {
    const ISA: Isa = Isa::Avx2;
    type F32 = F32;
    type I32 = I32;

    #[inline(always)]
    fn splat(self, x: f32) -> F32 {
        isa!([_mm256_set1_ps(x); 2])
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> F32 {
        isa!([_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))])
    }
    #[inline(always)]
    fn store(self, v: F32, out: &mut [f32; LANES]) {
        isa!({
            _mm256_storeu_ps(out.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), v[1]);
        })
    }
    #[inline(always)]
    fn prefetch<T>(self, x: &T) {
        isa!(_mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(x).cast()))
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> F32 {
        isa!([
            _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().add(8).cast())),
        ])
    }
    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> F32 {
        isa!([
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si64(x.as_ptr().cast()))),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si64(x.as_ptr().add(8).cast()))),
        ])
    }
    #[inline(always)]
    fn store_f16(self, v: F32, out: &mut [u16; LANES]) {
        let v = self.max(self.min(v, self.splat(F16_MAX)), self.splat(-F16_MAX));
        isa!({
            _mm_storeu_si128(out.as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(
                out.as_mut_ptr().add(8).cast(),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]),
            );
        })
    }
    #[inline(always)]
    fn add(self, a: F32, b: F32) -> F32 {
        isa!([_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn sub(self, a: F32, b: F32) -> F32 {
        isa!([_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn mul(self, a: F32, b: F32) -> F32 {
        isa!([_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn div(self, a: F32, b: F32) -> F32 {
        isa!([_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn max(self, a: F32, b: F32) -> F32 {
        isa!([_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn min(self, a: F32, b: F32) -> F32 {
        isa!([_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn abs(self, a: F32) -> F32 {
        isa!({
            let sign = _mm256_set1_ps(-0.0);
            [_mm256_andnot_ps(sign, a[0]), _mm256_andnot_ps(sign, a[1])]
        })
    }
    #[inline(always)]
    fn round(self, a: F32) -> F32 {
        isa!([_mm256_round_ps::<NEAREST>(a[0]), _mm256_round_ps::<NEAREST>(a[1])])
    }
    #[inline(always)]
    fn reduce_add(self, a: F32) -> f32 {
        isa!({
            let a = _mm256_add_ps(a[0], a[1]);
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps::<1>(a, a)))
        })
    }
    #[inline(always)]
    fn reduce_max(self, a: F32) -> f32 {
        isa!({
            let a = _mm256_max_ps(a[0], a[1]);
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps::<1>(a, a)))
        })
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> I32 {
        isa!([_mm256_set1_epi32(x); 2])
    }
    #[inline(always)]
    fn load_i32(self, x: &[i32; LANES]) -> I32 {
        isa!([_mm256_loadu_si256(x.as_ptr().cast()), _mm256_loadu_si256(x.as_ptr().add(8).cast())])
    }
    #[inline(always)]
    fn store_i32(self, v: I32, out: &mut [i32; LANES]) {
        isa!({
            _mm256_storeu_si256(out.as_mut_ptr().cast(), v[0]);
            _mm256_storeu_si256(out.as_mut_ptr().add(8).cast(), v[1]);
        })
    }
    #[inline(always)]
    fn add_i32(self, a: I32, b: I32) -> I32 {
        isa!([_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])])
    }
    #[inline(always)]
    fn sub_i32(self, a: I32, b: I32) -> I32 {
        isa!([_mm256_sub_epi32(a[0], b[0]), _mm256_sub_epi32(a[1], b[1])])
    }
    #[inline(always)]
    fn mul_i32(self, a: I32, b: I32) -> I32 {
        isa!([_mm256_mullo_epi32(a[0], b[0]), _mm256_mullo_epi32(a[1], b[1])])
    }
    #[inline(always)]
    fn and_i32(self, a: I32, b: I32) -> I32 {
        isa!([_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])])
    }
    #[inline(always)]
    fn sar_i32<const BITS: u32>(self, a: I32) -> I32 {
        isa!({
            let bits = _mm_cvtsi32_si128(BITS as i32);
            [_mm256_sra_epi32(a[0], bits), _mm256_sra_epi32(a[1], bits)]
        })
    }
    #[inline(always)]
    fn shl_i32<const BITS: u32>(self, a: I32) -> I32 {
        isa!({
            let bits = _mm_cvtsi32_si128(BITS as i32);
            [_mm256_sll_epi32(a[0], bits), _mm256_sll_epi32(a[1], bits)]
        })
    }
    #[inline(always)]
    fn i32_to_f32(self, a: I32) -> F32 {
        isa!([_mm256_cvtepi32_ps(a[0]), _mm256_cvtepi32_ps(a[1])])
    }
    #[inline(always)]
    fn f32_to_i32(self, a: F32) -> I32 {
        isa!([_mm256_cvttps_epi32(a[0]), _mm256_cvttps_epi32(a[1])])
    }
    #[inline(always)]
    fn bits_to_f32(self, a: I32) -> F32 {
        isa!([_mm256_castsi256_ps(a[0]), _mm256_castsi256_ps(a[1])])
    }
}
