//! Products on SME: several rows as outer products ([`outer`]), a single one as SME2's dot products.
//!
//! The operands are laid out for the kernels first: a panel of rows is transposed once for all tiles, and a tile of columns
//! is taken apart once for all panels, unless the kernels take its codes as they lie. Sums are those of `quantized` and
//! `channel`, bit for bit.

mod operands;
mod outer;

use super::apart::{Codes as TakeApart, Scales, look_up};
use super::packed::Tile;
use super::{Tiles, Write, channel};
use crate::activation::{PANEL, Panel, Panels, PanelsRef, QuantizedRows};
use crate::format::{Codebook, Codes, FormatSpec, PackedMatrix, ScaleForm};
use crate::simd::{Dot, Isa, Kernel, LANES, Sme};
use operands::{Blocks, Integers, PreparedPanel, PreparedTile, SQUARES, Scratch, with_scratch};
use outer::codes::{BYTES, NIBBLES, NIBBLES_TIMES_16};

/// The largest `k` for which sums of a plane of codes and of nibbles have 32 bits.
const MAX_K: usize = 1 << 20;

/// Computes a checked product, or its first panels; returns how many.
pub(super) fn run(
    sme: Sme,
    isa: Isa,
    x: &QuantizedRows,
    w: &PackedMatrix,
    write: Write,
    tiles: Tiles<'_>,
) -> usize {
    let _ = isa;
    if w.k == 0 || w.k > MAX_K || x.rows() < 2 {
        return 0;
    }
    match x.panels() {
        PanelsRef::A8(x) => run_planes(sme, x, w, write, tiles),
        PanelsRef::A16(x) => run_planes(sme, x, w, write, tiles),
    }
    x.rows().div_ceil(PANEL)
}

/// All panels in one precision.
fn run_planes<const P: usize>(sme: Sme, x: Panels<'_, P>, w: &PackedMatrix, write: Write, tiles: Tiles<'_>) {
    with_scratch(|scratch| {
        if w.format.spec().scale.is_channel() {
            sme.vectors().run(IntegerProduct { sme, x, w, write, tiles, scratch });
        } else {
            sme.vectors().run(BlockProduct { sme, x, w, write, tiles, scratch });
        }
    });
}

/// The tiles of a matrix whose blocks have scales.
struct BlockProduct<'a, const P: usize> {
    sme: Sme,
    x: Panels<'a, P>,
    w: &'a PackedMatrix,
    write: Write,
    tiles: Tiles<'a>,
    scratch: &'a mut Scratch,
}

impl<const P: usize> Kernel for BlockProduct<'_, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Self { sme, x, w, write, mut tiles, scratch } = self;
        let (spec, blocks) = (w.format.spec(), super::blocks(w));
        let form = Form::new(spec);
        let kernel = blocks_kernel::<P>(sme, form, spec);
        prepare_panels(s, x, blocks, spec.groups(), &mut scratch.panels);
        for index in tiles.range() {
            let tile = Tile::new(spec, w, index);
            let prepared = &mut scratch.tiles[0];
            s.call(PrepareTile { spec, tile, form, out: prepared });
            for (panel, (x, prepared_rows)) in x.iter().zip(&scratch.panels).enumerate() {
                let mut values = [[0.0; LANES]; PANEL];
                let operands = Blocks {
                    rows: prepared_rows.codes.as_ptr(),
                    codes: prepared.codes(tile, form),
                    scales: prepared.scales.as_ptr().cast(),
                    mins: prepared.mins.as_ptr().cast(),
                    row_scales: prepared_rows.scales.as_ptr().cast(),
                    row_sums: prepared_rows.sums.as_ptr().cast(),
                    values: &raw mut values,
                    blocks,
                };
                // SAFETY: the token of SME is at hand and `ZA` free; the panel and the tile have been prepared for so many
                // blocks and groups.
                unsafe { kernel(&operands) };
                tiles.write(s, panel * PANEL, index, &values[..x.rows], write);
            }
        }
    }
}

/// In which form the kernels get the codes of a format.
#[derive(Clone, Copy)]
struct Form {
    /// One of [`outer::codes`].
    codes: usize,
    /// Whether the tile is taken apart for it.
    is_apart: bool,
}

impl Form {
    fn new(spec: &FormatSpec) -> Self {
        let codes = match (spec.codes, spec.codebook, spec.scale, spec.offset) {
            (Codes::U4, Codebook::Linear, ScaleForm::Channel, _) => NIBBLES,
            (Codes::U4, Codebook::Linear, ScaleForm::F16, 8) => NIBBLES_TIMES_16,
            (Codes::U4, Codebook::Linear, ScaleForm::F16Min | ScaleForm::SuperMin, 0) => NIBBLES,
            _ => BYTES,
        };
        Self { codes, is_apart: codes == BYTES && spec.codes != Codes::I8 }
    }
}

type BlocksKernel = unsafe extern "C" fn(&Blocks);

/// The kernel for a form of codes and a format's scales.
fn blocks_kernel<const P: usize>(sme: Sme, form: Form, spec: &FormatSpec) -> BlocksKernel {
    macro_rules! kernel {
        ($codes:ident, $groups:literal, $mins:literal) => {
            match sme.lanes() {
                4 => outer::blocks::<4, $codes, P, $groups, $mins>,
                8 => outer::blocks::<8, $codes, P, $groups, $mins>,
                _ => outer::blocks::<16, $codes, P, $groups, $mins>,
            }
        };
    }
    match (form.codes, spec.groups(), spec.scale.has_min()) {
        (NIBBLES, ..) => kernel!(NIBBLES, 1, true),
        (NIBBLES_TIMES_16, ..) => kernel!(NIBBLES_TIMES_16, 1, false),
        (_, 2, true) => kernel!(BYTES, 2, true),
        (_, 2, false) => kernel!(BYTES, 2, false),
        (_, _, true) => kernel!(BYTES, 1, true),
        _ => kernel!(BYTES, 1, false),
    }
}

/// Prepares all panels.
#[inline(always)]
fn prepare_panels<S: Dot, const P: usize>(
    s: S,
    x: Panels<'_, P>,
    blocks: usize,
    groups: usize,
    prepared: &mut Vec<PreparedPanel>,
) {
    let count = x.iter().count();
    if prepared.len() < count {
        prepared.resize_with(count, PreparedPanel::default);
    }
    for (x, panel) in x.iter().zip(prepared) {
        s.call(operands::PreparePanel { x, blocks, groups, panel });
    }
}

/// Takes a tile apart as far as the kernels ask for it.
struct PrepareTile<'a> {
    spec: &'static FormatSpec,
    tile: Tile<'a>,
    form: Form,
    out: &'a mut PreparedTile,
}

impl Kernel for PrepareTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Self { spec, tile, form, out } = self;
        let blocks = tile.blocks;
        if form.is_apart {
            out.codes.resize(blocks, [0; 512]);
            let codes = &mut out.codes[..blocks];
            TakeApart { spec, tile, first: 0, out: codes }.run(s);
            if spec.codebook == Codebook::Linear {
                for code in codes.as_flattened_mut() {
                    *code = code.wrapping_sub(spec.offset as u8);
                }
            } else {
                look_up(s, &spec.values, codes);
            }
        }
        if spec.scale == ScaleForm::Progressive {
            multiply_steps(tile, &mut out.codes);
        }
        if spec.scale.is_channel() {
            return;
        }
        let groups = blocks * spec.groups();
        out.scales.resize(groups, [0.0; LANES]);
        out.mins.resize(groups, [0.0; LANES]);
        Scales { spec, tile, blocks: 0..blocks, out: [&mut out.scales, &mut out.mins] }.run(s);
        if form.codes == NIBBLES_TIMES_16 {
            for scale in out.scales[..groups].as_flattened_mut() {
                // Exact: the least scale, a half, is far above the least float.
                *scale *= 1.0 / 16.0;
            }
        }
    }
}

/// Multiplies codes with the integer of their block and column; they stay signed bytes.
#[inline(always)]
fn multiply_steps(tile: Tile<'_>, codes: &mut [[u8; 512]]) {
    for (codes, steps) in codes.iter_mut().zip(tile.s.as_chunks::<LANES>().0) {
        for granule in codes.as_chunks_mut::<64>().0 {
            for (codes, step) in granule.as_chunks_mut::<4>().0.iter_mut().zip(steps) {
                *codes = codes.map(|code| code.wrapping_mul(*step));
            }
        }
    }
}

impl PreparedTile {
    /// The codes as the kernels take them.
    fn codes(&self, tile: Tile<'_>, form: Form) -> *const u8 {
        if form.is_apart { self.codes.as_ptr().cast() } else { tile.w.as_ptr() }
    }
}

/// The tiles of a matrix whose products are integers over all of `k`.
struct IntegerProduct<'a, const P: usize> {
    sme: Sme,
    x: Panels<'a, P>,
    w: &'a PackedMatrix,
    write: Write,
    tiles: Tiles<'a>,
    scratch: &'a mut Scratch,
}

impl<const P: usize> Kernel for IntegerProduct<'_, P> {
    type Output = ();

    /// As many tiles at once as there are squares for their sums.
    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Self { sme, x, w, write, mut tiles, scratch } = self;
        let (spec, blocks) = (w.format.spec(), super::blocks(w));
        let (form, together) = (Form::new(spec), SQUARES / P);
        let kernel = integers_kernel::<P>(sme, form);
        prepare_panels(s, x, blocks, 1, &mut scratch.panels);
        let range = tiles.range();
        for first in range.clone().step_by(together) {
            let group = first..range.end.min(first + together);
            let mut codes = [std::ptr::null(); SQUARES];
            for (i, (codes, prepared)) in codes.iter_mut().zip(&mut scratch.tiles).enumerate().take(together)
            {
                // Of tiles that there are not, the last one again.
                let tile = Tile::new(spec, w, group.end.min(first + i + 1) - 1);
                s.call(PrepareTile { spec, tile, form, out: prepared });
                *codes = prepared.codes(tile, form);
            }
            for (panel, (x, prepared_rows)) in x.iter().zip(&scratch.panels).enumerate() {
                let mut sums = [[[0; LANES]; PANEL]; SQUARES];
                let operands =
                    Integers { rows: prepared_rows.codes.as_ptr(), codes, sums: &raw mut sums, blocks };
                // SAFETY: the token of SME is at hand and `ZA` free; the panel and the tiles have so many blocks.
                unsafe { kernel(&operands) };
                for (index, sums) in group.clone().zip(sums.as_chunks::<P>().0) {
                    let mut values = [[0.0; LANES]; PANEL];
                    let tile = Tile::new(spec, w, index);
                    let offset = if form.codes == NIBBLES { spec.offset } else { 0 };
                    s.call(Finish { x, tile, offset, sums, values: &mut values });
                    tiles.write(s, panel * PANEL, index, &values[..x.rows], write);
                }
            }
        }
    }
}

type IntegersKernel = unsafe extern "C" fn(&Integers);

/// The kernel for a form of codes.
fn integers_kernel<const P: usize>(sme: Sme, form: Form) -> IntegersKernel {
    macro_rules! kernel {
        ($codes:ident) => {
            match sme.lanes() {
                4 => outer::integers::<4, $codes, P>,
                8 => outer::integers::<8, $codes, P>,
                _ => outer::integers::<16, $codes, P>,
            }
        };
    }
    if form.codes == NIBBLES { kernel!(NIBBLES) } else { kernel!(BYTES) }
}

/// From the sums of a panel's planes to its values, as `channel` defines them.
struct Finish<'a, const P: usize> {
    x: Panel<'a, P>,
    tile: Tile<'a>,
    /// What codes have been summed above what they stand for.
    offset: i32,
    /// `[plane][row][column]`
    sums: &'a [[[i32; LANES]; PANEL]; P],
    values: &'a mut [[f32; LANES]; PANEL],
}

impl<const P: usize> Kernel for Finish<'_, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Self { x, tile, offset, sums, values } = self;
        for (r, values) in values.iter_mut().enumerate().take(x.rows) {
            let of_codes: i64 = x.sums.iter().skip(r).step_by(x.rows).map(|sum| i64::from(*sum)).sum();
            let above = i64::from(offset) * of_codes;
            for (c, value) in values.iter_mut().enumerate() {
                let low = i64::from(sums[P - 1][r][c]);
                let sum = if P == 1 { low } else { 128 * i64::from(sums[0][r][c]) + low };
                *value = channel::nearest(sum - above);
            }
            let of_row = s.mul(s.load(values), s.splat(x.scales[r]));
            s.store(s.mul(of_row, tile.channels(s)), values);
        }
    }
}
