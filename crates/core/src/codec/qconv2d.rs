//! Convolution of bytes with bytes to bytes, in two dimensions.

use super::qmatmul::{Int8Tensor, Requant, bias_of, check_bias};
use super::{shape_error, tabulate};
use crate::Result;

/// How a kernel moves over an image; pairs are vertical, then horizontal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2d {
    /// Groups of channels; an output channel sees the input channels of its group.
    pub groups: usize,
    /// Steps between outputs.
    pub stride: [usize; 2],
    /// Rows and columns around the image, on each side. They have the value 0, which is the byte of the zero point.
    pub padding: [usize; 2],
    /// Steps between the taps of the kernel.
    pub dilation: [usize; 2],
}

impl Default for Conv2d {
    /// One group, no padding, steps of 1.
    fn default() -> Self {
        Self { groups: 1, stride: [1, 1], padding: [0, 0], dilation: [1, 1] }
    }
}

const OP: &str = "qconv2d";

impl Conv2d {
    /// The sizes `[batch, c_out, h_out, w_out]` of the result for an image `[batch, c_in, h, w]` and weights
    /// `[c_out, c_in / groups, kh, kw]`: `h_out = (h + 2 * padding - dilation * (kh - 1) - 1) / stride + 1`.
    ///
    /// # Errors
    /// When groups do not divide the channels, a stride, a dilation or the number of groups is 0, or the kernel does not
    /// fit into the padded image.
    pub fn output_dims(&self, x: [usize; 4], w: [usize; 4]) -> Result<[usize; 4]> {
        let ([batch, c_in, height, width], [c_out, c_of_group, kh, kw]) = (x, w);
        let groups = self.groups;
        if groups == 0 || !c_in.is_multiple_of(groups) || !c_out.is_multiple_of(groups) {
            return Err(shape_error(
                OP,
                format!(
                    "{groups} groups of {c_in} channels to {c_out}; both must be multiples of the groups"
                ),
            ));
        }
        if c_in / groups != c_of_group {
            let problem = format!("w has {c_of_group} channels a group, x {c_in} in {groups} groups");
            return Err(shape_error(OP, problem));
        }
        Ok([batch, c_out, self.output_size(0, height, kh)?, self.output_size(1, width, kw)?])
    }

    fn output_size(&self, axis: usize, size: usize, kernel: usize) -> Result<usize> {
        let (stride, padding, dilation) = (self.stride[axis], self.padding[axis], self.dilation[axis]);
        if stride == 0 || dilation == 0 || kernel == 0 {
            let problem =
                format!("kernel {kernel}, stride {stride}, dilation {dilation}; all must be above 0");
            return Err(shape_error(OP, problem));
        }
        let padded = padding.checked_mul(2).and_then(|both| size.checked_add(both));
        let extent = dilation.checked_mul(kernel - 1).and_then(|extent| extent.checked_add(1));
        match padded.zip(extent).and_then(|(padded, extent)| padded.checked_sub(extent)) {
            Some(room) => Ok(room / stride + 1),
            None => Err(shape_error(
                OP,
                format!(
                    "a kernel of {kernel} with dilation {dilation} does not fit into {size} with padding {padding}"
                ),
            )),
        }
    }

    /// Where tap `tap` of output `out` lies in the image, if inside of `size`.
    fn tap(&self, axis: usize, out: usize, tap: usize, size: usize) -> Option<usize> {
        let at = out * self.stride[axis] + tap * self.dilation[axis];
        at.checked_sub(self.padding[axis]).filter(|at| *at < size)
    }
}

/// `out[b][co][ho][wo] = requant(bias[co] + sum over the taps of (x - x_zero) * (w - w_zero))`.
///
/// `x` is `[batch, c_in, h, w]`, `w` `[c_out, c_in / groups, kh, kw]`, `bias` `[c_out]`, the result as
/// [`Conv2d::output_dims`]. Taps outside of the image add nothing: the value there is 0. Sums are exact.
///
/// # Errors
/// When a tensor has not 4 dimensions, and as [`Conv2d::output_dims`].
pub fn qconv2d(
    x: &Int8Tensor<'_>,
    w: &Int8Tensor<'_>,
    bias: Option<&[i32]>,
    conv: &Conv2d,
    requant: Requant,
) -> Result<Vec<i8>> {
    let (image, weights) = (x.dims::<4>(OP, "x")?, w.dims::<4>(OP, "w")?);
    let dims = conv.output_dims(image, weights)?;
    let ([_, c_in, height, width], [c_out, c_of_group, kh, kw]) = (image, weights);
    check_bias(OP, bias, c_out)?;
    tabulate(OP, &dims, |i| {
        let [b, co, ho, wo] = unravel(i, dims);
        let first = co / (c_out / conv.groups) * c_of_group;
        let mut sum = bias_of(bias, co);
        for ki in 0..kh {
            let Some(row) = conv.tap(0, ho, ki, height) else { continue };
            for kj in 0..kw {
                let Some(column) = conv.tap(1, wo, kj, width) else { continue };
                for c in 0..c_of_group {
                    let at_x = ((b * c_in + first + c) * height + row) * width + column;
                    let at_w = ((co * c_of_group + c) * kh + ki) * kw + kj;
                    sum += x.centred(at_x) * w.centred(at_w);
                }
            }
        }
        requant.apply(sum)
    })
}

/// The indices of element `i` of a tensor.
fn unravel(i: usize, [_, d1, d2, d3]: [usize; 4]) -> [usize; 4] {
    [i / d3 / d2 / d1, i / d3 / d2 % d1, i / d3 % d2, i % d3]
}

#[cfg(test)]
mod tests;
