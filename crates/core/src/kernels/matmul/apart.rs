//! Takes tiles of any format apart: codes to bytes, scales to floats.

use super::packed::{SUPER_BLOCKS, Tile, one_level};
use crate::format::{BLOCK_K, FormatSpec, TILE_N};
use crate::simd::{Dot, Kernel, LANES};
use std::hint::black_box;
use std::ops::Range;

/// Codes of a block: `[k / 4][column][k % 4]`.
pub(super) type BlockBytes = [u8; TILE_N * BLOCK_K];

/// Takes the codes of blocks `first..` apart: unsigned, as they are stored.
pub(super) struct Codes<'a> {
    pub spec: &'static FormatSpec,
    pub tile: Tile<'a>,
    pub first: usize,
    /// As many as are asked for.
    pub out: &'a mut [BlockBytes],
}

impl Kernel for Codes<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Self { spec, tile, first, out } = self;
        match spec.codes.fields() {
            [1, 0] => fields::<S, 1, 0>(s, tile, first, out),
            [2, 0] => fields::<S, 2, 0>(s, tile, first, out),
            [2, 1] => fields::<S, 2, 1>(s, tile, first, out),
            [4, 1] => fields::<S, 4, 1>(s, tile, first, out),
            [4, 2] => fields::<S, 4, 2>(s, tile, first, out),
            _ => fields::<S, 4, 0>(s, tile, first, out),
        }
    }
}

/// Computes the scales, and the mins where there are some, of the groups of blocks.
pub(super) struct Scales<'a> {
    pub spec: &'static FormatSpec,
    pub tile: Tile<'a>,
    pub blocks: Range<usize>,
    /// Room for the scales and for the mins, `[group]`.
    pub out: [&'a mut [[f32; LANES]]; 2],
}

impl Kernel for Scales<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Self { spec, tile, blocks, out } = self;
        let groups = blocks.start * spec.groups()..blocks.end * spec.groups();
        let count = if spec.scale.has_min() { 2 } else { 1 };
        for (part, (plane, out)) in [tile.s, tile.m].into_iter().zip(out).take(count).enumerate() {
            let out = &mut out[..groups.len()];
            if spec.scale.is_super() {
                let plane = &bytemuck::cast_slice::<u8, i8>(plane).as_chunks().0[groups.clone()];
                let supers = plane.chunks(SUPER_BLOCKS * spec.groups());
                let outs = out.chunks_mut(SUPER_BLOCKS * spec.groups());
                for (i, (plane, out)) in supers.zip(outs).enumerate() {
                    let at = (blocks.start / SUPER_BLOCKS + i) * spec.scale.parts() + part;
                    let d = s.load_f16(&tile.d[at]);
                    for (scale, out) in plane.iter().zip(out) {
                        s.store(s.mul(d, s.load_i8(scale)), out);
                    }
                }
            } else {
                for (group, out) in groups.clone().zip(out) {
                    s.store(one_level(s, spec, plane, group), out);
                }
            }
        }
    }
}

/// Puts what a table has in the place of codes.
#[inline(always)]
pub(super) fn look_up<S: Dot>(s: S, table: &[i8; 16], blocks: &mut [BlockBytes]) {
    for granule in bytemuck::cast_slice_mut::<_, [u8; 64]>(blocks) {
        for part in 0..S::PARTS {
            s.store_bytes(s.lookup(table, s.load_bytes(granule, part)), granule, part);
        }
    }
}

/// Takes codes of fields of `LOW` and `HIGH` bits apart, from block `first` on.
#[inline(always)]
fn fields<S: Dot, const LOW: usize, const HIGH: usize>(
    s: S,
    tile: Tile<'_>,
    first: usize,
    out: &mut [BlockBytes],
) {
    for (i, out) in out.iter_mut().enumerate() {
        let (low, high) = (granules::<LOW>(tile.w, first + i), granules::<HIGH>(tile.x, first + i));
        // Hidden from LLVM, which else computes every address instead of folding its offset into the load.
        let (low, high, out) = black_box((low, high, bytemuck::cast_mut::<_, [[u8; 64]; 8]>(out)));
        for part in 0..S::PARTS {
            let (low, high) = (load(s, low, part), load(s, high, part));
            // Written out: as a loop it is not unrolled, and shifts by what is no constant are slow.
            macro_rules! words {
                ($($word:literal)*) => {$({
                    let mut codes = s.field(low[$word * LOW / 8], LOW, $word * LOW % 8);
                    if HIGH > 0 {
                        codes = s.join(codes, s.field(high[$word * HIGH / 8], HIGH, $word * HIGH % 8), LOW);
                    }
                    s.store_bytes(codes, &mut out[$word], part);
                })*};
            }
            words!(0 1 2 3 4 5 6 7);
        }
    }
}

/// The granules of block `b` in a plane of `N` bits a code.
#[inline(always)]
fn granules<const N: usize>(plane: &[u8], b: usize) -> &[[u8; 64]; N] {
    let granules = &bytemuck::cast_slice::<u8, [u8; 64]>(plane)[b * N..];
    granules.first_chunk().expect("as many granules as blocks need")
}

/// Part `part` of some granules.
#[inline(always)]
fn load<S: Dot, const N: usize>(s: S, granules: &[[u8; 64]; N], part: usize) -> [S::Bytes; N] {
    let mut loaded = [s.load_bytes(&[0; 64], part); N];
    for i in 0..N {
        loaded[i] = s.load_bytes(&granules[i], part);
    }
    loaded
}
