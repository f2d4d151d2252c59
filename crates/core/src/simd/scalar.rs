//! Plain Rust: what every other ISA must equal, bit for bit.

use super::{F16_MAX, Isa, LANES, Simd};

/// The token of plain Rust. It exists everywhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scalar;

type F32 = [f32; LANES];
type I32 = [i32; LANES];

#[inline(always)]
fn map2<T: Copy>(a: [T; LANES], b: [T; LANES], f: impl Fn(T, T) -> T) -> [T; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn fold<T: Copy>(mut a: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            a[i] = f(a[i], a[i + half]);
        }
    }
    a[0]
}

impl Simd for Scalar {
    const ISA: Isa = Isa::Scalar;
    type F32 = F32;
    type I32 = I32;

    #[inline(always)]
    fn splat(self, x: f32) -> F32 {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, x: &F32) -> F32 {
        *x
    }
    #[inline(always)]
    fn store(self, v: F32, out: &mut F32) {
        *out = v;
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> F32 {
        x.map(|bits| half::f16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> F32 {
        x.map(f32::from)
    }
    #[inline(always)]
    fn store_f16(self, v: F32, out: &mut [u16; LANES]) {
        let v = self.max(self.min(v, [F16_MAX; LANES]), [-F16_MAX; LANES]);
        *out = v.map(|x| half::f16::from_f32(x).to_bits());
    }
    #[inline(always)]
    fn add(self, a: F32, b: F32) -> F32 {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: F32, b: F32) -> F32 {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: F32, b: F32) -> F32 {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: F32, b: F32) -> F32 {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn max(self, a: F32, b: F32) -> F32 {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: F32, b: F32) -> F32 {
        map2(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn abs(self, a: F32) -> F32 {
        a.map(f32::abs)
    }
    #[inline(always)]
    fn round(self, a: F32) -> F32 {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn reduce_add(self, a: F32) -> f32 {
        fold(a, |a, b| a + b)
    }
    #[inline(always)]
    fn reduce_max(self, a: F32) -> f32 {
        fold(a, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> I32 {
        [x; LANES]
    }
    #[inline(always)]
    fn load_i32(self, x: &I32) -> I32 {
        *x
    }
    #[inline(always)]
    fn store_i32(self, v: I32, out: &mut I32) {
        *out = v;
    }
    #[inline(always)]
    fn add_i32(self, a: I32, b: I32) -> I32 {
        map2(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    fn sub_i32(self, a: I32, b: I32) -> I32 {
        map2(a, b, i32::wrapping_sub)
    }
    #[inline(always)]
    fn mul_i32(self, a: I32, b: I32) -> I32 {
        map2(a, b, i32::wrapping_mul)
    }
    #[inline(always)]
    fn and_i32(self, a: I32, b: I32) -> I32 {
        map2(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn sar_i32<const BITS: u32>(self, a: I32) -> I32 {
        a.map(|x| x >> BITS)
    }
    #[inline(always)]
    fn shl_i32<const BITS: u32>(self, a: I32) -> I32 {
        a.map(|x| x << BITS)
    }
    #[inline(always)]
    fn i32_to_f32(self, a: I32) -> F32 {
        a.map(|x| x as f32)
    }
    #[inline(always)]
    fn f32_to_i32(self, a: F32) -> I32 {
        a.map(|x| x as i32)
    }
    #[inline(always)]
    fn bits_to_f32(self, a: I32) -> F32 {
        a.map(|x| f32::from_bits(x as u32))
    }
}
