//! Integer dot products of one block: 16 columns x 32 `k` of packed codes with the codes of some rows of activations.

#![allow(clippy::needless_range_loop, reason = "rows and planes index several arrays at once")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod wasm;
#[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
mod wasm_relaxed;

use super::{Kernel, Simd};
use crate::activation::Block;

/// The integer half of matrix products. The defaults are plain Rust; an ISA overrides what it does better.
///
/// `x` holds one block of `R` rows, each in `P` planes of signed bytes (1 for a8; hi and lo for a16, whose weights are
/// unpacked only once). The results are exact: `sum over k of q * (u - offset)` for 16 columns, one vector a row.
/// Codes of activations are in `-127..=127`; `offset` is in `0..=16`.
pub trait Dot: Simd {
    /// Rows times planes that one call should take: as many as share the unpacked weights without spilling registers.
    const ROWS: usize = 1;
    /// Tiles that one call should take with one row.
    const TILES: usize = 1;
    /// What the products are made of, for reports.
    const NAME: &'static str = "plain";

    /// A register's worth of [`Codes`].
    type Bytes: Copy;
    /// Registers of a granule: part `p` holds its columns `16 / PARTS * p..`.
    const PARTS: usize;
    /// Loads a part of a granule.
    fn load_bytes(self, granule: &[u8; 64], part: usize) -> Self::Bytes;
    /// Stores what would be loaded there.
    fn store_bytes(self, x: Self::Bytes, granule: &mut [u8; 64], part: usize);
    /// The field of `bits` bits from bit `from` on of every byte.
    fn field(self, x: Self::Bytes, bits: usize, from: usize) -> Self::Bytes;
    /// `low | high << at`, where no bit leaves its byte.
    fn join(self, low: Self::Bytes, high: Self::Bytes, at: usize) -> Self::Bytes;

    /// For each half of a block, `sum over its k of q * (u - offset)`, whatever the codes are made of.
    fn dot_halves<C: Codes, const P: usize, const R: usize>(
        self,
        w: C,
        x: Block<'_, P, R>,
        offset: i32,
    ) -> [[Self::I32; R]; 2];

    /// What `table` has for every byte, all below 16.
    fn lookup(self, table: &[i8; 16], x: Self::Bytes) -> Self::Bytes;

    /// [`Dot::dot_halves`] of codes that are signed bytes above -128, and have no offset.
    #[inline(always)]
    fn dot_signed<C: Codes, const P: usize, const R: usize>(
        self,
        w: C,
        x: Block<'_, P, R>,
    ) -> [[Self::I32; R]; 2] {
        let mut words = [[0; 64]; 8];
        for (i, word) in words.iter_mut().enumerate() {
            for part in 0..Self::PARTS {
                self.store_bytes(w.word(self, i, part), word, part);
            }
        }
        scalar::halves(self, &scalar::codes_i8(bytemuck::cast_ref(&words)), x, [[0; R]; 2], 0)
    }

    /// The same of codes that are bytes: `[8][16]` words of 4.
    #[inline(always)]
    fn dot_bytes<const P: usize, const R: usize>(
        self,
        w: &[u8; 512],
        x: Block<'_, P, R>,
        offset: i32,
    ) -> [[Self::I32; R]; 2] {
        self.dot_halves(Bytes(w), x, offset)
    }

    /// Runs `kernel` as a function of its own, compiled for this ISA, from code that already is.
    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        fn outlined<S: Dot, K: Kernel>(s: S, kernel: K) -> K::Output {
            kernel.run(s)
        }
        outlined(self, kernel)
    }

    /// `u` is an unsigned 4-bit code. `w` is `[4][16]` words of 8 codes: byte `b` of a word holds `k = b` (low nibble)
    /// and `k = b + 4`.
    #[inline(always)]
    fn dot_u4<const P: usize, const R: usize>(
        self,
        w: &[u8; 256],
        x: Block<'_, P, R>,
        offset: i32,
    ) -> [Self::I32; R] {
        scalar::dot(self, &scalar::codes_u4(w), x, offset)
    }

    /// [`Dot::dot_u4`] of one row and several tiles.
    #[inline(always)]
    fn dots_u4<const P: usize, const N: usize>(
        self,
        w: [&[u8; 256]; N],
        x: Block<'_, P, 1>,
        offset: i32,
    ) -> [Self::I32; N] {
        let mut products = [self.splat_i32(0); N];
        for n in 0..N {
            products[n] = self.dot_u4(w[n], x, offset)[0];
        }
        products
    }

    /// As [`Dot::dot_u4`] with bit 4 of code `k` of a column in bit `8 * (k % 4) + k / 4` of its word of `high`.
    #[inline(always)]
    fn dot_u5<const P: usize, const R: usize>(
        self,
        w: &[u8; 256],
        high: &[u8; 64],
        x: Block<'_, P, R>,
        offset: i32,
    ) -> [Self::I32; R] {
        scalar::dot(self, &scalar::codes_u5(w, high), x, offset)
    }

    /// Whether the next do more than what they say: else their factors, which are read before the products are made,
    /// only take registers.
    const ADDS: bool = false;

    /// Adds to `sums` the terms that [`Factors::add`] makes of [`Dot::dot_u4`]. Until [`Dot::totals`] they may be in an
    /// order of the ISA's own.
    #[inline(always)]
    fn add_u4<const P: usize, const R: usize>(
        self,
        w: &[u8; 256],
        x: Block<'_, P, R>,
        offset: i32,
        factors: Factors<Self::F32, 1>,
        sums: &mut [Self::F32; R],
    ) {
        factors.add(self, [self.dot_u4(w, x, offset)], x, sums);
    }

    /// The same of [`Dot::dot_u5`].
    #[inline(always)]
    fn add_u5<const P: usize, const R: usize>(
        self,
        w: (&[u8; 256], &[u8; 64]),
        x: Block<'_, P, R>,
        offset: i32,
        factors: Factors<Self::F32, 1>,
        sums: &mut [Self::F32; R],
    ) {
        factors.add(self, [self.dot_u5(w.0, w.1, x, offset)], x, sums);
    }

    /// The same of [`Dot::dot_i8`].
    #[inline(always)]
    fn add_i8<const P: usize, const R: usize>(
        self,
        w: &[u8; 512],
        x: Block<'_, P, R>,
        factors: Factors<Self::F32, 1>,
        sums: &mut [Self::F32; R],
    ) {
        factors.add(self, [self.dot_i8(w, x)], x, sums);
    }

    /// Puts sums in order to which only these have added.
    #[inline(always)]
    fn totals<const P: usize, const R: usize>(self, sums: &mut [Self::F32; R]) {
        let _ = sums;
    }

    /// `u` is a signed byte and the offset 0. `w` is `[8][16]` words of 4 bytes.
    #[inline(always)]
    fn dot_i8<const P: usize, const R: usize>(self, w: &[u8; 512], x: Block<'_, P, R>) -> [Self::I32; R] {
        scalar::dot(self, &scalar::codes_i8(w), x, 0)
    }
}

/// What the products of a block are multiplied with, a group an item.
#[derive(Clone, Copy)]
pub struct Factors<F, const G: usize> {
    /// Of the weights.
    pub scales: [F; G],
    /// What the sums of the rows are multiplied with, where the format has it.
    pub mins: Option<[F; G]>,
}

impl<F: Copy, const G: usize> Factors<F, G> {
    /// Adds a block's term to each of `sums`, rounded as `kernels::matmul` says.
    #[inline(always)]
    pub fn add<S: Simd<F32 = F>, const P: usize, const R: usize>(
        self,
        s: S,
        products: [[S::I32; R]; G],
        x: Block<'_, P, R>,
        sums: &mut [F; R],
    ) {
        for r in 0..R {
            let mut terms = self.scales;
            for g in 0..G {
                terms[g] = s.mul(s.i32_to_f32(products[g][r]), self.scales[g]);
                if let Some(mins) = self.mins {
                    let sum = if G == 1 { x.sums[r] } else { x.sums_of_halves(r)[g] };
                    terms[g] = s.add(terms[g], s.mul(s.splat(sum as f32), mins[g]));
                }
            }
            let term = if G == 1 { terms[0] } else { s.add(terms[0], terms[G - 1]) };
            sums[r] = s.add(sums[r], s.mul(term, s.splat(x.scales[r])));
        }
    }
}

/// The codes of a block of 16 columns, as their format unpacks them: unsigned for [`Dot::dot_halves`], signed for
/// [`Dot::dot_signed`].
pub trait Codes: Copy {
    /// The largest magnitude of a code, at most 127.
    fn max(self) -> i32;

    /// The codes of word `word` (its `k` are `4 * word..`) of the columns of part `part`.
    fn word<S: Dot>(self, s: S, word: usize, part: usize) -> S::Bytes;
}

/// Codes that are bytes, below 128.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8; 512]);

impl Codes for Bytes<'_> {
    #[inline(always)]
    fn max(self) -> i32 {
        127
    }

    #[inline(always)]
    fn word<S: Dot>(self, s: S, word: usize, part: usize) -> S::Bytes {
        s.load_bytes(&self.0.as_chunks().0[word], part)
    }
}

/// The sums over the halves of the codes of rows.
#[inline(always)]
fn half_sums<const P: usize, const R: usize>(x: Block<'_, P, R>) -> [[i32; R]; 2] {
    let mut sums = [[0; R]; 2];
    for r in 0..R {
        [sums[0][r], sums[1][r]] = x.sums_of_halves(r);
    }
    sums
}

/// The products of the planes of rows, joined: `128 * hi + lo` (or the only plane's) minus `offset` times the sum of its codes.
#[inline(always)]
fn join<S: Simd, const P: usize, const R: usize>(
    s: S,
    planes: [[S::I32; P]; R],
    sums: [i32; R],
    offset: i32,
) -> [S::I32; R] {
    let mut joined = [s.splat_i32(0); R];
    for r in 0..R {
        let p = planes[r][P - 1];
        let p = if P == 2 { s.add_i32(s.shl_i32::<7>(planes[r][0]), p) } else { p };
        joined[r] = if offset == 0 { p } else { s.sub_i32(p, s.splat_i32(offset * sums[r])) };
    }
    joined
}
