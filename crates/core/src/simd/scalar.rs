//! Plain Rust: what every other ISA must equal, bit for bit.

use super::{Isa, LANES, Simd};

/// The token of plain Rust. It exists everywhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scalar;

type F32 = [f32; LANES];
type I32 = [i32; LANES];

fn map2<T: Copy>(a: [T; LANES], b: [T; LANES], f: impl Fn(T, T) -> T) -> [T; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

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

    fn splat(self, x: f32) -> F32 {
        [x; LANES]
    }
    fn load(self, x: &F32) -> F32 {
        *x
    }
    fn store(self, v: F32, out: &mut F32) {
        *out = v;
    }
    fn load_f16(self, x: &[u16; LANES]) -> F32 {
        x.map(|bits| half::f16::from_bits(bits).to_f32())
    }
    fn add(self, a: F32, b: F32) -> F32 {
        map2(a, b, |a, b| a + b)
    }
    fn sub(self, a: F32, b: F32) -> F32 {
        map2(a, b, |a, b| a - b)
    }
    fn mul(self, a: F32, b: F32) -> F32 {
        map2(a, b, |a, b| a * b)
    }
    fn div(self, a: F32, b: F32) -> F32 {
        map2(a, b, |a, b| a / b)
    }
    fn max(self, a: F32, b: F32) -> F32 {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    fn min(self, a: F32, b: F32) -> F32 {
        map2(a, b, |a, b| if a < b { a } else { b })
    }
    fn abs(self, a: F32) -> F32 {
        a.map(f32::abs)
    }
    fn round(self, a: F32) -> F32 {
        a.map(f32::round_ties_even)
    }
    fn reduce_add(self, a: F32) -> f32 {
        fold(a, |a, b| a + b)
    }
    fn reduce_max(self, a: F32) -> f32 {
        fold(a, |a, b| if a > b { a } else { b })
    }
    fn splat_i32(self, x: i32) -> I32 {
        [x; LANES]
    }
    fn load_i32(self, x: &I32) -> I32 {
        *x
    }
    fn store_i32(self, v: I32, out: &mut I32) {
        *out = v;
    }
    fn add_i32(self, a: I32, b: I32) -> I32 {
        map2(a, b, i32::wrapping_add)
    }
    fn sub_i32(self, a: I32, b: I32) -> I32 {
        map2(a, b, i32::wrapping_sub)
    }
    fn shl_i32<const BITS: u32>(self, a: I32) -> I32 {
        a.map(|x| x << BITS)
    }
    fn i32_to_f32(self, a: I32) -> F32 {
        a.map(|x| x as f32)
    }
    fn f32_to_i32(self, a: F32) -> I32 {
        a.map(|x| x as i32)
    }
    fn bits_to_f32(self, a: I32) -> F32 {
        a.map(|x| f32::from_bits(x as u32))
    }
}
