//! Codecs and oracles: what small number formats and quantised operators mean, in plain scalar code.
//!
//! | module | what |
//! |---|---|
//! | [`minifloat`] | floats of up to 8 bits, to the bit: FP8 of all kinds, FP6, FP4, and any other |
//! | [`scale`] | scales of one byte, and where the scales of a matrix lie |
//! | [`scaled_matmul`] | MX and NVFP4: scales, codes, values and the product of two such matrices |
//! | [`dequant_matmul`] | f32 times integers in blocks, FP8 columns, or NVFP4 with a global scale |
//! | [`ggml_matmul`] | f32 times blocks of GGUF files, or a packed matrix |
//! | [`qmatmul`], [`qconv2d`] | bytes times bytes to bytes |
//! | [`affine`] | f32 to bytes and back, for a tensor or each of its channels |
//! | [`fake_quantize`], [`lsq`] | quantisation while training, forward and backward |
//!
//! Nothing here is quick and no model runs on it: it is what kernels, importers and tests are compared with. So every
//! operator states how it rounds and in which order it adds, and does just that, on every CPU the same. All are safe to
//! call with anything: sizes that do not agree are [`Error::Shape`], and a result that there is no memory for is
//! [`Error::OutOfMemory`]. Values are not judged: what is not finite goes the way of IEEE arithmetic, and becomes 0 where a
//! float becomes an integer.
//!
//! Tensors are slices, row-major: of `[m, k]`, `k` is the dimension whose elements lie side by side.

pub mod affine;
pub mod dequant_matmul;
pub mod fake_quantize;
pub mod ggml_matmul;
pub mod lsq;
pub mod minifloat;
pub mod qconv2d;
pub mod qmatmul;
pub mod scale;
pub mod scaled_matmul;
#[cfg(test)]
mod testing;

pub use minifloat::Minifloat;

use crate::{Error, Result};

/// The sizes of a product `[m, k] x [k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatmulShape {
    /// Rows of the left side and of the result.
    pub m: usize,
    /// Terms of a sum.
    pub k: usize,
    /// Columns of the result.
    pub n: usize,
}

impl MatmulShape {
    /// Row by row, `sum over p in order of x[i][p] * weight(p, j)`, all in f32.
    fn product(self, op: &str, x: &[f32], weight: impl Fn(usize, usize) -> f32) -> Result<Vec<f32>> {
        let Self { m, k, n } = self;
        check_len(op, "x", x.len(), &[m, k])?;
        tabulate(op, &[m, n], |i| {
            let row = &x[i / n * k..][..k];
            row.iter().enumerate().fold(0.0, |sum, (p, x)| sum + x * weight(p, i % n))
        })
    }
}

fn shape_error(op: &str, problem: impl Into<String>) -> Error {
    Error::Shape { what: op.to_owned(), problem: problem.into() }
}

/// The elements of a tensor; its sizes must be above 0.
fn elements(op: &str, what: &str, dims: &[usize]) -> Result<usize> {
    if dims.contains(&0) {
        return Err(shape_error(op, format!("{what} is {dims:?}; sizes must be above 0")));
    }
    dims.iter()
        .try_fold(1usize, |product, dim| product.checked_mul(*dim))
        .ok_or_else(|| shape_error(op, format!("{what} is {dims:?}, which overflows the address space")))
}

/// Checks that `len` elements are all of a tensor of these sizes, which must be above 0.
fn check_len(op: &str, what: &str, len: usize, dims: &[usize]) -> Result<()> {
    let expected = elements(op, what, dims)?;
    if len != expected {
        return Err(shape_error(op, format!("{what} has {len} elements, {dims:?} has {expected}")));
    }
    Ok(())
}

/// A tensor of these sizes from its elements by flat index.
fn tabulate<T>(op: &str, dims: &[usize], element: impl FnMut(usize) -> T) -> Result<Vec<T>> {
    let len = elements(op, "the result", dims)?;
    let mut out = Vec::new();
    out.try_reserve_exact(len).map_err(|_| Error::OutOfMemory {
        what: op.to_owned(),
        needed: format!("a result of {dims:?}"),
        hint: "compute a part of it at a time".into(),
    })?;
    out.extend((0..len).map(element));
    Ok(out)
}
