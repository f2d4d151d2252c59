//! Vector instruction sets.
//!
//! Kernels are generic over a zero-sized token ([`Simd`]) that exists only where the CPU has the feature, so that
//! the trait's methods are safe. Everything is written against a *virtual vector of 16 lanes*; every ISA computes the
//! same lanes in the same order and rounds after every operation (no fused multiply-add), hence the same bits.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dispatch;
pub mod dot;
#[cfg(target_arch = "x86_64")]
mod engine;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(target_arch = "aarch64")]
mod sme;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod wasm;

#[cfg(target_arch = "x86_64")]
pub use amx::{Amx, AmxTiles};
#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub use dispatch::{Kernel, dispatch};
pub use dot::Dot;
#[cfg(target_arch = "x86_64")]
pub use engine::{BlockCodes, MatrixEngine, PanelSums};
#[cfg(target_arch = "aarch64")]
pub use neon::{Neon, NeonDotprod, NeonI8mm};
pub use scalar::Scalar;
#[cfg(target_arch = "aarch64")]
pub use sme::Sme;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub use wasm::Wasm;
#[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
pub use wasm::WasmRelaxed;

/// An instruction set that kernels can be run with. Ordered from the plainest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust, no vector instructions: the definition of every result.
    Scalar,
    /// AVX2 with F16C.
    Avx2,
    /// AVX-512 (F, BW, VL, VNNI).
    Avx512,
    /// AMX for products with many rows, AVX-512 for everything else.
    Amx,
    /// NEON, as every 64-bit Arm core has it.
    Neon,
    /// NEON with dot products of bytes (Armv8.2 `dotprod`).
    NeonDotprod,
    /// NEON with products of matrices of bytes (Armv8.6 `i8mm`).
    NeonI8mm,
    /// SME's outer products for products with many rows, NEON for everything else.
    Sme,
    /// The same, and SME2's dot products for a single row.
    Sme2,
    /// WebAssembly simd128.
    Wasm,
    /// WebAssembly relaxed-simd.
    WasmRelaxed,
}

/// Lanes of a virtual vector.
pub const LANES: usize = 16;

/// The largest finite IEEE half.
pub const F16_MAX: f32 = 65504.0;

/// 16 halves or floats.
pub trait Lanes {
    /// Loads them as floats.
    fn load<S: Simd>(&self, s: S) -> S::F32;
}

impl Lanes for [u16; LANES] {
    #[inline(always)]
    fn load<S: Simd>(&self, s: S) -> S::F32 {
        s.load_f16(self)
    }
}

impl Lanes for [f32; LANES] {
    #[inline(always)]
    fn load<S: Simd>(&self, s: S) -> S::F32 {
        s.load(self)
    }
}

/// Elementwise f32 arithmetic on 16 lanes. Every operation is IEEE single with round to nearest even.
pub trait Simd: Copy + Send + Sync + 'static {
    /// The instruction set.
    const ISA: Isa;
    /// 16 x f32.
    type F32: Copy;
    /// 16 x i32.
    type I32: Copy;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F32;
    /// Loads 16 floats.
    fn load(self, x: &[f32; LANES]) -> Self::F32;
    /// Stores 16 floats.
    fn store(self, v: Self::F32, out: &mut [f32; LANES]);
    /// Asks for the cache line of `x`, where the ISA can.
    #[inline(always)]
    fn prefetch<T>(self, x: &T) {
        let _ = x;
    }
    /// Widens 16 finite IEEE halves (exact, denormals too).
    fn load_f16(self, x: &[u16; LANES]) -> Self::F32;
    /// Converts 16 signed bytes.
    fn load_i8(self, x: &[i8; LANES]) -> Self::F32;
    /// Narrows to the nearest IEEE half, ties to even; saturates at [`F16_MAX`], so that the result is finite.
    fn store_f16(self, v: Self::F32, out: &mut [u16; LANES]);
    /// `a + b`
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a - b`
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b`
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a / b`
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `if a > b { a } else { b }`
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `if a < b { a } else { b }`
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `|a|`
    fn abs(self, a: Self::F32) -> Self::F32;
    /// Nearest integer, ties to even.
    fn round(self, a: Self::F32) -> Self::F32;
    /// Sum of the lanes in the fixed tree `i + (i + 8)`, `+ 4`, `+ 2`, `+ 1`.
    fn reduce_add(self, a: Self::F32) -> f32;
    /// Largest lane (same tree; the operands hold no NaN).
    fn reduce_max(self, a: Self::F32) -> f32;

    /// `sums[q][c] += row[column + c] * factor(i, q)` for every row `i`, in order.
    #[inline(always)]
    fn add_products<'a, T: Lanes + 'a, const Q: usize, const C: usize>(
        self,
        sums: &mut [[Self::F32; C]; Q],
        rows: impl Iterator<Item = &'a [T]> + Clone,
        column: usize,
        factor: impl Fn(usize, usize) -> f32,
    ) {
        for (i, row) in rows.enumerate() {
            for c in 0..C {
                let x = row[column + c].load(self);
                for (q, sums) in sums.iter_mut().enumerate() {
                    sums[c] = self.add(sums[c], self.mul(x, self.splat(factor(i, q))));
                }
            }
        }
    }

    /// All lanes `x`.
    fn splat_i32(self, x: i32) -> Self::I32;
    /// Loads 16 integers.
    fn load_i32(self, x: &[i32; LANES]) -> Self::I32;
    /// Stores 16 integers.
    fn store_i32(self, v: Self::I32, out: &mut [i32; LANES]);
    /// `a + b`, wrapping.
    fn add_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a - b`, wrapping.
    fn sub_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a * b`, wrapping.
    fn mul_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a & b`
    fn and_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a >> BITS`, rounding down.
    fn sar_i32<const BITS: u32>(self, a: Self::I32) -> Self::I32;
    /// `a << BITS`
    fn shl_i32<const BITS: u32>(self, a: Self::I32) -> Self::I32;
    /// Converts, rounding to nearest even.
    fn i32_to_f32(self, a: Self::I32) -> Self::F32;
    /// Converts integral values that fit.
    fn f32_to_i32(self, a: Self::F32) -> Self::I32;
    /// The same bits as float.
    fn bits_to_f32(self, a: Self::I32) -> Self::F32;
}

#[cfg(test)]
mod tests;
