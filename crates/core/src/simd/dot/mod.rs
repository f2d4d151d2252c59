//! Integer dot products of one block: 16 columns x 32 `k` of packed codes with the codes of some rows of activations.

mod scalar;

use super::Simd;
use crate::activation::Block;

/// The integer half of matrix products. The defaults are plain Rust; an ISA overrides what it does better.
///
/// `x` holds one block of `R` rows, each in `P` planes of signed bytes (1 for a8; hi and lo for a16, whose weights are
/// unpacked only once). Results are `[row][plane]`, 16 columns each, and exact.
pub trait Dot: Simd {
    /// Rows that one call should take for the weights to be unpacked rarely without spilling registers,
    /// counted in planes.
    const ROWS: usize = 4;

    /// Sum over `k` of unsigned 4-bit code times activation code.
    ///
    /// `w` is `[4][16]` words of 8 codes: byte `b` of a word holds `k = b` (low nibble) and `k = b + 4`.
    #[inline(always)]
    fn dot_u4<const P: usize, const R: usize>(self, w: &[u8; 256], x: [&Block<P>; R]) -> [[Self::I32; P]; R] {
        scalar::dot(self, &scalar::codes_u4(w), x)
    }

    /// As [`Dot::dot_u4`] with bit 4 of code `k` of a column in bit `8 * (k % 4) + k / 4` of its word of `high`.
    #[inline(always)]
    fn dot_u5<const P: usize, const R: usize>(
        self,
        w: &[u8; 256],
        high: &[u8; 64],
        x: [&Block<P>; R],
    ) -> [[Self::I32; P]; R] {
        scalar::dot(self, &scalar::codes_u5(w, high), x)
    }

    /// Sum over `k` of signed byte times activation code. `w` is `[8][16]` words of 4 bytes.
    #[inline(always)]
    fn dot_i8<const P: usize, const R: usize>(self, w: &[u8; 512], x: [&Block<P>; R]) -> [[Self::I32; P]; R] {
        scalar::dot(self, &scalar::codes_i8(w), x)
    }
}

impl Dot for super::Scalar {}
#[cfg(target_arch = "x86_64")]
impl Dot for super::Avx2 {}
#[cfg(target_arch = "x86_64")]
impl Dot for super::Avx512 {}
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
impl Dot for super::Wasm {}
#[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
impl Dot for super::WasmRelaxed {}
