//! Products with matrices, and what brings rows into the form that they read.

use std::ops::Range;

use crate::backend::{Inner, shape};
use crate::executor::Executor;
use crate::kernels::{Extensions, Forms, Kernels};
use crate::memory::{MATRIX_WORDS, Matrix, Part, Rows, Tensor, Vector};
use crate::plan::{BufferId, Cost, Dispatch, Plan};
use crate::shader::{Shader, Tile};
use lowbit_core::Result;
use lowbit_core::backend::{Gate, Norm};
use lowbit_core::format::{BLOCK_K, Format, TILE_N};

/// Columns that a workgroup quantises.
const QUANTIZED_COLUMNS: usize = 256;

impl<E: Executor> Inner<E> {
    /// `norm(x)` for some rows of `x`, in the forms that products with these formats read.
    pub(crate) fn normalise(
        &mut self,
        x: &Tensor,
        rows: Range<usize>,
        norm: Norm<'_, Vector>,
        formats: &[Format],
    ) -> Result<Rows> {
        let forms = self.kernels.forms(formats);
        if !self.kernels.scales_rows(formats) {
            return self.normalise_to(x, rows, norm, forms);
        }
        let normed = self.normalise_to(x, rows, norm, Forms::FLOATS)?;
        Ok(self.with_row_codes(normed)?.only(forms))
    }

    /// The rows, of which there are floats, with codes that have one scale a row.
    fn with_row_codes(&mut self, mut rows: Rows) -> Result<Rows> {
        let bytes = Rows::coded_bytes(rows.rows, rows.width);
        let floats: Vec<_> = rows.buffers().collect();
        let codes = self.codes.reserve(&mut self.device, bytes)?;
        rows.codes = Some(codes);
        let cost = Cost { others: rows.bytes(), ..Cost::default() };
        let params = [rows.width.next_multiple_of(BLOCK_K) as u32, 0, 0, 0];
        let buffers: Vec<_> = floats.into_iter().chain([codes]).collect();
        let shader = Shader::QuantizeRows { strict: self.strict };
        self.plan.push(shader, &params, &buffers, [rows.rows, 1], cost);
        Ok(rows)
    }

    /// `norm(x)` for some rows of `x`, in the forms asked for; codes have a scale every 32.
    fn normalise_to(
        &mut self,
        x: &Tensor,
        rows: Range<usize>,
        norm: Norm<'_, Vector>,
        forms: Forms,
    ) -> Result<Rows> {
        if norm.weight.len != x.width {
            return shape("norm", format!("{} weights for rows of {}", norm.weight.len, x.width));
        }
        self.coded = None;
        let mut normed = Rows { rows: rows.len(), width: x.width, floats: None, codes: None };
        if forms.floats {
            normed.floats = Some(self.normed.resize(&mut self.device, rows.len(), x.width)?);
        }
        if forms.codes {
            let bytes = Rows::coded_bytes(rows.len(), x.width);
            normed.codes = Some(self.codes.reserve(&mut self.device, bytes)?);
        }
        let params = [x.width as u32, x.stride() as u32, rows.start as u32, norm.eps.to_bits()];
        let others = (rows.len() * x.stride() + norm.weight.len) as u64 * 4 + normed.bytes();
        let cost = Cost { others, ..Cost::default() };
        let buffers: Vec<_> = [x.buffer()?, norm.weight.buffer].into_iter().chain(normed.buffers()).collect();
        let extensions = self.kernels.extensions.only(Extensions { subgroups: true, f16: false });
        let shader = Shader::RmsNorm { forms, extensions };
        self.plan.push(shader, &params, &buffers, [rows.len(), 1], cost);
        Ok(normed)
    }

    /// The rows of `x` in the forms that products with these formats read.
    pub(crate) fn rows_of(&mut self, x: &Tensor, formats: &[Format]) -> Result<Rows> {
        let forms = self.kernels.forms(formats);
        let mut rows = Rows { rows: x.rows, width: x.width, floats: Some(x.buffer()?), codes: None };
        let coded = self.coded.take();
        if self.kernels.scales_rows(formats) {
            return Ok(self.with_row_codes(rows)?.only(forms));
        }
        if forms.codes {
            let codes = self.codes.reserve(&mut self.device, Rows::coded_bytes(x.rows, x.width))?;
            rows.codes = Some(codes);
            if coded == rows.floats {
                return Ok(rows.only(forms));
            }
            let workgroups = [x.stride().div_ceil(QUANTIZED_COLUMNS), x.rows];
            let cost = Cost { others: rows.bytes(), ..Cost::default() };
            let params = [x.stride() as u32, 0, 0, 0];
            self.plan.push(Shader::Quantize, &params, &[x.buffer()?, codes], workgroups, cost);
        }
        Ok(rows.only(forms))
    }

    /// `out = act(norm(x) * gate) .* (norm(x) * up)`
    pub(crate) fn gated(
        &mut self,
        x: &Tensor,
        norm: Norm<'_, Vector>,
        act: Gate,
        [gate, up]: [&Matrix; 2],
        out: &mut Tensor,
    ) -> Result<()> {
        let formats = [gate.format, up.format];
        let x = self.normalise(x, 0..x.rows, norm, &formats)?;
        fits(&x, gate)?;
        fits(&x, up)?;
        out.resize(&mut self.device, x.rows, gate.n)?;
        let tiles = |part: &Part| part.tiles;
        if !gate.parts.iter().map(tiles).eq(up.parts.iter().map(tiles)) {
            return shape(
                "gated on the GPU",
                "matrices of different formats, each too large for one binding".into(),
            );
        }
        let tile = Tile::new(self.kernels, &formats, x.rows);
        let shader = Shader::Gated { formats, tile, gelu: act == Gate::GeluTanh };
        for (a, b) in gate.parts.iter().zip(&up.parts) {
            let words = [gate.words(a, 0), up.words(b, 0)];
            let workgroups = tile.workgroups(&[a.tiles], x.rows);
            self.plan.product(shader, &x, &words, &[a, b], Output::rows(out)?, workgroups);
        }
        Ok(())
    }
}

impl Plan {
    pub(crate) fn push(
        &mut self,
        shader: Shader,
        params: &[u32],
        buffers: &[BufferId],
        workgroups: [usize; 2],
        cost: Cost,
    ) {
        let workgroups = workgroups.map(|n| n as u32);
        let (params, buffers) = (params.to_vec(), buffers.to_vec());
        self.dispatches.push(Dispatch { shader, params, buffers, workgroups, cost });
    }

    /// The products of `x` and one matrix, which go to column `at` of `out` and those after it.
    pub(crate) fn linear(
        &mut self,
        kernels: Kernels,
        x: &Rows,
        matrix: &Matrix,
        out: &Tensor,
        at: usize,
        add: bool,
    ) -> Result<()> {
        fits(x, matrix)?;
        let formats = [matrix.format];
        let x = x.only(kernels.forms(&formats));
        let tile = Tile::new(kernels, &formats, x.rows);
        let shader = Shader::Linear { format: matrix.format, tile, add };
        for part in &matrix.parts {
            let workgroups = tile.workgroups(&[part.tiles], x.rows);
            self.product(shader, &x, &[matrix.words(part, at)], &[part], Output::rows(out)?, workgroups);
        }
        Ok(())
    }

    /// A product with up to three matrices, each described by what shaders read of it.
    pub(crate) fn product(
        &mut self,
        shader: Shader,
        x: &Rows,
        matrices: &[[u32; MATRIX_WORDS]],
        parts: &[&Part],
        out: Output,
        workgroups: [usize; 2],
    ) {
        let mut params = matrices.as_flattened().to_vec();
        params.resize(3 * MATRIX_WORDS, 0);
        params.extend([x.rows, x.width.div_ceil(BLOCK_K), out.stride].map(|n| n as u32));
        params.extend(out.heads);
        params.resize(params.len().next_multiple_of(4), 0);
        let buffers: Vec<_> =
            x.buffers().chain(out.buffers).chain(parts.iter().map(|part| part.buffer)).collect();
        let columns: usize = matrices
            .iter()
            .zip(parts)
            .map(|([.., n, _, _], part)| (part.tiles * TILE_N).min(*n as usize))
            .sum();
        let cost = Cost {
            weights: parts.iter().map(|part| part.bytes).sum(),
            others: x.bytes() + out.bytes,
            macs: (columns * x.width * x.rows) as u64,
        };
        self.push(shader, &params, &buffers, workgroups, cost);
    }
}

/// Where products go.
pub(crate) struct Output {
    pub buffers: Vec<BufferId>,
    /// Floats from row to row.
    pub stride: usize,
    /// Of queries, keys and values: coordinates of a head, positions of the cache and of the rotary table.
    pub heads: [u32; 3],
    /// What is read and written of the buffers.
    pub bytes: u64,
}

impl Output {
    /// Rows of a tensor.
    pub(crate) fn rows(tensor: &Tensor) -> Result<Self> {
        let (buffers, heads) = (vec![tensor.buffer()?], [0; 3]);
        Ok(Self { buffers, stride: tensor.stride(), heads, bytes: tensor.bytes() })
    }
}

pub(crate) fn fits(x: &Rows, matrix: &Matrix) -> Result<()> {
    if x.width == matrix.k {
        return Ok(());
    }
    shape("rows", format!("{} values for a matrix of {} inputs", x.width, matrix.k))
}
