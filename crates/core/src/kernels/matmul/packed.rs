//! The packed formats at compile time: where a block's codes and scales are, and which product of an ISA takes them.

use crate::activation::Block;
use crate::format::{BLOCK_K, FORMATS, Format, FormatSpec, PackedMatrix, SUPER_K, TILE_N};
#[cfg(target_arch = "x86_64")]
use crate::simd::BlockCodes;
use crate::simd::dot::Codes;
use crate::simd::{Dot, LANES};

/// The planes of one tile.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub(super) blocks: usize,
    w: &'a [u8],
    x: &'a [u8],
    /// Scales and mins of blocks, or of groups, of which `d` has what they are multiplied with.
    s: &'a [u8],
    m: &'a [u8],
    d: &'a [[u16; LANES]],
    /// Codes of this tile and all that follow.
    pub(super) rest: &'a [u8],
}

impl<'a> Tile<'a> {
    /// Tile `tile` of `w`, whose planes have the sizes that its format demands.
    #[inline(always)]
    pub(super) fn of<W: Packed<G>, const G: usize>(w: &'a PackedMatrix, tile: usize) -> Self {
        let blocks = super::blocks(w);
        let part = |plane: &'a [u8], block: usize| &plane[tile * blocks * block..][..blocks * block];
        let supers = if W::SPEC.scale.is_super() { blocks / SUPER_BLOCKS * W::D_PARTS } else { 0 };
        let d = &bytemuck::cast_slice::<u8, u16>(&w.d).as_chunks().0[tile * supers..][..supers];
        let mins = if W::MIN { W::SCALES } else { 0 };
        let rest = &w.w[tile * blocks * W::BLOCK..];
        Self {
            blocks,
            w: part(&w.w, W::BLOCK),
            x: part(&w.x, W::HIGH),
            s: part(&w.s, W::SCALES),
            m: part(&w.m, mins),
            d,
            rest,
        }
    }
}

/// Blocks of a superblock.
const SUPER_BLOCKS: usize = SUPER_K / BLOCK_K;

/// A packed format of `G` groups a block.
pub(super) trait Packed<const G: usize> {
    const SPEC: &'static FormatSpec;
    const MIN: bool = Self::SPEC.scale.has_min();
    const OFFSET: i32 = Self::SPEC.offset;
    /// Bytes of a block in the planes of codes.
    const BLOCK: usize = Self::SPEC.codes.fields()[0] * TILE_N * BLOCK_K / 8;
    const HIGH: usize = Self::SPEC.codes.fields()[1] * TILE_N * BLOCK_K / 8;
    /// Bytes of a block's scales, and of its mins.
    const SCALES: usize = if Self::SPEC.scale.is_super() { G * LANES } else { 2 * LANES };
    /// Vectors of a superblock in the plane `D`.
    const D_PARTS: usize = if Self::MIN { 2 } else { 1 };

    /// The codes of block `b` minus their offset.
    #[cfg(target_arch = "x86_64")]
    fn unpack(tile: Tile<'_>, b: usize, codes: &mut BlockCodes);

    /// `P - offset * S` of every group of block `b`.
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [[S::I32; R]; G];

    /// The same for one row and several tiles.
    #[inline(always)]
    fn dots<S: Dot, const P: usize, const N: usize>(
        s: S,
        tiles: [Tile<'_>; N],
        b: usize,
        x: Block<'_, P, 1>,
    ) -> [[S::I32; G]; N] {
        let mut products = [[s.splat_i32(0); G]; N];
        for n in 0..N {
            let groups = Self::dot(s, tiles[n], b, x);
            for g in 0..G {
                products[n][g] = groups[g][0];
            }
        }
        products
    }

    /// The scales of the groups of block `b`.
    #[inline(always)]
    fn scales<S: Dot>(s: S, tile: Tile<'_>, b: usize) -> [S::F32; G] {
        Self::scales_of(s, tile.s, tile.d, 0, b)
    }

    /// Their mins.
    #[inline(always)]
    fn mins<S: Dot>(s: S, tile: Tile<'_>, b: usize) -> [S::F32; G] {
        Self::scales_of(s, tile.m, tile.d, 1, b)
    }

    /// The scales in `plane`; those of two levels are multiplied with part `part` of their superblock's `d`.
    #[inline(always)]
    fn scales_of<S: Dot>(s: S, plane: &[u8], d: &[[u16; LANES]], part: usize, b: usize) -> [S::F32; G] {
        let mut scales = [s.splat(0.0); G];
        if const { Self::SPEC.scale.is_super() } {
            let d = s.load_f16(&d[b / SUPER_BLOCKS * Self::D_PARTS + part]);
            let groups = bytemuck::cast_slice::<u8, i8>(plane).as_chunks::<LANES>().0;
            for g in 0..G {
                scales[g] = s.mul(d, s.load_i8(&groups[b * G + g]));
            }
        } else {
            scales[0] = s.load_f16(&bytemuck::cast_slice::<u8, u16>(plane).as_chunks().0[b]);
        }
        scales
    }
}

/// 4-bit codes of format number `F`, one group a block.
pub(super) struct U4<const F: usize>;
/// The same of 5 bits.
pub(super) struct U5<const F: usize>;
/// Signed bytes.
pub(super) struct I8;
/// Codes of format number `F`, two groups a block.
pub(super) struct Halves<const F: usize>;

impl<const F: usize> Packed<1> for U4<F> {
    const SPEC: &'static FormatSpec = &FORMATS[F];
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn unpack(tile: Tile<'_>, b: usize, codes: &mut BlockCodes) {
        let w: &[u8; 256] = &tile.w.as_chunks().0[b];
        for (i, out) in codes.0.iter_mut().enumerate() {
            nibbles(w, i, out);
            subtract(Self::OFFSET, out);
        }
    }
    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [[S::I32; R]; 1] {
        [s.dot_u4(&tile.w.as_chunks().0[b], x, Self::OFFSET)]
    }
    #[inline(always)]
    fn dots<S: Dot, const P: usize, const N: usize>(
        s: S,
        tiles: [Tile<'_>; N],
        b: usize,
        x: Block<'_, P, 1>,
    ) -> [[S::I32; 1]; N] {
        let mut codes: [&[u8; 256]; N] = [&tiles[0].w.as_chunks().0[b]; N];
        for n in 1..N {
            codes[n] = &tiles[n].w.as_chunks().0[b];
        }
        s.dots_u4(codes, x, Self::OFFSET).map(|product| [product])
    }
}

impl<const F: usize> Packed<1> for U5<F> {
    const SPEC: &'static FormatSpec = &FORMATS[F];
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn unpack(tile: Tile<'_>, b: usize, codes: &mut BlockCodes) {
        let (w, high): (&[u8; 256], &[u8; 64]) = (&tile.w.as_chunks().0[b], &tile.x.as_chunks().0[b]);
        for (i, out) in codes.0.iter_mut().enumerate() {
            nibbles(w, i, out);
            for (code, high) in out.iter_mut().zip(high) {
                *code |= (high >> i & 1) << 4;
            }
            subtract(Self::OFFSET, out);
        }
    }
    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [[S::I32; R]; 1] {
        [s.dot_u5(&tile.w.as_chunks().0[b], &tile.x.as_chunks().0[b], x, Self::OFFSET)]
    }
}

impl Packed<1> for I8 {
    const SPEC: &'static FormatSpec = &FORMATS[Format::Q8 as usize];
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn unpack(tile: Tile<'_>, b: usize, codes: &mut BlockCodes) {
        codes.0.as_flattened_mut().copy_from_slice(&tile.w[b * Self::BLOCK..][..Self::BLOCK]);
    }
    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [[S::I32; R]; 1] {
        [s.dot_i8(&tile.w.as_chunks().0[b], x)]
    }
}

impl<const F: usize> Packed<2> for Halves<F> {
    const SPEC: &'static FormatSpec = &FORMATS[F];
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn unpack(tile: Tile<'_>, b: usize, codes: &mut BlockCodes) {
        let fields = Fields::<F>::of(tile, b);
        for (word, out) in codes.0.iter_mut().enumerate() {
            *out = fields.word(crate::simd::Scalar, word, 0);
            subtract(Self::OFFSET, out);
        }
    }
    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [[S::I32; R]; 2] {
        s.dot_halves(Fields::<F>::of(tile, b), x, Self::OFFSET)
    }
}

/// The fields of a block's codes, of format number `F`.
#[derive(Clone, Copy)]
struct Fields<'a, const F: usize> {
    w: &'a [u8],
    x: &'a [u8],
}

impl<'a, const F: usize> Fields<'a, F> {
    const BITS: [usize; 2] = FORMATS[F].codes.fields();

    #[inline(always)]
    fn of(tile: Tile<'a>, b: usize) -> Self {
        let block = |plane: &'a [u8], bits: usize| {
            let len = bits * TILE_N * BLOCK_K / 8;
            &plane[b * len..][..len]
        };
        let [low, high] = Self::BITS;
        Self { w: block(tile.w, low), x: block(tile.x, high) }
    }

    /// The fields of `bits` bits of a word in a plane, from bit `to` on.
    #[inline(always)]
    fn field<S: Dot>(s: S, plane: &[u8], bits: usize, word: usize, part: usize, to: usize) -> S::Bytes {
        let of_byte = 8 / bits;
        let granule = &plane.as_chunks().0[word / of_byte];
        s.field(s.load_bytes(granule, part), bits as u32, (bits * (word % of_byte)) as u32, to as u32)
    }
}

impl<const F: usize> Codes for Fields<'_, F> {
    const MAX: i32 = (1 << (Self::BITS[0] + Self::BITS[1])) - 1;

    #[inline(always)]
    fn word<S: Dot>(self, s: S, word: usize, part: usize) -> S::Bytes {
        let [low, high] = Self::BITS;
        let codes = Self::field(s, self.w, low, word, part, 0);
        if high == 0 { codes } else { s.or(codes, Self::field(s, self.x, high, word, part, low)) }
    }
}

/// Word `i` of every column: the low or the high nibbles of a granule.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn nibbles(w: &[u8; 256], i: usize, codes: &mut [u8; 64]) {
    let granule: &[u8; 64] = &w.as_chunks().0[i / 2];
    for (code, byte) in codes.iter_mut().zip(granule) {
        *code = if i.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
    }
}

/// Codes minus their offset, as signed bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn subtract(offset: i32, codes: &mut [u8; 64]) {
    for code in codes {
        *code = code.wrapping_sub(offset as u8);
    }
}
