//! WebAssembly simd128: four registers are a virtual vector.
//!
//! The relaxed token computes floats with the same instructions: relaxed ones may round differently from engine to
//! engine. It differs only in its dot products.

use core::arch::wasm32::*;

use super::{F16_MAX, Isa, LANES, Lanes, Simd};

/// The token of WebAssembly simd128.
#[derive(Clone, Copy, Debug)]
pub struct Wasm(());

#[expect(clippy::new_without_default, reason = "a token is made where the ISA is known to be there")]
impl Wasm {
    /// The token: a module built with simd128 runs only where the engine has it.
    #[inline(always)]
    pub fn new() -> Self {
        Self(())
    }
}

/// The token of WebAssembly relaxed-simd.
#[cfg(target_feature = "relaxed-simd")]
#[derive(Clone, Copy, Debug)]
pub struct WasmRelaxed(());

#[cfg(target_feature = "relaxed-simd")]
#[expect(clippy::new_without_default, reason = "a token is made where the ISA is known to be there")]
impl WasmRelaxed {
    /// The token: a module built with relaxed-simd runs only where the engine has it.
    #[inline(always)]
    pub fn new() -> Self {
        Self(())
    }
}

type V = [v128; 4];

#[inline(always)]
fn map(a: V, f: impl Fn(v128) -> v128) -> V {
    [f(a[0]), f(a[1]), f(a[2]), f(a[3])]
}

#[inline(always)]
fn map2(a: V, b: V, f: impl Fn(v128, v128) -> v128) -> V {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

#[inline(always)]
fn load<T>(x: &[T; LANES]) -> V {
    const { assert!(size_of::<T>() == 4) };
    let p: *const v128 = x.as_ptr().cast();
    // SAFETY: the array has 64 bytes; loads may be unaligned.
    unsafe { [v128_load(p), v128_load(p.add(1)), v128_load(p.add(2)), v128_load(p.add(3))] }
}

#[inline(always)]
fn store<T>(v: V, out: &mut [T; LANES]) {
    const { assert!(size_of::<T>() == 4) };
    let p: *mut v128 = out.as_mut_ptr().cast();
    // SAFETY: the array has 64 bytes; stores may be unaligned.
    unsafe {
        v128_store(p, v[0]);
        v128_store(p.add(1), v[1]);
        v128_store(p.add(2), v[2]);
        v128_store(p.add(3), v[3]);
    }
}

/// Halves, sign-extended to 32 bits, as floats: exponent and mantissa are moved into place, and the factor mends the
/// bias, denormals included.
#[inline(always)]
fn widen_f16(x: v128) -> v128 {
    let placed = v128_and(i32x4_shl(x, 13), u32x4_splat(0x8fff_e000));
    f32x4_mul(placed, f32x4_splat(f32::from_bits((127 + 112) << 23)))
}

/// The halves (in 32-bit lanes) nearest to `x`, ties to even; `|x|` is at most [`F16_MAX`].
#[inline(always)]
fn narrow_f16(x: v128) -> v128 {
    let sign = u32x4_shr(v128_and(x, u32x4_splat(0x8000_0000)), 16);
    let magnitude = f32x4_abs(x);
    // Below 2^-14 the half's unit is 2^-24, the unit of floats in [0.5, 1): the addition rounds.
    let half = f32x4_splat(0.5);
    let tiny = i32x4_sub(f32x4_add(magnitude, half), half);
    let odd = v128_and(u32x4_shr(magnitude, 13), u32x4_splat(1));
    let rounded = i32x4_add(i32x4_add(magnitude, odd), u32x4_splat(0xfff));
    let normal = i32x4_sub(u32x4_shr(rounded, 13), u32x4_splat(112 << 10));
    let is_tiny = f32x4_lt(magnitude, f32x4_splat(f32::from_bits((127 - 14) << 23)));
    v128_or(sign, v128_bitselect(tiny, normal, is_tiny))
}

#[inline(always)]
fn reduce(a: V, f: impl Fn(v128, v128) -> v128) -> f32 {
    let a = f(f(a[0], a[2]), f(a[1], a[3]));
    let a = f(a, i32x4_shuffle::<2, 3, 2, 3>(a, a));
    f32x4_extract_lane::<0>(f(a, i32x4_shuffle::<1, 1, 1, 1>(a, a)))
}

// Where there are relaxed instructions the compiler makes `relaxed_max` and `relaxed_min` of these. They differ only in
// which zero, and whether a NaN, is returned: no result depends on either as long as activations are finite.

#[inline(always)]
fn max(a: v128, b: v128) -> v128 {
    // `pmax(x, y)` is `if x < y { y } else { x }`.
    f32x4_pmax(b, a)
}

#[inline(always)]
fn min(a: v128, b: v128) -> v128 {
    // `pmin(x, y)` is `if y < x { y } else { x }`.
    f32x4_pmin(b, a)
}

/// [`Simd::add_products`] for column `c` of the sums and `N` registers of it from `FIRST`.
#[inline(always)]
fn add_part<'a, S, T, const Q: usize, const C: usize, const FIRST: usize, const N: usize>(
    s: S,
    sums: &mut [[V; C]; Q],
    rows: impl Iterator<Item = &'a [T]>,
    column: usize,
    factor: impl Fn(usize, usize) -> f32,
    c: usize,
) where
    S: Simd<F32 = V>,
    T: Lanes + 'a,
{
    let mut part = [[f32x4_splat(0.0); N]; Q];
    for (part, sums) in part.iter_mut().zip(&*sums) {
        part.copy_from_slice(&sums[c][FIRST..FIRST + N]);
    }
    for (i, row) in rows.enumerate() {
        let x = row[column + c].load(s);
        for (q, part) in part.iter_mut().enumerate() {
            let factor = f32x4_splat(factor(i, q));
            for (sum, x) in part.iter_mut().zip(&x[FIRST..FIRST + N]) {
                *sum = f32x4_add(*sum, f32x4_mul(*x, factor));
            }
        }
    }
    for (part, sums) in part.iter().zip(sums) {
        sums[c][FIRST..FIRST + N].copy_from_slice(part);
    }
}

macro_rules! simd {
    ($token:ident, $isa:expr) => {
        impl Simd for $token {
            const ISA: Isa = $isa;
            type F32 = V;
            type I32 = V;

            #[inline(always)]
            fn splat(self, x: f32) -> V {
                [f32x4_splat(x); 4]
            }
            #[inline(always)]
            fn load(self, x: &[f32; LANES]) -> V {
                load(x)
            }
            #[inline(always)]
            fn store(self, v: V, out: &mut [f32; LANES]) {
                store(v, out)
            }
            #[inline(always)]
            fn load_f16(self, x: &[u16; LANES]) -> V {
                let p: *const i16 = x.as_ptr().cast();
                // SAFETY: the array has 32 bytes; loads may be unaligned.
                let x = unsafe {
                    [
                        i32x4_load_extend_i16x4(p),
                        i32x4_load_extend_i16x4(p.add(4)),
                        i32x4_load_extend_i16x4(p.add(8)),
                        i32x4_load_extend_i16x4(p.add(12)),
                    ]
                };
                map(x, widen_f16)
            }
            #[inline(always)]
            fn load_i8(self, x: &[i8; LANES]) -> V {
                // SAFETY: the array has 16 bytes; loads may be unaligned.
                let x = unsafe { v128_load(x.as_ptr().cast()) };
                let [low, high] = [i16x8_extend_low_i8x16(x), i16x8_extend_high_i8x16(x)];
                [
                    f32x4_convert_i32x4(i32x4_extend_low_i16x8(low)),
                    f32x4_convert_i32x4(i32x4_extend_high_i16x8(low)),
                    f32x4_convert_i32x4(i32x4_extend_low_i16x8(high)),
                    f32x4_convert_i32x4(i32x4_extend_high_i16x8(high)),
                ]
            }
            #[inline(always)]
            fn store_f16(self, v: V, out: &mut [u16; LANES]) {
                let v = self.max(self.min(v, self.splat(F16_MAX)), self.splat(-F16_MAX));
                let v = map(v, narrow_f16);
                let p: *mut v128 = out.as_mut_ptr().cast();
                // SAFETY: the array has 32 bytes; stores may be unaligned.
                unsafe {
                    v128_store(p, u16x8_narrow_i32x4(v[0], v[1]));
                    v128_store(p.add(1), u16x8_narrow_i32x4(v[2], v[3]));
                }
            }
            #[inline(always)]
            fn add(self, a: V, b: V) -> V {
                map2(a, b, |a, b| f32x4_add(a, b))
            }
            #[inline(always)]
            fn sub(self, a: V, b: V) -> V {
                map2(a, b, |a, b| f32x4_sub(a, b))
            }
            #[inline(always)]
            fn mul(self, a: V, b: V) -> V {
                map2(a, b, |a, b| f32x4_mul(a, b))
            }
            #[inline(always)]
            fn div(self, a: V, b: V) -> V {
                map2(a, b, |a, b| f32x4_div(a, b))
            }
            #[inline(always)]
            fn max(self, a: V, b: V) -> V {
                map2(a, b, max)
            }
            #[inline(always)]
            fn min(self, a: V, b: V) -> V {
                map2(a, b, min)
            }
            #[inline(always)]
            fn abs(self, a: V) -> V {
                map(a, |a| f32x4_abs(a))
            }
            #[inline(always)]
            fn round(self, a: V) -> V {
                map(a, |a| f32x4_nearest(a))
            }
            #[inline(always)]
            fn reduce_add(self, a: V) -> f32 {
                reduce(a, |a, b| f32x4_add(a, b))
            }
            #[inline(always)]
            fn reduce_max(self, a: V) -> f32 {
                reduce(a, max)
            }
            /// There are 16 registers: they hold the sums of two whole vectors, or of four halves.
            #[inline(always)]
            fn add_products<'a, T: Lanes + 'a, const Q: usize, const C: usize>(
                self,
                sums: &mut [[V; C]; Q],
                rows: impl Iterator<Item = &'a [T]> + Clone,
                column: usize,
                factor: impl Fn(usize, usize) -> f32,
            ) {
                for c in 0..C {
                    if Q > 2 {
                        add_part::<_, T, Q, C, 0, 2>(self, sums, rows.clone(), column, &factor, c);
                        add_part::<_, T, Q, C, 2, 2>(self, sums, rows.clone(), column, &factor, c);
                    } else {
                        add_part::<_, T, Q, C, 0, 4>(self, sums, rows.clone(), column, &factor, c);
                    }
                }
            }
            #[inline(always)]
            fn splat_i32(self, x: i32) -> V {
                [i32x4_splat(x); 4]
            }
            #[inline(always)]
            fn load_i32(self, x: &[i32; LANES]) -> V {
                load(x)
            }
            #[inline(always)]
            fn store_i32(self, v: V, out: &mut [i32; LANES]) {
                store(v, out)
            }
            #[inline(always)]
            fn add_i32(self, a: V, b: V) -> V {
                map2(a, b, |a, b| i32x4_add(a, b))
            }
            #[inline(always)]
            fn sub_i32(self, a: V, b: V) -> V {
                map2(a, b, |a, b| i32x4_sub(a, b))
            }
            #[inline(always)]
            fn mul_i32(self, a: V, b: V) -> V {
                map2(a, b, |a, b| i32x4_mul(a, b))
            }
            #[inline(always)]
            fn and_i32(self, a: V, b: V) -> V {
                map2(a, b, |a, b| v128_and(a, b))
            }
            #[inline(always)]
            fn sar_i32<const BITS: u32>(self, a: V) -> V {
                map(a, |a| i32x4_shr(a, BITS))
            }
            #[inline(always)]
            fn shl_i32<const BITS: u32>(self, a: V) -> V {
                map(a, |a| i32x4_shl(a, BITS))
            }
            #[inline(always)]
            fn i32_to_f32(self, a: V) -> V {
                map(a, |a| f32x4_convert_i32x4(a))
            }
            #[inline(always)]
            fn f32_to_i32(self, a: V) -> V {
                map(a, |a| i32x4_trunc_sat_f32x4(a))
            }
            #[inline(always)]
            fn bits_to_f32(self, a: V) -> V {
                a
            }
        }
    };
}

simd!(Wasm, Isa::Wasm);
#[cfg(target_feature = "relaxed-simd")]
simd!(WasmRelaxed, Isa::WasmRelaxed);
