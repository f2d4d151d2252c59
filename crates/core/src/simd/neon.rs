//! NEON: four registers are a virtual vector.
//!
//! The tokens compute floats with the same instructions and differ in their dot products: every 64-bit Arm core has
//! NEON, later ones have instructions that multiply bytes.

use core::arch::aarch64::*;

use super::{F16_MAX, Isa, Kernel, LANES, Simd};

/// The token of NEON.
#[derive(Clone, Copy, Debug)]
pub struct Neon(());

/// The token of NEON with dot products of four bytes (`dotprod`).
#[derive(Clone, Copy, Debug)]
pub struct NeonDotprod(());

/// The token of NEON with products of small matrices of bytes (`i8mm`), and `dotprod`.
#[derive(Clone, Copy, Debug)]
pub struct NeonI8mm(());

/// The token's constructor and how kernels are compiled for it.
macro_rules! token {
    ($token:ident, $features:literal, $($feature:tt),+) => {
        impl $token {
            /// The token, if this CPU has the features.
            pub fn new() -> Option<Self> {
                ($(std::arch::is_aarch64_feature_detected!($feature))&&+).then_some(Self(()))
            }

            /// Runs `kernel` compiled for these features.
            #[inline]
            pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
                #[target_feature(enable = $features)]
                fn with_features<K: Kernel>(token: $token, kernel: K) -> K::Output {
                    kernel.run(token)
                }
                // SAFETY: the token exists only where the CPU has these features.
                unsafe { with_features(self, kernel) }
            }
        }
    };
}

token!(Neon, "neon", "neon");
token!(NeonDotprod, "neon,dotprod", "neon", "dotprod");
token!(NeonI8mm, "neon,dotprod,i8mm", "neon", "dotprod", "i8mm");

/// One intrinsic, or several, of NEON.
macro_rules! isa {
    ($e:expr) => {{
        // SAFETY: a token is at hand, or was, and exists only where the CPU has NEON; loads and stores are unaligned and
        // within the array that the reference promises.
        unsafe { $e }
    }};
}

type F32 = [float32x4_t; 4];
type I32 = [int32x4_t; 4];

#[inline(always)]
fn map<T: Copy, U>(a: [T; 4], f: impl Fn(T) -> U) -> [U; 4] {
    [f(a[0]), f(a[1]), f(a[2]), f(a[3])]
}

#[inline(always)]
fn map2<T: Copy>(a: [T; 4], b: [T; 4], f: impl Fn(T, T) -> T) -> [T; 4] {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

/// `if a > b { a } else { b }`: `fmax` would prefer a zero's sign, and a NaN.
#[inline(always)]
fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    isa!(vbslq_f32(vcgtq_f32(a, b), a, b))
}

#[inline(always)]
fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    isa!(vbslq_f32(vcltq_f32(a, b), a, b))
}

#[inline(always)]
fn reduce(a: F32, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> f32 {
    let a = f(f(a[0], a[2]), f(a[1], a[3]));
    isa!({
        let a = f(a, vextq_f32::<2>(a, a));
        vgetq_lane_f32::<0>(f(a, vextq_f32::<1>(a, a)))
    })
}

macro_rules! simd {
    ($token:ident, $isa:expr) => {
        impl Simd for $token {
            const ISA: Isa = $isa;
            type F32 = F32;
            type I32 = I32;

            #[inline(always)]
            fn splat(self, x: f32) -> F32 {
                isa!([vdupq_n_f32(x); 4])
            }
            #[inline(always)]
            fn load(self, x: &[f32; LANES]) -> F32 {
                isa!(std::array::from_fn(|i| vld1q_f32(x.as_ptr().add(4 * i))))
            }
            #[inline(always)]
            fn store(self, v: F32, out: &mut [f32; LANES]) {
                for i in 0..4 {
                    isa!(vst1q_f32(out.as_mut_ptr().add(4 * i), v[i]));
                }
            }
            #[inline(always)]
            fn load_f16(self, x: &[u16; LANES]) -> F32 {
                isa!({
                    let low = vreinterpretq_f16_u16(vld1q_u16(x.as_ptr()));
                    let high = vreinterpretq_f16_u16(vld1q_u16(x.as_ptr().add(8)));
                    [
                        vcvt_f32_f16(vget_low_f16(low)),
                        vcvt_high_f32_f16(low),
                        vcvt_f32_f16(vget_low_f16(high)),
                        vcvt_high_f32_f16(high),
                    ]
                })
            }
            #[inline(always)]
            fn load_i8(self, x: &[i8; LANES]) -> F32 {
                isa!({
                    let x = vld1q_s8(x.as_ptr());
                    let [low, high] = [vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x)];
                    [
                        vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                        vcvtq_f32_s32(vmovl_high_s16(low)),
                        vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                        vcvtq_f32_s32(vmovl_high_s16(high)),
                    ]
                })
            }
            #[inline(always)]
            fn store_f16(self, v: F32, out: &mut [u16; LANES]) {
                let v = self.max(self.min(v, self.splat(F16_MAX)), self.splat(-F16_MAX));
                for i in 0..4 {
                    isa!(vst1_u16(out.as_mut_ptr().add(4 * i), vreinterpret_u16_f16(vcvt_f16_f32(v[i]))));
                }
            }
            #[inline(always)]
            fn add(self, a: F32, b: F32) -> F32 {
                map2(a, b, |a, b| isa!(vaddq_f32(a, b)))
            }
            #[inline(always)]
            fn sub(self, a: F32, b: F32) -> F32 {
                map2(a, b, |a, b| isa!(vsubq_f32(a, b)))
            }
            #[inline(always)]
            fn mul(self, a: F32, b: F32) -> F32 {
                map2(a, b, |a, b| isa!(vmulq_f32(a, b)))
            }
            #[inline(always)]
            fn div(self, a: F32, b: F32) -> F32 {
                map2(a, b, |a, b| isa!(vdivq_f32(a, b)))
            }
            #[inline(always)]
            fn max(self, a: F32, b: F32) -> F32 {
                map2(a, b, max)
            }
            #[inline(always)]
            fn min(self, a: F32, b: F32) -> F32 {
                map2(a, b, min)
            }
            #[inline(always)]
            fn abs(self, a: F32) -> F32 {
                map(a, |a| isa!(vabsq_f32(a)))
            }
            #[inline(always)]
            fn round(self, a: F32) -> F32 {
                map(a, |a| isa!(vrndnq_f32(a)))
            }
            #[inline(always)]
            fn reduce_add(self, a: F32) -> f32 {
                reduce(a, |a, b| isa!(vaddq_f32(a, b)))
            }
            #[inline(always)]
            fn reduce_max(self, a: F32) -> f32 {
                reduce(a, max)
            }
            #[inline(always)]
            fn splat_i32(self, x: i32) -> I32 {
                isa!([vdupq_n_s32(x); 4])
            }
            #[inline(always)]
            fn load_i32(self, x: &[i32; LANES]) -> I32 {
                isa!(std::array::from_fn(|i| vld1q_s32(x.as_ptr().add(4 * i))))
            }
            #[inline(always)]
            fn store_i32(self, v: I32, out: &mut [i32; LANES]) {
                for i in 0..4 {
                    isa!(vst1q_s32(out.as_mut_ptr().add(4 * i), v[i]));
                }
            }
            #[inline(always)]
            fn add_i32(self, a: I32, b: I32) -> I32 {
                map2(a, b, |a, b| isa!(vaddq_s32(a, b)))
            }
            #[inline(always)]
            fn sub_i32(self, a: I32, b: I32) -> I32 {
                map2(a, b, |a, b| isa!(vsubq_s32(a, b)))
            }
            #[inline(always)]
            fn mul_i32(self, a: I32, b: I32) -> I32 {
                map2(a, b, |a, b| isa!(vmulq_s32(a, b)))
            }
            #[inline(always)]
            fn and_i32(self, a: I32, b: I32) -> I32 {
                map2(a, b, |a, b| isa!(vandq_s32(a, b)))
            }
            #[inline(always)]
            fn sar_i32<const BITS: u32>(self, a: I32) -> I32 {
                map(a, |a| isa!(vshlq_s32(a, vdupq_n_s32(-(BITS as i32)))))
            }
            #[inline(always)]
            fn shl_i32<const BITS: u32>(self, a: I32) -> I32 {
                map(a, |a| isa!(vshlq_s32(a, vdupq_n_s32(BITS as i32))))
            }
            #[inline(always)]
            fn i32_to_f32(self, a: I32) -> F32 {
                map(a, |a| isa!(vcvtq_f32_s32(a)))
            }
            #[inline(always)]
            fn f32_to_i32(self, a: F32) -> I32 {
                map(a, |a| isa!(vcvtq_s32_f32(a)))
            }
            #[inline(always)]
            fn bits_to_f32(self, a: I32) -> F32 {
                map(a, |a| isa!(vreinterpretq_f32_s32(a)))
            }
        }
    };
}

simd!(Neon, Isa::Neon);
simd!(NeonDotprod, Isa::NeonDotprod);
simd!(NeonI8mm, Isa::NeonI8mm);
