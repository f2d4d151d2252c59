//! `x` in f32 times weights `[n, k]` of GGUF files, or of a packed matrix: rows are made f32, then multiplied.
//!
//! `out[i][j] = sum over p in order of x[i][p] * w[j][p]`, in f32: `x` is `[m, k]`, the result `[m, n]`. The product that
//! models use quantises `x` too; this one does not.

use super::{MatmulShape, check_len, elements, tabulate};
use crate::pack::{GgmlType, Origin, matrix_from_ggml};
use crate::{PackedMatrix, Result};

/// `x` times `n` rows of `k` weights in blocks of type `ty`, as a file holds them.
///
/// # Errors
/// When the sizes do not agree or are 0, a row is not whole blocks, the type cannot be packed, or a scale is not finite.
pub fn ggml_matmul(x: &[f32], shape: MatmulShape, ty: GgmlType, bytes: &[u8]) -> Result<Vec<f32>> {
    const OP: &str = "ggml_matmul";
    elements(OP, "w", &[shape.n, shape.k])?;
    let origin = Origin { file: OP, tensor: "w" };
    packed_matmul(x, shape.m, &matrix_from_ggml(ty, shape.n, shape.k, bytes, origin)?)
}

/// `x`, `m` rows, times a packed matrix.
///
/// # Errors
/// When the sizes do not agree or are 0.
pub fn packed_matmul(x: &[f32], m: usize, w: &PackedMatrix) -> Result<Vec<f32>> {
    const OP: &str = "packed_matmul";
    let PackedMatrix { n, k, .. } = *w;
    check_len(OP, "x", x.len(), &[m, k])?;
    let mut out = tabulate(OP, &[m, n], |_| 0.0)?;
    let mut row = vec![0.0; k];
    for j in 0..n {
        w.dequantize_row(j, &mut row);
        for (x, out) in x.chunks_exact(k).zip(out[j..].iter_mut().step_by(n)) {
            *out = x.iter().zip(&row).fold(0.0, |sum, (x, w)| sum + x * w);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
