//! f32 to bytes and back, with scales and zero points for a tensor or for each of its channels.

use super::qmatmul::saturate;
use super::{elements, shape_error};
use crate::Result;

/// Which scale an element of a tensor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    len: usize,
    count: usize,
    /// Neighbouring elements of one channel.
    inner: usize,
}

impl Channels {
    /// One for all of `len` elements.
    pub fn per_tensor(len: usize) -> Self {
        Self { len, count: 1, inner: len.max(1) }
    }

    /// One for each index along `axis` of a tensor of these sizes.
    ///
    /// # Errors
    /// When there is no such axis, a size is 0, or the sizes overflow.
    pub fn along(shape: &[usize], axis: usize) -> Result<Self> {
        const OP: &str = "channels";
        let Some(&count) = shape.get(axis) else {
            return Err(shape_error(OP, format!("axis {axis} of {shape:?}")));
        };
        let len = elements(OP, "the tensor", shape)?;
        Ok(Self { len, count, inner: shape[axis + 1..].iter().product() })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The elements of the tensor.
    pub fn elements(&self) -> usize {
        self.len
    }

    /// The channel of the element with flat index `i`.
    pub fn of(&self, i: usize) -> usize {
        i / self.inner % self.count
    }

    pub(super) fn check_tensor(&self, op: &str, what: &str, len: usize) -> Result<()> {
        self.check(op, what, len, self.len)
    }

    /// Checks the length of what has one element for each channel.
    pub(super) fn check_scales(&self, op: &str, what: &str, len: usize) -> Result<()> {
        self.check(op, what, len, self.count)
    }

    fn check(&self, op: &str, what: &str, len: usize, expected: usize) -> Result<()> {
        if len != expected {
            return Err(shape_error(op, format!("{what}: {len} elements, expected {expected}")));
        }
        Ok(())
    }
}

/// `clamp(round(x * (1 / scale)) + zero_point, -128, 127)`: multiplied by the reciprocal in f32, rounded half away from
/// zero. NaN becomes the zero point.
///
/// `scales` and `zero_points` have an element for each channel.
///
/// # Errors
/// When the lengths do not agree.
pub fn quantize(x: &[f32], channels: &Channels, scales: &[f32], zero_points: &[i32]) -> Result<Vec<i8>> {
    const OP: &str = "quantize";
    channels.check_tensor(OP, "x", x.len())?;
    channels.check_scales(OP, "scales", scales.len())?;
    channels.check_scales(OP, "zero points", zero_points.len())?;
    let code = |(i, x): (usize, &f32)| {
        let c = channels.of(i);
        let rounded = (x * (1.0 / scales[c])).round() as i32;
        saturate(i64::from(rounded) + i64::from(zero_points[c]))
    };
    Ok(x.iter().enumerate().map(code).collect())
}

/// `f32(q - zero_point) * scale`.
///
/// `scales` and `zero_points` have an element for each channel.
///
/// # Errors
/// When the lengths do not agree.
pub fn dequantize(q: &[i8], channels: &Channels, scales: &[f32], zero_points: &[i32]) -> Result<Vec<f32>> {
    const OP: &str = "dequantize";
    channels.check_tensor(OP, "q", q.len())?;
    channels.check_scales(OP, "scales", scales.len())?;
    channels.check_scales(OP, "zero points", zero_points.len())?;
    let value = |(i, q): (usize, &i8)| {
        let c = channels.of(i);
        (i64::from(*q) - i64::from(zero_points[c])) as f32 * scales[c]
    };
    Ok(q.iter().enumerate().map(value).collect())
}

#[cfg(test)]
mod tests;
