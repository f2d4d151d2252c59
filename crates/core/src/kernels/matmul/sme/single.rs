//! A single row, on SME2.

use super::assembly::codes::{BYTES, NIBBLES};
use super::dots::{dots, scales};
use super::operands::{Dots, PreparedTile};
use super::{Form, PrepareTile, Product};
use crate::format::{BLOCK_K, Codebook, Codes, FormatSpec, ScaleForm};
use crate::kernels::matmul::packed::Tile;
use crate::kernels::matmul::{Write, blocks};
use crate::simd::{Dot, Kernel, LANES, Sme};

/// Vectors of columns that are multiplied at once.
const VECTORS: usize = 4;

/// Whether these kernels take a format: its codes as they lie. The vectors take others apart with less ado.
pub(super) fn takes(spec: &FormatSpec) -> bool {
    scales_of(spec).is_some()
}

/// What a format's scales are to the kernels.
fn scales_of(spec: &FormatSpec) -> Option<usize> {
    let is_block = spec.group == BLOCK_K;
    match (spec.codes, spec.codebook, spec.scale, spec.offset) {
        (Codes::U4, Codebook::Linear, ScaleForm::F16, 8) if is_block => Some(scales::HALVES),
        (Codes::U4, Codebook::Linear, ScaleForm::F16Min, 0) if is_block => Some(scales::HALVES),
        (Codes::U4, Codebook::Linear, ScaleForm::SuperMin, 0) if is_block => Some(scales::FLOATS),
        (Codes::U4, Codebook::Linear, ScaleForm::Channel, 8) => Some(scales::COLUMNS),
        (Codes::U4, Codebook::Linear, ScaleForm::Progressive, 8) => Some(scales::STEPS),
        (Codes::I8, Codebook::Linear, ScaleForm::F16, 0) if is_block => Some(scales::HALVES),
        (Codes::I8, Codebook::Linear, ScaleForm::Channel, 0) => Some(scales::COLUMNS),
        _ => None,
    }
}

type DotsKernel = unsafe extern "C" fn(&Dots);

fn kernel<const P: usize>(sme: Sme, spec: &FormatSpec) -> Option<DotsKernel> {
    macro_rules! kernel {
        ($codes:ident, $scales:expr, $mins:literal) => {
            match sme.lanes() {
                4 => dots::<4, $codes, P, { $scales }, $mins>,
                8 => dots::<8, $codes, P, { $scales }, $mins>,
                _ => dots::<16, $codes, P, { $scales }, $mins>,
            }
        };
    }
    Some(match (spec.codes, scales_of(spec)?, spec.scale.has_min()) {
        (Codes::I8, scales::HALVES, _) => kernel!(BYTES, scales::HALVES, false),
        (Codes::I8, ..) => kernel!(BYTES, scales::COLUMNS, false),
        (_, scales::HALVES, false) => kernel!(NIBBLES, scales::HALVES, false),
        (_, scales::HALVES, true) => kernel!(NIBBLES, scales::HALVES, true),
        (_, scales::FLOATS, _) => kernel!(NIBBLES, scales::FLOATS, true),
        (_, scales::COLUMNS, _) => kernel!(NIBBLES, scales::COLUMNS, false),
        _ => kernel!(NIBBLES, scales::STEPS, false),
    })
}

/// The only row of a product.
pub(super) struct OfRow<'a, const P: usize>(pub Product<'a, P>);

impl<const P: usize> Kernel for OfRow<'_, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Product { sme, x, w, write, mut tiles, scratch } = self.0;
        let spec = w.format.spec();
        let Some(kernel) = kernel::<P>(sme, spec) else { return };
        let x = x.panel(0);
        let (width, range) = (sme.lanes().min(LANES), tiles.range());
        let together = VECTORS * width / LANES;
        for first in range.clone().step_by(together) {
            let group = first..range.end.min(first + together);
            let parts: [_; VECTORS] = std::array::from_fn(|v| {
                // Of tiles that there are not, the last one again.
                let tile = Tile::new(spec, w, (group.end - 1).min(first + v * width / LANES));
                Part { tile, column: v * width % LANES }
            });
            let prepared = &mut scratch.tiles;
            if spec.scale.is_super() {
                for (i, prepared) in prepared.iter_mut().enumerate().take(together) {
                    let tile = parts[i * LANES / width].tile;
                    s.call(PrepareTile { spec, tile, form: Form::new(spec), out: prepared });
                }
            }
            let place = (write == Write::Store).then(|| tiles.places(0, 1, group.clone())).flatten();
            let place = place.filter(|_| group.len() == together);
            let [values, ..] = &mut scratch.values;
            let at = |v: usize| &prepared[v * width / LANES];
            let operands = Dots {
                row: x.codes.as_ptr().cast(),
                codes: parts.map(Part::codes),
                scales: std::array::from_fn(|v| parts[v].scales(spec, at(v))),
                mins: std::array::from_fn(|v| parts[v].mins(spec, at(v))),
                row_scales: x.scales.as_ptr(),
                row_sums: x.sums.as_ptr(),
                blocks: blocks(w),
                values: place.unwrap_or(values.as_mut_ptr().cast()),
            };
            // SAFETY: the token of SME is at hand, of SME2 where a single row comes here, and `ZA` free; the row and the tiles
            // have so many blocks, and the values are of as many columns, here or in the output.
            unsafe { kernel(&operands) };
            if place.is_none() {
                for (index, values) in group.zip(&*values) {
                    tiles.write(s, 0, index, std::slice::from_ref(values), write);
                }
            }
        }
    }
}

/// The columns of a tile from one on.
#[derive(Clone, Copy)]
struct Part<'a> {
    tile: Tile<'a>,
    column: usize,
}

impl Part<'_> {
    fn codes(self) -> *const u8 {
        self.tile.w.as_ptr().wrapping_add(4 * self.column)
    }

    /// Scales of blocks, or steps.
    fn scales(self, spec: &FormatSpec, prepared: &PreparedTile) -> *const u8 {
        match spec.scale {
            ScaleForm::SuperMin => prepared.scales.as_ptr().cast::<u8>().wrapping_add(4 * self.column),
            scale => self.tile.s.as_ptr().wrapping_add(scale.bytes() * self.column),
        }
    }

    /// Mins, or the scales of columns.
    fn mins(self, spec: &FormatSpec, prepared: &PreparedTile) -> *const u8 {
        match spec.scale {
            ScaleForm::SuperMin => prepared.mins.as_ptr().cast::<u8>().wrapping_add(4 * self.column),
            scale if scale.is_channel() => self.tile.channels_at().cast::<u8>().wrapping_add(4 * self.column),
            scale => self.tile.m.as_ptr().wrapping_add(scale.bytes() * self.column),
        }
    }
}
