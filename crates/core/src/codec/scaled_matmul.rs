//! Matrices of small floats with scales, as MX and NVFP4 have them, and their product.
//!
//! A scale is made in two steps: the raw one maps the largest magnitude to the largest value of the format; then it is
//! *snapped* to what its layout can hold. Codes are made with the snapped scale, so that quantiser and product agree on
//! what was meant.

use super::minifloat::Minifloat;
use super::scale::{ScaleLayout, Scales, blocks, encode_e8m0};
use super::{check_len, shape_error, tabulate};
use crate::Result;

/// A matrix `[rows, k]` of codes, one a byte, and their scales.
#[derive(Clone, Copy, Debug)]
pub struct ScaledMatrix<'a> {
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub k: usize,
    /// The format of the codes.
    pub format: Minifloat,
    /// Codes, `[rows, k]`; bits above those of the format are 0.
    pub codes: &'a [u8],
    /// Their scales.
    pub scales: &'a Scales,
}

impl ScaledMatrix<'_> {
    fn check(&self, op: &str, what: &str) -> Result<()> {
        check_len(op, what, self.codes.len(), &[self.rows, self.k])?;
        let bits = self.format.bits();
        if let Some(i) = self.codes.iter().position(|code| u32::from(*code) >> bits != 0) {
            let code = self.codes[i];
            return Err(shape_error(
                op,
                format!("{what}: code {i} is {code:#04x}, the format has {bits} bits"),
            ));
        }
        self.scales.check(op, self.rows, self.k)
    }

    /// `decode(code) * scale`, rounded once.
    fn value(&self, row: usize, p: usize) -> f32 {
        self.format.decode(self.codes[row * self.k + p]) * self.scales.at(row, p, self.k)
    }
}

/// The scales of `x` `[rows, k]` for codes of `format`: of every block, or of all, the largest magnitude divided by the
/// largest value of the format, or 1 where all is 0; then snapped.
///
/// E8M0 takes the next power of two that is not smaller ([`encode_e8m0`]), E4M3 the nearest value, which may be 0. NaN has
/// no magnitude here.
///
/// # Errors
/// When the sizes do not agree or are 0.
pub fn scaled_quant_scale(
    x: &[f32],
    rows: usize,
    k: usize,
    format: Minifloat,
    layout: ScaleLayout,
) -> Result<Scales> {
    const OP: &str = "scaled_quant_scale";
    check_len(OP, "x", x.len(), &[rows, k])?;
    let raw = |x: &[f32]| {
        let amax = x.iter().fold(0.0, |amax: f32, x| amax.max(x.abs()));
        if amax > 0.0 { amax / format.max_finite() } else { 1.0 }
    };
    let bytes = |block: usize, snap: fn(f32) -> u8| {
        let blocks = blocks(OP, k, block)?;
        tabulate(OP, &[rows, blocks], |i| {
            let row = &x[i / blocks * k..][..k];
            let first = i % blocks * block;
            snap(raw(&row[first..k.min(first.saturating_add(block))]))
        })
    };
    Ok(match layout {
        ScaleLayout::PerTensor => Scales::PerTensor(raw(x)),
        ScaleLayout::E8m0 { block } => Scales::E8m0 { block, bytes: bytes(block, encode_e8m0)? },
        ScaleLayout::E4m3 { block } => {
            Scales::E4m3 { block, bytes: bytes(block, |scale| Minifloat::F8E4M3.encode(scale))? }
        }
    })
}

/// The codes `[rows, k]` of `x` `[rows, k]`: [`Minifloat::encode`] of `x / scale`, and of 0 where the scale is 0.
///
/// # Errors
/// When the sizes do not agree or are 0.
pub fn scaled_quantize(
    x: &[f32],
    rows: usize,
    k: usize,
    format: Minifloat,
    scales: &Scales,
) -> Result<Vec<u8>> {
    const OP: &str = "scaled_quantize";
    check_len(OP, "x", x.len(), &[rows, k])?;
    scales.check(OP, rows, k)?;
    tabulate(OP, &[rows, k], |i| {
        let scale = scales.at(i / k, i % k, k);
        format.encode(if scale == 0.0 { 0.0 } else { x[i] / scale })
    })
}

/// The values `[rows, k]` of a matrix: `decode(code) * scale`.
///
/// # Errors
/// When the sizes do not agree or are 0, or a code has too many bits.
pub fn scaled_dequantize(matrix: &ScaledMatrix<'_>) -> Result<Vec<f32>> {
    const OP: &str = "scaled_dequantize";
    matrix.check(OP, "codes")?;
    tabulate(OP, &[matrix.rows, matrix.k], |i| matrix.value(i / matrix.k, i % matrix.k))
}

/// `out[i][j] = sum over p in order of lhs[i][p] * rhs[j][p]`, plus `bias[j]` at the end; all in f32.
///
/// Both sides have their sums along rows: `lhs` is `[m, k]`, `rhs` `[n, k]`, `bias` `[n]`, the result `[m, n]`. Their
/// formats and scale layouts may differ.
///
/// # Errors
/// When the sizes do not agree or are 0, or a code has too many bits.
pub fn scaled_matmul(
    lhs: &ScaledMatrix<'_>,
    rhs: &ScaledMatrix<'_>,
    bias: Option<&[f32]>,
) -> Result<Vec<f32>> {
    const OP: &str = "scaled_matmul";
    lhs.check(OP, "lhs")?;
    rhs.check(OP, "rhs")?;
    if lhs.k != rhs.k {
        return Err(shape_error(OP, format!("rows of {} times rows of {}", lhs.k, rhs.k)));
    }
    let (m, k, n) = (lhs.rows, lhs.k, rhs.rows);
    if let Some(bias) = bias {
        check_len(OP, "bias", bias.len(), &[n])?;
    }
    tabulate(OP, &[m, n], |i| {
        let (i, j) = (i / n, i % n);
        let sum = (0..k).fold(0.0, |sum, p| sum + lhs.value(i, p) * rhs.value(j, p));
        bias.map_or(sum, |bias| sum + bias[j])
    })
}

#[cfg(test)]
mod tests;
