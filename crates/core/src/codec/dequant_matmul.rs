//! `x` in f32 times weights `[k, n]` that are stored as small codes: each weight is made f32, then multiplied.
//!
//! `out[i][j] = sum over p in order of x[i][p] * w[p][j]`, in f32: `x` is `[m, k]`, the result `[m, n]`. Codes of 4 bits lie
//! two a byte: element `p * n + j`, even ones in low nibbles, whatever the row.

use super::minifloat::Minifloat;
use super::scale::blocks;
use super::{MatmulShape, check_len, elements, shape_error};
use crate::Result;

/// Integers `[k, n]` with a scale for every `block` of them along `k`: `w = (code - zero_point) * scale`.
#[derive(Clone, Copy, Debug)]
pub struct BlockInts<'a> {
    /// The codes.
    pub codes: IntCodes<'a>,
    /// Codes of a column that share a scale.
    pub block: usize,
    /// Scales `[k.div_ceil(block), n]`.
    pub scales: &'a [f32],
    /// What is subtracted from codes.
    pub zero_point: ZeroPoint<'a>,
}

/// Codes `[k, n]`.
#[derive(Clone, Copy, Debug)]
pub enum IntCodes<'a> {
    /// Signed bytes.
    Int8(&'a [i8]),
    /// Unsigned nibbles, 0 to 15, in `(k * n).div_ceil(2)` bytes.
    Int4(&'a [u8]),
}

/// The code of the value 0.
#[derive(Clone, Copy, Debug)]
pub enum ZeroPoint<'a> {
    /// One for all codes. Of signed bytes usually 0, of nibbles 8: with 0, no nibble would be a negative weight.
    All(f32),
    /// `[k.div_ceil(block), n]`, as the scales.
    Blocks(&'a [f32]),
}

/// `x` times integers in blocks.
///
/// # Errors
/// When the sizes do not agree or are 0.
pub fn block_matmul(x: &[f32], shape: MatmulShape, w: &BlockInts<'_>) -> Result<Vec<f32>> {
    const OP: &str = "block_matmul";
    let MatmulShape { k, n, .. } = shape;
    match w.codes {
        IntCodes::Int8(codes) => check_len(OP, "codes", codes.len(), &[k, n])?,
        IntCodes::Int4(codes) => check_nibbles(OP, codes, k, n)?,
    }
    let grid = [blocks(OP, k, w.block)?, n];
    check_len(OP, "scales", w.scales.len(), &grid)?;
    if let ZeroPoint::Blocks(zero_points) = w.zero_point {
        check_len(OP, "zero points", zero_points.len(), &grid)?;
    }
    shape.product(OP, x, |p, j| {
        let code = match w.codes {
            IntCodes::Int8(codes) => f32::from(codes[p * n + j]),
            IntCodes::Int4(codes) => f32::from(nibble(codes, p * n + j)),
        };
        let at = p / w.block * n + j;
        let zero_point = match w.zero_point {
            ZeroPoint::All(zero_point) => zero_point,
            ZeroPoint::Blocks(zero_points) => zero_points[at],
        };
        (code - zero_point) * w.scales[at]
    })
}

/// `x` times small floats with a scale for each column: `w = decode(code) * scale`.
///
/// `codes` are `[k, n]`, one a byte, `scales` `[n]`, or 1 where there are none.
///
/// # Errors
/// When the sizes do not agree or are 0.
pub fn fp8_matmul(
    x: &[f32],
    shape: MatmulShape,
    format: Minifloat,
    codes: &[u8],
    scales: Option<&[f32]>,
) -> Result<Vec<f32>> {
    const OP: &str = "fp8_matmul";
    let MatmulShape { k, n, .. } = shape;
    check_len(OP, "codes", codes.len(), &[k, n])?;
    if let Some(scales) = scales {
        check_len(OP, "scales", scales.len(), &[n])?;
    }
    shape.product(OP, x, |p, j| format.decode(codes[p * n + j]) * scales.map_or(1.0, |scales| scales[j]))
}

/// `x` times NVFP4: `w = (decode(code) * scale) * global`.
///
/// `codes` are E2M1 nibbles in `(k * n).div_ceil(2)` bytes; `scales` are E4M3 bytes `[k.div_ceil(16), n]`, one for 16
/// neighbours along `k`; one that is NaN counts as 0.
///
/// GGUF's type of this name lies otherwise: blocks of 64 along `k` of 4 scales and 32 bytes of codes, byte `j` of 8 with
/// elements `j` and `j + 8` of 16.
///
/// # Errors
/// When the sizes do not agree or are 0.
pub fn nvfp4_matmul(
    x: &[f32],
    shape: MatmulShape,
    codes: &[u8],
    scales: &[u8],
    global: f32,
) -> Result<Vec<f32>> {
    const OP: &str = "nvfp4_matmul";
    const BLOCK: usize = 16;
    let MatmulShape { k, n, .. } = shape;
    check_nibbles(OP, codes, k, n)?;
    check_len(OP, "scales", scales.len(), &[k.div_ceil(BLOCK), n])?;
    shape.product(OP, x, |p, j| {
        let scale = Minifloat::F8E4M3.decode(scales[p / BLOCK * n + j]);
        let scale = if scale.is_nan() { 0.0 } else { scale };
        Minifloat::F4E2M1.decode(nibble(codes, p * n + j)) * scale * global
    })
}

/// Nibble `i`.
fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 2] >> (i % 2 * 4) & 15
}

fn check_nibbles(op: &str, codes: &[u8], k: usize, n: usize) -> Result<()> {
    let expected = elements(op, "codes", &[k, n])?.div_ceil(2);
    if codes.len() != expected {
        let problem = format!("codes have {} bytes, nibbles of [{k}, {n}] have {expected}", codes.len());
        return Err(shape_error(op, problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
