//! Products with formats that are taken apart first, a superblock of a tile at a time: codes to bytes, scales to floats.
//!
//! All rows of a panel share what is taken apart, and all formats share these loops: a format costs no more than what
//! takes it apart. The sums are those of `quantized`.

use super::packed::{SUPER_BLOCKS, Tile, one_level};
use super::quantized::{block, check};
use super::{Tiles, Write};
use crate::activation::{PANEL, Panel, Panels};
use crate::format::{BLOCK_K, Codebook, FormatSpec, PackedMatrix, TILE_N};
use crate::simd::{Dot, Kernel, LANES};
use std::hint::black_box;
use std::ops::Range;

/// Computes panels `from..` of checked tiles.
#[inline(always)]
pub(super) fn run<S: Dot, const P: usize>(
    s: S,
    x: Panels<'_, P>,
    w: &PackedMatrix,
    write: Write,
    tiles: Tiles<'_>,
    from: usize,
) {
    s.call(Product { x, w, write, tiles, from });
}

/// Codes of a block: `[k / 4][column][k % 4]`.
type BlockBytes = [u8; TILE_N * BLOCK_K];
/// Groups of a superblock: at most two a block.
const GROUPS: usize = 2 * SUPER_BLOCKS;

/// What has been taken apart: a superblock, or what a row has left. No vector crosses a cache line.
#[repr(C, align(64))]
struct Unpacked {
    digits: Digits,
    /// Codes in digits to base 16, the highest first; most have one, of up to 7 bits.
    codes: [[BlockBytes; SUPER_BLOCKS]; 2],
    scales: [[f32; LANES]; GROUPS],
    mins: [[f32; LANES]; GROUPS],
}

struct Product<'a, const P: usize> {
    x: Panels<'a, P>,
    w: &'a PackedMatrix,
    write: Write,
    tiles: Tiles<'a>,
    from: usize,
}

impl<const P: usize> Kernel for Product<'_, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Self { x, w, write, mut tiles, from } = self;
        let (spec, blocks) = (w.format.spec(), super::blocks(w));
        let mut unpacked = Unpacked {
            digits: Digits::new(spec),
            codes: [[[0; TILE_N * BLOCK_K]; SUPER_BLOCKS]; 2],
            scales: [[0.0; LANES]; GROUPS],
            mins: [[0.0; LANES]; GROUPS],
        };
        for index in tiles.range() {
            let tile = Tile::new(spec, w, index);
            for (panel, x) in x.iter().enumerate().skip(from) {
                let mut values = [[0.0; LANES]; PANEL];
                for first in (0..blocks).step_by(SUPER_BLOCKS) {
                    let part = first..blocks.min(first + SUPER_BLOCKS);
                    s.call(Unpack { spec, tile, blocks: part.clone(), out: &mut unpacked });
                    multiply(s, spec, &unpacked, x, blocks, part, &mut values);
                }
                tiles.write(s, panel * PANEL, index, &values[..x.rows], write);
            }
        }
    }
}

/// Takes some blocks apart.
struct Unpack<'a> {
    spec: &'static FormatSpec,
    tile: Tile<'a>,
    blocks: Range<usize>,
    out: &'a mut Unpacked,
}

impl Kernel for Unpack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Self { spec, tile, blocks, out } = self;
        let digits = &out.digits;
        let [first, second] = out.codes.each_mut().map(|codes| &mut codes[..blocks.len()]);
        let codes = &mut *first;
        match spec.codes.fields() {
            [1, 0] => fields::<S, 1, 0>(s, tile, blocks.start, codes),
            [2, 0] => fields::<S, 2, 0>(s, tile, blocks.start, codes),
            [2, 1] => fields::<S, 2, 1>(s, tile, blocks.start, codes),
            [4, 1] => fields::<S, 4, 1>(s, tile, blocks.start, codes),
            [4, 2] => fields::<S, 4, 2>(s, tile, blocks.start, codes),
            _ => fields::<S, 4, 0>(s, tile, blocks.start, codes),
        }
        if spec.codebook != Codebook::Linear {
            if digits.count == 2 {
                second.copy_from_slice(first);
                look_up(s, &digits.tables[1], second);
            }
            look_up(s, &digits.tables[0], first);
        }
        let groups = spec.groups();
        let vectors = blocks.start * groups..blocks.end * groups;
        let parts = [(tile.s, &mut out.scales), (tile.m, &mut out.mins)];
        let count = if spec.scale.has_min() { 2 } else { 1 };
        for (part, (plane, out)) in parts.into_iter().take(count).enumerate() {
            let out = &mut out[..vectors.len()];
            if spec.scale.is_super() {
                let d = s.load_f16(&tile.d[blocks.start / SUPER_BLOCKS * spec.scale.parts() + part]);
                let plane = &bytemuck::cast_slice::<u8, i8>(plane).as_chunks().0[vectors.clone()];
                for (scale, out) in plane.iter().zip(out) {
                    s.store(s.mul(d, s.load_i8(scale)), out);
                }
            } else {
                for (group, out) in vectors.clone().zip(out) {
                    s.store(one_level(s, spec, plane, group), out);
                }
            }
        }
    }
}

/// What codes stand for, plus an offset, in unsigned digits: one of up to 7 bits, as products ask for, or two of 4.
struct Digits {
    count: usize,
    /// The digits that a codebook has for codes.
    tables: [[i8; 16]; 2],
    /// Those of the offset.
    offsets: [i32; 2],
}

impl Digits {
    fn new(spec: &FormatSpec) -> Self {
        if spec.codebook == Codebook::Linear {
            return Self { count: 1, tables: [[0; 16]; 2], offsets: [spec.offset, 0] };
        }
        let offset = spec.values.iter().fold(0, |offset, value| offset.max(-i32::from(*value)));
        let above = spec.values.map(|value| i32::from(value) + offset);
        if above.iter().all(|value| *value < 128) {
            return Self {
                count: 1,
                tables: [above.map(|value| value as i8), [0; 16]],
                offsets: [offset, 0],
            };
        }
        let tables = [above.map(|value| (value >> 4) as i8), above.map(|value| (value & 15) as i8)];
        Self { count: 2, tables, offsets: [offset >> 4, offset & 15] }
    }
}

/// Puts what a table has in the place of codes.
#[inline(always)]
fn look_up<S: Dot>(s: S, table: &[i8; 16], blocks: &mut [BlockBytes]) {
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

/// Adds to `values` the rows of a panel times what has been taken apart, blocks `blocks` of a row.
#[inline(always)]
fn multiply<S: Dot, const P: usize>(
    s: S,
    spec: &'static FormatSpec,
    unpacked: &Unpacked,
    x: Panel<'_, P>,
    row_blocks: usize,
    blocks: Range<usize>,
    values: &mut [[f32; LANES]; PANEL],
) {
    let mut first = 0;
    macro_rules! rows {
        ($r:literal) => {
            while const { $r == 1 || $r * P <= S::ROWS } && x.rows - first >= $r {
                let Some(values) = values[first..].first_chunk_mut::<$r>() else { break };
                s.call(Group { spec, unpacked, x, row_blocks, blocks: blocks.clone(), first, values });
                first += $r;
            }
        };
    }
    rows!(8);
    rows!(4);
    if const { S::ROWS < 4 * P } {
        rows!(2);
    }
    rows!(1);
}

/// Rows `first..first + R` of a panel times what has been taken apart.
struct Group<'a, const P: usize, const R: usize> {
    spec: &'static FormatSpec,
    unpacked: &'a Unpacked,
    x: Panel<'a, P>,
    row_blocks: usize,
    blocks: Range<usize>,
    first: usize,
    values: &'a mut [[f32; LANES]; R],
}

impl<const P: usize, const R: usize> Kernel for Group<'_, P, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Self { spec, unpacked, x, row_blocks, blocks, first, values } = self;
        let digits = &unpacked.digits;
        check(x, first..first + R, row_blocks);
        assert!(blocks.end <= row_blocks, "the blocks of a row");
        let mut sums = [s.splat(0.0); R];
        for r in 0..R {
            sums[r] = s.load(&values[r]);
        }
        let groups = spec.groups();
        for (i, b) in blocks.enumerate() {
            // SAFETY: the panel has block `b` and the rows: they have been checked.
            let x = unsafe { block::<P, R>(x, b, first) };
            let mut halves = [[s.splat_i32(0); R]; 2];
            for digit in 0..digits.count.min(2) {
                let products = s.dot_bytes(&unpacked.codes[digit][i], x, digits.offsets[digit]);
                if digit == 0 {
                    halves = products;
                    continue;
                }
                for (half, products) in halves.iter_mut().zip(products) {
                    for r in 0..R {
                        half[r] = s.add_i32(s.shl_i32::<4>(half[r]), products[r]);
                    }
                }
            }
            for r in 0..R {
                let [product, second] = [halves[0][r], halves[1][r]];
                let term = if groups == 1 {
                    unpacked.scaled(s, spec, s.add_i32(product, second), x.sums[r], i)
                } else {
                    let sums = x.sums_of_halves(r);
                    let first = unpacked.scaled(s, spec, product, sums[0], 2 * i);
                    s.add(first, unpacked.scaled(s, spec, second, sums[1], 2 * i + 1))
                };
                sums[r] = s.add(sums[r], s.mul(term, s.splat(x.scales[r])));
            }
        }
        for r in 0..R {
            s.store(sums[r], &mut values[r]);
        }
    }
}

impl Unpacked {
    /// `product * scale`, and `sum * min` where there are mins, of group `group`.
    #[inline(always)]
    fn scaled<S: Dot>(&self, s: S, spec: &FormatSpec, product: S::I32, sum: i32, group: usize) -> S::F32 {
        let term = s.mul(s.i32_to_f32(product), s.load(&self.scales[group]));
        if !spec.scale.has_min() {
            return term;
        }
        s.add(term, s.mul(s.splat(sum as f32), s.load(&self.mins[group])))
    }
}
