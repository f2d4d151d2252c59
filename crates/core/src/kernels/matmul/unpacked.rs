//! Products with formats that are taken apart first, a superblock of a tile at a time: codes to bytes, scales to floats.
//!
//! All rows of a panel share what is taken apart, and all formats share these loops: a format costs no more than what
//! takes it apart. The sums are those of `quantized`.

use super::apart::{BlockBytes, Codes, Scales, look_up};
use super::packed::{SUPER_BLOCKS, Tile};
use super::quantized::{block, check};
use super::{Tiles, Write};
use crate::activation::{PANEL, Panel, Panels};
use crate::format::{BLOCK_K, Codebook, FormatSpec, PackedMatrix, TILE_N};
use crate::simd::{Dot, Kernel, LANES};
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
        let [first, second] = out.codes.each_mut().map(|codes| &mut codes[..blocks.len()]);
        Codes { spec, tile, first: blocks.start, out: &mut *first }.run(s);
        if spec.codebook != Codebook::Linear {
            if out.digits.count == 2 {
                second.copy_from_slice(first);
                look_up(s, &out.digits.tables[1], second);
            }
            look_up(s, &out.digits.tables[0], first);
        }
        Scales { spec, tile, blocks, out: [&mut out.scales, &mut out.mins] }.run(s);
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
