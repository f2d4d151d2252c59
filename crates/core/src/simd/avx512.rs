//! AVX-512: one register is a virtual vector.

use core::arch::x86_64::*;

use super::{F16_MAX, Isa, Kernel, LANES, Simd};

/// The token of AVX-512 (F, BW, VL, VNNI). It exists only where the CPU has them.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// The token, if this CPU has the features.
    pub fn new() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("f16c"))
        .then_some(Self(()))
    }

    /// Runs `kernel` compiled for these features.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
        fn with_features<K: Kernel>(token: Avx512, kernel: K) -> K::Output {
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

impl Simd for Avx512 {
    const ISA: Isa = Isa::Avx512;
    type F32 = __m512;
    type I32 = __m512i;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        isa!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        isa!(_mm512_loadu_ps(x.as_ptr()))
    }
    #[inline(always)]
    fn store(self, v: __m512, out: &mut [f32; LANES]) {
        isa!(_mm512_storeu_ps(out.as_mut_ptr(), v))
    }
    #[inline(always)]
    fn prefetch<T>(self, x: &T) {
        isa!(_mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(x).cast()))
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> __m512 {
        isa!(_mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> __m512 {
        isa!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast()))))
    }
    #[inline(always)]
    fn store_f16(self, v: __m512, out: &mut [u16; LANES]) {
        let v = self.max(self.min(v, self.splat(F16_MAX)), self.splat(-F16_MAX));
        isa!(_mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_cvtps_ph::<NEAREST>(v)))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        isa!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        isa!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        isa!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        isa!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        isa!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        isa!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn abs(self, a: __m512) -> __m512 {
        isa!(_mm512_abs_ps(a))
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        isa!(_mm512_roundscale_ps::<NEAREST>(a))
    }
    #[inline(always)]
    fn reduce_add(self, a: __m512) -> f32 {
        isa!({
            let a = _mm256_add_ps(
                _mm512_castps512_ps256(a),
                _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(a))),
            );
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps::<1>(a, a)))
        })
    }
    #[inline(always)]
    fn reduce_max(self, a: __m512) -> f32 {
        isa!({
            let a = _mm256_max_ps(
                _mm512_castps512_ps256(a),
                _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(a))),
            );
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps::<1>(a, a)))
        })
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> __m512i {
        isa!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    fn load_i32(self, x: &[i32; LANES]) -> __m512i {
        isa!(_mm512_loadu_si512(x.as_ptr().cast()))
    }
    #[inline(always)]
    fn store_i32(self, v: __m512i, out: &mut [i32; LANES]) {
        isa!(_mm512_storeu_si512(out.as_mut_ptr().cast(), v))
    }
    #[inline(always)]
    fn add_i32(self, a: __m512i, b: __m512i) -> __m512i {
        isa!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_i32(self, a: __m512i, b: __m512i) -> __m512i {
        isa!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn mul_i32(self, a: __m512i, b: __m512i) -> __m512i {
        isa!(_mm512_mullo_epi32(a, b))
    }
    #[inline(always)]
    fn and_i32(self, a: __m512i, b: __m512i) -> __m512i {
        isa!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn sar_i32<const BITS: u32>(self, a: __m512i) -> __m512i {
        isa!(_mm512_srai_epi32::<BITS>(a))
    }
    #[inline(always)]
    fn shl_i32<const BITS: u32>(self, a: __m512i) -> __m512i {
        isa!(_mm512_slli_epi32::<BITS>(a))
    }
    #[inline(always)]
    fn i32_to_f32(self, a: __m512i) -> __m512 {
        isa!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn f32_to_i32(self, a: __m512) -> __m512i {
        isa!(_mm512_cvttps_epi32(a))
    }
    #[inline(always)]
    fn bits_to_f32(self, a: __m512i) -> __m512 {
        isa!(_mm512_castsi512_ps(a))
    }
}
