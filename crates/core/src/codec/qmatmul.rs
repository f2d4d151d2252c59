//! Bytes times bytes to bytes, with zero points.

use super::{check_len, shape_error, tabulate};
use crate::Result;

/// A tensor of signed bytes: `value = scale * (byte - zero_point)`. The scales are in the [`Requant`].
#[derive(Clone, Copy, Debug)]
pub struct Int8Tensor<'a> {
    /// The bytes, row-major.
    pub values: &'a [i8],
    /// The sizes.
    pub shape: &'a [usize],
    /// The byte of the value 0.
    pub zero_point: i8,
}

impl Int8Tensor<'_> {
    /// The sizes of a tensor of `RANK` dimensions whose values are all there.
    pub(super) fn dims<const RANK: usize>(&self, op: &str, what: &str) -> Result<[usize; RANK]> {
        let dims = *self.shape.as_array().ok_or_else(|| {
            shape_error(op, format!("{what} is {:?}; it must have {RANK} dimensions", self.shape))
        })?;
        check_len(op, what, self.values.len(), &dims)?;
        Ok(dims)
    }

    /// Element `i` less the zero point.
    pub(super) fn centred(&self, i: usize) -> i64 {
        i64::from(self.values[i]) - i64::from(self.zero_point)
    }
}

/// How sums become bytes again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Requant {
    /// The scale of a sum divided by that of the result.
    pub multiplier: f32,
    /// The result's byte of the value 0.
    pub zero_point: i32,
}

impl Requant {
    /// From the scales of `x`, `w` and the result: `(x * w) / out` in f32.
    pub fn new(x_scale: f32, w_scale: f32, out_scale: f32, zero_point: i32) -> Self {
        Self { multiplier: x_scale * w_scale / out_scale, zero_point }
    }

    /// `clamp(round(f32(sum) * multiplier) + zero_point, -128, 127)`.
    ///
    /// The sum is rounded to f32 to even, the product half away from zero and saturated to i32, and NaN is 0. The
    /// zero point is added in more than 32 bits.
    pub fn apply(self, sum: i64) -> i8 {
        let rounded = (sum as f32 * self.multiplier).round() as i32;
        saturate(i64::from(rounded) + i64::from(self.zero_point))
    }
}

pub(super) fn saturate(value: i64) -> i8 {
    value.clamp(i64::from(i8::MIN), i64::from(i8::MAX)) as i8
}

/// `out[i][j] = requant(bias[j] + sum over p of (x[i][p] - x_zero) * (w[p][j] - w_zero))`.
///
/// `x` is `[m, k]`, `w` `[k, n]`, `bias` `[n]`, the result `[m, n]`. Sums are exact: they have 64 bits, since 32 overflow
/// from 33026 terms on.
///
/// # Errors
/// When the sizes do not agree or are 0.
pub fn qmatmul(
    x: &Int8Tensor<'_>,
    w: &Int8Tensor<'_>,
    bias: Option<&[i32]>,
    requant: Requant,
) -> Result<Vec<i8>> {
    const OP: &str = "qmatmul";
    let [m, k] = x.dims(OP, "x")?;
    let [k_of_w, n] = w.dims(OP, "w")?;
    if k != k_of_w {
        return Err(shape_error(OP, format!("x has rows of {k}, w columns of {k_of_w}")));
    }
    check_bias(OP, bias, n)?;
    tabulate(OP, &[m, n], |i| {
        let (i, j) = (i / n, i % n);
        let sum: i64 = (0..k).map(|p| x.centred(i * k + p) * w.centred(p * n + j)).sum();
        requant.apply(sum + bias_of(bias, j))
    })
}

pub(super) fn check_bias(op: &str, bias: Option<&[i32]>, n: usize) -> Result<()> {
    bias.map_or(Ok(()), |bias| check_len(op, "bias", bias.len(), &[n]))
}

pub(super) fn bias_of(bias: Option<&[i32]>, j: usize) -> i64 {
    bias.map_or(0, |bias| i64::from(bias[j]))
}

#[cfg(test)]
mod tests;
