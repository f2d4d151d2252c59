//! The packed formats at compile time: where a block's codes and scales are, and which product of an ISA takes them.

use crate::activation::Block;
use crate::format::{
    BLOCK_K, FORMATS, Format, FormatSpec, PackedMatrix, SUPER_K, ScaleForm, TILE_N, e4m3, e8m0,
};
#[cfg(target_arch = "x86_64")]
use crate::simd::BlockCodes;
use crate::simd::dot::{Codes, Factors};
use crate::simd::{Dot, LANES};

/// The planes of one tile.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub(super) blocks: usize,
    pub(super) w: &'a [u8],
    pub(super) x: &'a [u8],
    /// Scales and mins of blocks, or of groups, of which `d` has what they are multiplied with.
    pub(super) s: &'a [u8],
    pub(super) m: &'a [u8],
    pub(super) d: &'a [[u16; LANES]],
    /// The scales of the columns, where they have one.
    c: &'a [[f32; LANES]],
    /// Codes of this tile and all that follow.
    pub(super) rest: &'a [u8],
}

impl<'a> Tile<'a> {
    /// Tile `tile` of `w`, of the format of `spec`, whose planes have the sizes that it demands.
    #[inline(always)]
    pub(super) fn new(spec: &FormatSpec, w: &'a PackedMatrix, tile: usize) -> Self {
        let blocks = super::blocks(w);
        let [low, high] = spec.codes.fields().map(bytes_of_field);
        let scales = blocks * BLOCK_K / spec.group * LANES * spec.scale.bytes();
        let mins = if spec.scale.has_min() { scales } else { 0 };
        let part = |plane: &'a [u8], len: usize| &plane[tile * len..][..len];
        let supers = blocks / SUPER_BLOCKS * spec.scale.parts();
        Self {
            blocks,
            w: part(&w.w, blocks * low),
            x: part(&w.x, blocks * high),
            s: part(&w.s, scales),
            m: part(&w.m, mins),
            d: &bytemuck::cast_slice::<u8, u16>(&w.d).as_chunks().0[tile * supers..][..supers],
            c: bytemuck::cast_slice::<u8, f32>(&w.c).as_chunks().0.get(tile..=tile).unwrap_or_default(),
            rest: &w.w[tile * blocks * low..],
        }
    }

    /// The scales of group `group`.
    #[inline(always)]
    pub(super) fn scale<S: Dot>(self, s: S, spec: &FormatSpec, group: usize) -> S::F32 {
        self.factor(s, spec, self.s, 0, group)
    }

    /// Its mins.
    #[inline(always)]
    pub(super) fn min<S: Dot>(self, s: S, spec: &FormatSpec, group: usize) -> S::F32 {
        self.factor(s, spec, self.m, 1, group)
    }

    /// Those of `plane`; if they have two levels, multiplied with part `part` of their superblock's `d`.
    #[inline(always)]
    fn factor<S: Dot>(self, s: S, spec: &FormatSpec, plane: &[u8], part: usize, group: usize) -> S::F32 {
        if spec.scale.is_super() {
            let d = s.load_f16(&self.d[group * spec.group / SUPER_K * spec.scale.parts() + part]);
            s.mul(d, s.load_i8(&bytemuck::cast_slice::<u8, i8>(plane).as_chunks().0[group]))
        } else {
            one_level(s, spec, plane, group)
        }
    }

    /// The integers that the products of block `b` are multiplied with, where there are some.
    #[inline(always)]
    pub(super) fn steps<S: Dot>(self, s: S, b: usize) -> Option<S::I32> {
        let steps = bytemuck::cast_slice::<u8, i8>(self.s).as_chunks().0.get(b)?;
        Some(s.f32_to_i32(s.load_i8(steps)))
    }

    /// The scales of the columns.
    #[inline(always)]
    pub(super) fn channels<S: Dot>(self, s: S) -> S::F32 {
        s.load(&self.c[0])
    }

    /// Where they are.
    #[cfg(target_arch = "aarch64")]
    pub(super) fn channels_at(self) -> *const f32 {
        self.c.as_ptr().cast()
    }

    /// The codes of block `b`, in fields of so many bits.
    #[inline(always)]
    pub(super) fn fields(self, bits: [usize; 2], b: usize) -> Fields<'a> {
        let block = |plane: &'a [u8], bits: usize| {
            let len = bytes_of_field(bits);
            &plane[b * len..][..len]
        };
        Fields { planes: [block(self.w, bits[0]), block(self.x, bits[1])], bits }
    }

    /// What the table of `spec` has for the codes of block `b`.
    #[inline(always)]
    fn values(self, spec: &'static FormatSpec, b: usize) -> Values<'a> {
        Values { fields: self.fields(spec.codes.fields(), b), table: &spec.values }
    }
}

/// The scales or mins of one level of group `group` of a tile, or of block `group` where groups are longer.
#[inline(always)]
pub(super) fn one_level<S: Dot>(s: S, spec: &FormatSpec, plane: &[u8], group: usize) -> S::F32 {
    let at = group * (BLOCK_K / spec.groups()) / spec.group;
    let floats = |value: fn(u8) -> f32| s.load(&plane.as_chunks::<LANES>().0[at].map(value));
    match spec.scale {
        ScaleForm::E8m0 => floats(e8m0),
        ScaleForm::E4m3 => floats(e4m3),
        _ => s.load_f16(&bytemuck::cast_slice::<u8, u16>(plane).as_chunks().0[at]),
    }
}

/// Blocks of a superblock.
pub(super) const SUPER_BLOCKS: usize = SUPER_K / BLOCK_K;

/// Bytes of a block in a plane of fields.
#[inline(always)]
fn bytes_of_field(bits: usize) -> usize {
    bits * TILE_N * BLOCK_K / 8
}

/// A packed format of `G` groups a block.
pub(super) trait Packed<const G: usize> {
    /// Its properties.
    const SPEC: &'static FormatSpec;
    /// Bytes of a block in `W`.
    const BLOCK_LEN: usize = Self::SPEC.codes.fields()[0] * TILE_N * BLOCK_K / 8;

    /// `P - offset * S` of every group of block `b`.
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [[S::I32; R]; G];

    /// Adds the terms of block `b` to `sums`, which are in order after [`Packed::totals`].
    #[inline(always)]
    fn add<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
        sums: &mut [S::F32; R],
    ) {
        add::<S, Self, P, R, G>(s, tile, b, x, sums);
    }

    /// After the last block.
    #[inline(always)]
    fn totals<S: Dot, const P: usize, const R: usize>(s: S, sums: &mut [S::F32; R]) {
        let _ = (s, sums);
    }

    /// [`Packed::dot`] for one row and several tiles.
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
}

/// Adds the terms of block `b` to `sums`, after all its products.
#[inline(always)]
fn add<S: Dot, W: Packed<G> + ?Sized, const P: usize, const R: usize, const G: usize>(
    s: S,
    tile: Tile<'_>,
    b: usize,
    x: Block<'_, P, R>,
    sums: &mut [S::F32; R],
) {
    let products = W::dot(s, tile, b, x);
    factors::<S, W, G>(s, tile, b).add(s, products, x, sums);
}

/// What the products of block `b` of a tile are multiplied with.
#[inline(always)]
pub(super) fn factors<S: Dot, W: Packed<G> + ?Sized, const G: usize>(
    s: S,
    tile: Tile<'_>,
    b: usize,
) -> Factors<S::F32, G> {
    let mut scales = [s.splat(0.0); G];
    for (g, scale) in scales.iter_mut().enumerate() {
        *scale = tile.scale(s, W::SPEC, b * G + g);
    }
    let mut factors = Factors { scales, mins: None };
    if W::SPEC.scale.has_min() {
        for (g, min) in scales.iter_mut().enumerate() {
            *min = tile.min(s, W::SPEC, b * G + g);
        }
        factors.mins = Some(scales);
    }
    factors
}

/// 4-bit codes of format number `F`, one group a block.
pub(super) struct U4<const F: usize>;
/// The same of 5 bits.
pub(super) struct U5<const F: usize>;
/// Signed bytes.
pub(super) struct I8;
/// Codes of format number `F`, two groups a block.
pub(super) struct Halves<const F: usize>;
/// Codes of up to 4 bits of format number `F` that are looked up, one group a block, which may be longer.
pub(super) struct Lookup<const F: usize>;
/// The same, two groups a block.
pub(super) struct LookupHalves<const F: usize>;

impl<const F: usize> Packed<1> for U4<F> {
    const SPEC: &'static FormatSpec = &FORMATS[F];

    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [[S::I32; R]; 1] {
        [s.dot_u4(&tile.w.as_chunks().0[b], x, Self::SPEC.offset)]
    }
    #[inline(always)]
    fn add<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
        sums: &mut [S::F32; R],
    ) {
        if !S::ADDS {
            return add::<S, Self, P, R, 1>(s, tile, b, x, sums);
        }
        let factors = factors::<S, Self, 1>(s, tile, b);
        s.add_u4(&tile.w.as_chunks().0[b], x, Self::SPEC.offset, factors, sums);
    }
    #[inline(always)]
    fn totals<S: Dot, const P: usize, const R: usize>(s: S, sums: &mut [S::F32; R]) {
        s.totals::<P, R>(sums);
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
        s.dots_u4(codes, x, Self::SPEC.offset).map(|product| [product])
    }
}

impl<const F: usize> Packed<1> for U5<F> {
    const SPEC: &'static FormatSpec = &FORMATS[F];

    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [[S::I32; R]; 1] {
        [s.dot_u5(&tile.w.as_chunks().0[b], &tile.x.as_chunks().0[b], x, Self::SPEC.offset)]
    }
    #[inline(always)]
    fn add<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
        sums: &mut [S::F32; R],
    ) {
        if !S::ADDS {
            return add::<S, Self, P, R, 1>(s, tile, b, x, sums);
        }
        let factors = factors::<S, Self, 1>(s, tile, b);
        let w = (&tile.w.as_chunks().0[b], &tile.x.as_chunks().0[b]);
        s.add_u5(w, x, Self::SPEC.offset, factors, sums);
    }
    #[inline(always)]
    fn totals<S: Dot, const P: usize, const R: usize>(s: S, sums: &mut [S::F32; R]) {
        s.totals::<P, R>(sums);
    }
}

impl Packed<1> for I8 {
    const SPEC: &'static FormatSpec = &FORMATS[Format::Q8 as usize];

    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [[S::I32; R]; 1] {
        [s.dot_i8(&tile.w.as_chunks().0[b], x)]
    }
    #[inline(always)]
    fn add<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
        sums: &mut [S::F32; R],
    ) {
        if !S::ADDS {
            return add::<S, Self, P, R, 1>(s, tile, b, x, sums);
        }
        let factors = factors::<S, Self, 1>(s, tile, b);
        s.add_i8(&tile.w.as_chunks().0[b], x, factors, sums);
    }
    #[inline(always)]
    fn totals<S: Dot, const P: usize, const R: usize>(s: S, sums: &mut [S::F32; R]) {
        s.totals::<P, R>(sums);
    }
}

impl<const F: usize> Packed<2> for Halves<F> {
    const SPEC: &'static FormatSpec = &FORMATS[F];

    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [[S::I32; R]; 2] {
        s.dot_halves(tile.fields(Self::SPEC.codes.fields(), b), x, Self::SPEC.offset)
    }
}

impl<const F: usize> Packed<1> for Lookup<F> {
    const SPEC: &'static FormatSpec = &FORMATS[F];

    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [[S::I32; R]; 1] {
        let [mut products, second] = s.dot_signed(tile.values(Self::SPEC, b), x);
        for r in 0..R {
            products[r] = s.add_i32(products[r], second[r]);
        }
        [products]
    }
}

impl<const F: usize> Packed<2> for LookupHalves<F> {
    const SPEC: &'static FormatSpec = &FORMATS[F];

    #[inline(always)]
    fn dot<S: Dot, const P: usize, const R: usize>(
        s: S,
        tile: Tile<'_>,
        b: usize,
        x: Block<'_, P, R>,
    ) -> [[S::I32; R]; 2] {
        s.dot_signed(tile.values(Self::SPEC, b), x)
    }
}

/// A block's values: what a table has for its codes.
#[derive(Clone, Copy)]
struct Values<'a> {
    fields: Fields<'a>,
    table: &'a [i8; 16],
}

impl Codes for Values<'_> {
    #[inline(always)]
    fn max(self) -> i32 {
        self.table.iter().fold(0, |max, value| max.max(i32::from(*value).abs()))
    }

    #[inline(always)]
    fn word<S: Dot>(self, s: S, word: usize, part: usize) -> S::Bytes {
        s.lookup(self.table, self.fields.field(s, 0, word, part))
    }
}

/// A block's unsigned codes, in fields.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    planes: [&'a [u8]; 2],
    bits: [usize; 2],
}

impl Fields<'_> {
    /// The fields of a word in plane `i`.
    #[inline(always)]
    fn field<S: Dot>(self, s: S, i: usize, word: usize, part: usize) -> S::Bytes {
        let (plane, bits) = (self.planes[i], self.bits[i]);
        let of_byte = 8 / bits;
        let granule = &plane.as_chunks().0[word / of_byte];
        s.field(s.load_bytes(granule, part), bits, bits * (word % of_byte))
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
            subtract(Self::SPEC.offset, out);
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
            subtract(Self::SPEC.offset, out);
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

#[cfg(target_arch = "x86_64")]
impl<const F: usize> Unpack for Lookup<F> {
    #[inline(always)]
    fn unpack(tile: Tile<'_>, b: usize, codes: &mut BlockCodes) {
        let spec = &FORMATS[F];
        let bits = spec.codes.fields()[0];
        let len = bytes_of_field(bits);
        let granules: &[[u8; 64]] = tile.w[b * len..][..len].as_chunks().0;
        for (i, out) in codes.0.iter_mut().enumerate() {
            let (granule, shift) = (&granules[i * bits / 8], i * bits % 8);
            for (code, byte) in out.iter_mut().zip(granule) {
                *code = spec.values[usize::from(byte >> shift & ((1 << bits) - 1))].cast_unsigned();
            }
        }
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
