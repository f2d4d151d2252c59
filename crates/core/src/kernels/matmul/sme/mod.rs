//! Products on SME: several rows as outer products, a single one as SME2's dot products.
//!
//! The operands are laid out for the kernels first: a panel of rows is transposed once for all tiles, and a tile of columns
//! is taken apart once for all panels, unless the kernels take its codes as they lie. Sums are those of `quantized` and
//! `channel`, bit for bit.

#[macro_use]
#[rustfmt::skip]
mod assembly;
#[rustfmt::skip]
mod blocks;
#[rustfmt::skip]
mod dots;
#[rustfmt::skip]
mod integers;
mod operands;
mod single;
#[cfg(test)]
mod tests;

use super::apart::{Codes as TakeApart, Scales, look_up};
use super::packed::Tile;
use super::{Tiles, Write};
use crate::activation::{PANEL, Panels, PanelsRef, QuantizedRows};
use crate::format::{BLOCK_K, Codebook, Codes, FormatSpec, PackedMatrix, ScaleForm};
use crate::simd::{Dot, Isa, Kernel, LANES, Sme};
use assembly::codes::{BYTES, NIBBLES, NIBBLES_TIMES_16};
use operands::{Blocks, Integers, PreparePanel, PreparedPanel, PreparedTile, SQUARES, Scratch, with_scratch};

/// The largest `k` for which sums of a plane of codes and of nibbles have 32 bits.
const MAX_K: usize = 1 << 20;

/// What computes a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// NEON.
    Vectors,
    /// Outer products of several rows.
    OuterProducts,
    /// SME2's dot products of a single row.
    DotProducts,
}

impl Engine {
    /// Of `rows` rows with `k` values each and a matrix of a format.
    pub(super) fn new(isa: Isa, rows: usize, k: usize, spec: &FormatSpec) -> Self {
        let has_sme = matches!(isa, Isa::Sme | Isa::Sme2);
        match rows {
            0 => Self::Vectors,
            _ if !has_sme || k == 0 || k > MAX_K => Self::Vectors,
            1 if isa == Isa::Sme2 && single::takes(spec) => Self::DotProducts,
            1 => Self::Vectors,
            _ => Self::OuterProducts,
        }
    }
}

/// Computes the panels of a checked product that SME is for; returns how many of the first these are.
pub(super) fn run(
    sme: Sme,
    isa: Isa,
    x: &QuantizedRows,
    w: &PackedMatrix,
    write: Write,
    tiles: Tiles<'_>,
) -> usize {
    let engine = Engine::new(isa, x.rows(), w.k, w.format.spec());
    if engine == Engine::Vectors {
        return 0;
    }
    match x.panels() {
        PanelsRef::A8(x) => run_planes(sme, engine, x, w, write, tiles),
        PanelsRef::A16(x) => run_planes(sme, engine, x, w, write, tiles),
    }
    x.rows().div_ceil(PANEL)
}

/// All panels in one precision.
fn run_planes<const P: usize>(
    sme: Sme,
    engine: Engine,
    x: Panels<'_, P>,
    w: &PackedMatrix,
    write: Write,
    tiles: Tiles<'_>,
) {
    with_scratch(|scratch| {
        let product = Product { sme, x, w, write, tiles, scratch };
        if engine == Engine::DotProducts {
            sme.vectors().run(single::OfRow(product));
        } else if w.format.spec().scale.is_channel() {
            sme.vectors().run(OfColumns(product));
        } else {
            sme.vectors().run(OfBlocks(product));
        }
    });
}

/// Tiles of a product.
struct Product<'a, const P: usize> {
    sme: Sme,
    x: Panels<'a, P>,
    w: &'a PackedMatrix,
    write: Write,
    tiles: Tiles<'a>,
    scratch: &'a mut Scratch,
}

/// With a matrix whose blocks have scales.
struct OfBlocks<'a, const P: usize>(Product<'a, P>);

impl<const P: usize> Kernel for OfBlocks<'_, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Product { sme, x, w, write, mut tiles, scratch } = self.0;
        let (spec, blocks) = (w.format.spec(), super::blocks(w));
        let form = Form::new(spec);
        let kernel = blocks_kernel::<P>(sme, form, spec);
        prepare_panels(s, x, blocks, spec.groups(), &mut scratch.panels);
        for index in tiles.range() {
            let tile = Tile::new(spec, w, index);
            let prepared = &mut scratch.tiles[0];
            s.call(PrepareTile { spec, tile, form, out: prepared });
            for (panel, (x, rows)) in x.iter().zip(&scratch.panels).enumerate() {
                let is_in_place = write == Write::Store && x.rows == PANEL;
                let place =
                    is_in_place.then(|| tiles.places(panel * PANEL, PANEL, index..index + 1)).flatten();
                let [values, ..] = &mut scratch.values;
                let operands = Blocks {
                    rows: rows.codes.as_ptr(),
                    codes: prepared.codes(tile, form),
                    scales: if form.is_half { tile.s.as_ptr() } else { prepared.scales.as_ptr().cast() },
                    mins: if form.is_half { tile.m.as_ptr() } else { prepared.mins.as_ptr().cast() },
                    row_scales: rows.scales.as_ptr().cast(),
                    row_sums: rows.sums.as_ptr().cast(),
                    values: place.unwrap_or(values.as_mut_ptr().cast()),
                    blocks,
                    stride: size_of::<f32>() * if place.is_some() { w.n } else { LANES },
                };
                // SAFETY: the token of SME is at hand and `ZA` free; the panel and the tile have been prepared for so many
                // blocks and groups, and the values are a panel's, here or in the output.
                unsafe { kernel(&operands) };
                if place.is_none() {
                    tiles.write(s, panel * PANEL, index, &values[..x.rows], write);
                }
            }
        }
    }
}

/// In which form the kernels get the codes of a format.
#[derive(Clone, Copy)]
struct Form {
    /// One of [`assembly::codes`].
    codes: usize,
    /// Whether the tile is taken apart for it.
    is_apart: bool,
    /// Whether they take the halves of scales and mins as they lie.
    is_half: bool,
}

impl Form {
    fn new(spec: &FormatSpec) -> Self {
        let codes = match (spec.codes, spec.codebook, spec.scale, spec.offset) {
            (Codes::U4, Codebook::Linear, ScaleForm::Channel, _) => NIBBLES,
            (Codes::U4, Codebook::Linear, ScaleForm::F16, 8) => NIBBLES_TIMES_16,
            (Codes::U4, Codebook::Linear, ScaleForm::F16Min | ScaleForm::SuperMin, 0) => NIBBLES,
            _ => BYTES,
        };
        let is_half = matches!(spec.scale, ScaleForm::F16 | ScaleForm::F16Min) && spec.group == BLOCK_K;
        Self { codes, is_half, is_apart: codes == BYTES && spec.codes != Codes::I8 }
    }
}

type BlocksKernel = unsafe extern "C" fn(&Blocks);

/// The kernel for a form of codes and a format's scales.
fn blocks_kernel<const P: usize>(sme: Sme, form: Form, spec: &FormatSpec) -> BlocksKernel {
    macro_rules! kernel {
        ($codes:ident, $groups:literal, $mins:literal, $halves:literal) => {
            match sme.lanes() {
                4 => blocks::blocks::<4, $codes, P, $groups, $mins, $halves>,
                8 => blocks::blocks::<8, $codes, P, $groups, $mins, $halves>,
                _ => blocks::blocks::<16, $codes, P, $groups, $mins, $halves>,
            }
        };
    }
    match (form.codes, spec.groups(), spec.scale.has_min(), form.is_half) {
        (NIBBLES_TIMES_16, ..) => kernel!(NIBBLES_TIMES_16, 1, false, true),
        (NIBBLES, .., true) => kernel!(NIBBLES, 1, true, true),
        (NIBBLES, ..) => kernel!(NIBBLES, 1, true, false),
        (_, 2, true, _) => kernel!(BYTES, 2, true, false),
        (_, 2, false, _) => kernel!(BYTES, 2, false, false),
        (_, _, true, true) => kernel!(BYTES, 1, true, true),
        (_, _, true, false) => kernel!(BYTES, 1, true, false),
        (_, _, false, true) => kernel!(BYTES, 1, false, true),
        (_, _, false, false) => kernel!(BYTES, 1, false, false),
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
        s.call(PreparePanel { x, blocks, groups, panel });
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
        if spec.scale.is_channel() || form.is_half {
            return;
        }
        let groups = blocks * spec.groups();
        out.scales.resize(groups, [0.0; LANES]);
        out.mins.resize(groups, [0.0; LANES]);
        Scales { spec, tile, blocks: 0..blocks, out: [&mut out.scales, &mut out.mins] }.run(s);
    }
}

/// Multiplies codes with the integer of their block and column; they stay signed bytes.
#[inline(always)]
fn multiply_steps(tile: Tile<'_>, codes: &mut [[u8; 512]]) {
    for (codes, steps) in codes.iter_mut().zip(tile.s.as_chunks::<LANES>().0) {
        let mut of_codes = [0; 4 * LANES];
        for (of_codes, step) in of_codes.as_chunks_mut::<4>().0.iter_mut().zip(steps) {
            *of_codes = [*step; 4];
        }
        for granule in codes.as_chunks_mut::<64>().0 {
            for (code, step) in granule.iter_mut().zip(of_codes) {
                *code = code.wrapping_mul(step);
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

/// With a matrix whose columns have one scale: products are integers over all of `k`.
struct OfColumns<'a, const P: usize>(Product<'a, P>);

impl<const P: usize> Kernel for OfColumns<'_, P> {
    type Output = ();

    /// As many tiles at once as there are squares for their sums.
    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Product { sme, x, w, write, mut tiles, scratch } = self.0;
        let (spec, blocks) = (w.format.spec(), super::blocks(w));
        let (form, together) = (Form::new(spec), SQUARES / P);
        let kernel = integers_kernel::<P>(sme, form);
        let offset = if form.codes == NIBBLES { spec.offset } else { 0 };
        prepare_panels(s, x, blocks, 0, &mut scratch.panels);
        let range = tiles.range();
        for first in range.clone().step_by(together) {
            let group = first..range.end.min(first + together);
            let mut codes = [std::ptr::null(); SQUARES];
            // Of tiles that there are not, the last one again.
            let of_group: [_; SQUARES] =
                std::array::from_fn(|i| Tile::new(spec, w, group.end.min(first + i + 1) - 1));
            for (i, (codes, prepared)) in codes.iter_mut().zip(&mut scratch.tiles).enumerate() {
                if i < together {
                    s.call(PrepareTile { spec, tile: of_group[i], form, out: prepared });
                    *codes = prepared.codes(of_group[i], form);
                }
            }
            for (panel, (x, rows)) in x.iter().zip(&scratch.panels).enumerate() {
                let above = rows.totals.map(|total| i64::from(offset) * total);
                let above = match P {
                    1 => [[0; PANEL], above.map(|above| above as i32)],
                    _ => [above.map(|above| (above >> 12) as i32), above.map(|above| above as i32 & 4095)],
                };
                let is_in_place = write == Write::Store && group.len() == together && x.rows == PANEL;
                let places =
                    (is_in_place.then(|| tiles.places(panel * PANEL, PANEL, group.clone()))).flatten();
                let (values, stride) = match places {
                    Some(place) => (std::array::from_fn(|i| place.wrapping_add(LANES * (i % together))), w.n),
                    None => (scratch.values.each_mut().map(|values| values.as_mut_ptr().cast()), LANES),
                };
                let operands = Integers {
                    rows: rows.codes.as_ptr(),
                    codes,
                    blocks,
                    scales: of_group.map(Tile::channels_at),
                    row_scales: rows.scales.as_ptr().cast(),
                    above: &raw const above,
                    values,
                    stride,
                };
                // SAFETY: the token of SME is at hand and `ZA` free; the panel and the tiles have so many blocks, and the
                // values are a panel's of as many tiles, here or in the output.
                unsafe { kernel(&operands) };
                if places.is_none() {
                    for (index, values) in group.clone().zip(&scratch.values) {
                        tiles.write(s, panel * PANEL, index, &values[..x.rows], write);
                    }
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
                4 => integers::integers::<4, $codes, P>,
                8 => integers::integers::<8, $codes, P>,
                _ => integers::integers::<16, $codes, P>,
            }
        };
    }
    if form.codes == NIBBLES { kernel!(NIBBLES) } else { kernel!(BYTES) }
}
