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
    format: Format,
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
        let spec = W::spec(w.format);
        let [low, high] = spec.codes.fields().map(bytes_of_field);
        let scales = if spec.scale.is_super() { G * LANES } else { 2 * LANES };
        let mins = if spec.scale.has_min() { scales } else { 0 };
        let part = |plane: &'a [u8], block: usize| &plane[tile * blocks * block..][..blocks * block];
        let supers = blocks / SUPER_BLOCKS * spec.scale.parts();
        Self {
            format: w.format,
            blocks,
            w: part(&w.w, low),
            x: part(&w.x, high),
            s: part(&w.s, scales),
            m: part(&w.m, mins),
            d: &bytemuck::cast_slice::<u8, u16>(&w.d).as_chunks().0[tile * supers..][..supers],
            rest: &w.w[tile * blocks * low..],
        }
    }
}

/// Blocks of a superblock.
const SUPER_BLOCKS: usize = SUPER_K / BLOCK_K;

/// Bytes of a block in a plane of fields.
#[inline(always)]
fn bytes_of_field(bits: usize) -> usize {
    bits * TILE_N * BLOCK_K / 8
}

/// A packed format, or several, of `G` groups a block.
pub(super) trait Packed<const G: usize> {
    /// Its properties: known to the compiler where it is one format.
    fn spec(format: Format) -> &'static FormatSpec;

    /// Whether there are mins.
    #[inline(always)]
    fn has_min(tile: Tile<'_>) -> bool {
        Self::spec(tile.format).scale.has_min()
    }

    /// The code of zero.
    #[inline(always)]
    fn offset(tile: Tile<'_>) -> i32 {
        Self::spec(tile.format).offset
    }

    /// Bytes of a block in `W`.
    #[inline(always)]
    fn block_len(tile: Tile<'_>) -> usize {
        bytes_of_field(Self::spec(tile.format).codes.fields()[0])
    }

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

    /// The scales of the groups of block `b`; groups that share one have it each.
    #[inline(always)]
    fn scales<S: Dot>(s: S, tile: Tile<'_>, b: usize) -> [S::F32; G] {
        Self::scales_of(s, tile, tile.s, 0, b)
    }

    /// Their mins.
    #[inline(always)]
    fn mins<S: Dot>(s: S, tile: Tile<'_>, b: usize) -> [S::F32; G] {
        Self::scales_of(s, tile, tile.m, 1, b)
    }

    /// The scales in `plane`; those of two levels are multiplied with part `part` of their superblock's `d`.
    #[inline(always)]
    fn scales_of<S: Dot>(s: S, tile: Tile<'_>, plane: &[u8], part: usize, b: usize) -> [S::F32; G] {
        let mut scales = [s.splat(0.0); G];
        let spec = Self::spec(tile.format);
        if spec.scale.is_super() {
            let d = s.load_f16(&tile.d[b / SUPER_BLOCKS * spec.scale.parts() + part]);
            let vectors = bytemuck::cast_slice::<u8, i8>(plane).as_chunks::<LANES>().0;
            for g in 0..G {
                scales[g] = s.mul(d, s.load_i8(&vectors[b * G + g]));
            }
        } else {
            scales = [s.load_f16(&bytemuck::cast_slice::<u8, u16>(plane).as_chunks().0[b]); G];
        }
        scales
    }
}

/// In place of a format's number: any, told apart at run time.
pub(super) const ANY: usize = usize::MAX;

/// The number of a format: its own, or, in modules whose size counts, none of its own. Then all formats with such codes
/// share one copy of the loops.
pub(super) const fn shared(format: Format) -> usize {
    if cfg!(target_family = "wasm") { ANY } else { format as usize }
}

#[inline(always)]
fn spec<const F: usize>(format: Format) -> &'static FormatSpec {
    if F == ANY { format.spec() } else { &FORMATS[F] }
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
    #[inline(always)]
    fn spec(format: Format) -> &'static FormatSpec {
        spec::<F>(format)
    }
    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [[S::I32; R]; 1] {
        [s.dot_u4(&tile.w.as_chunks().0[b], x, Self::offset(tile))]
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
        s.dots_u4(codes, x, Self::offset(tiles[0])).map(|product| [product])
    }
}

impl<const F: usize> Packed<1> for U5<F> {
    #[inline(always)]
    fn spec(format: Format) -> &'static FormatSpec {
        spec::<F>(format)
    }
    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [[S::I32; R]; 1] {
        [s.dot_u5(&tile.w.as_chunks().0[b], &tile.x.as_chunks().0[b], x, Self::offset(tile))]
    }
}

impl Packed<1> for I8 {
    #[inline(always)]
    fn spec(_: Format) -> &'static FormatSpec {
        &FORMATS[Format::Q8 as usize]
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
    #[inline(always)]
    fn spec(format: Format) -> &'static FormatSpec {
        spec::<F>(format)
    }
    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [[S::I32; R]; 2] {
        s.dot_halves(Fields::of(Self::spec(tile.format), tile, b), x, Self::offset(tile))
    }
}

/// A block's unsigned codes, in fields.
#[derive(Clone, Copy)]
struct Fields<'a> {
    planes: [&'a [u8]; 2],
    bits: [usize; 2],
}

impl<'a> Fields<'a> {
    #[inline(always)]
    fn of(spec: &FormatSpec, tile: Tile<'a>, b: usize) -> Self {
        let bits = spec.codes.fields();
        let block = |plane: &'a [u8], bits: usize| {
            let len = bytes_of_field(bits);
            &plane[b * len..][..len]
        };
        Self { planes: [block(tile.w, bits[0]), block(tile.x, bits[1])], bits }
    }

    /// The fields of a word in plane `i`.
    #[inline(always)]
    fn field<S: Dot>(self, s: S, i: usize, word: usize, part: usize) -> S::Bytes {
        let (plane, bits) = (self.planes[i], self.bits[i]);
        // 1, 2 or 4 bits: a byte has 8, 4 or 2 fields. Shifts, as this may not be known to the compiler.
        let of_byte = 3 - bits.trailing_zeros();
        let granule = &plane.as_chunks().0[word >> of_byte];
        s.field(s.load_bytes(granule, part), bits, bits * (word & ((1 << of_byte) - 1)))
    }
}

impl Codes for Fields<'_> {
    #[inline(always)]
    fn max(self) -> i32 {
        (1 << (self.bits[0] + self.bits[1])) - 1
    }

    #[inline(always)]
    fn word<S: Dot>(self, s: S, word: usize, part: usize) -> S::Bytes {
        let low = self.field(s, 0, word, part);
        if self.bits[1] == 0 { low } else { s.join(low, self.field(s, 1, word, part), self.bits[0]) }
    }
}

/// A format that a matrix engine takes unpacked.
#[cfg(target_arch = "x86_64")]
pub(super) trait Unpack: Packed<1> {
    /// The codes of block `b` minus their offset.
    fn unpack(tile: Tile<'_>, b: usize, codes: &mut BlockCodes);
}

#[cfg(target_arch = "x86_64")]
impl<const F: usize> Unpack for U4<F> {
    #[inline(always)]
    fn unpack(tile: Tile<'_>, b: usize, codes: &mut BlockCodes) {
        let w: &[u8; 256] = &tile.w.as_chunks().0[b];
        for (i, out) in codes.0.iter_mut().enumerate() {
            nibbles(w, i, out);
            subtract(Self::offset(tile), out);
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl<const F: usize> Unpack for U5<F> {
    #[inline(always)]
    fn unpack(tile: Tile<'_>, b: usize, codes: &mut BlockCodes) {
        let (w, high): (&[u8; 256], &[u8; 64]) = (&tile.w.as_chunks().0[b], &tile.x.as_chunks().0[b]);
        for (i, out) in codes.0.iter_mut().enumerate() {
            nibbles(w, i, out);
            for (code, high) in out.iter_mut().zip(high) {
                *code |= (high >> i & 1) << 4;
            }
            subtract(Self::offset(tile), out);
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Unpack for I8 {
    #[inline(always)]
    fn unpack(tile: Tile<'_>, b: usize, codes: &mut BlockCodes) {
        codes.0 = bytemuck::cast(tile.w.as_chunks::<512>().0[b]);
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
