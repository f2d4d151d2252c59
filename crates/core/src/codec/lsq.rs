//! Learned step sizes: [fake quantisation](super::fake_quantize) whose scales are parameters with a gradient.
//!
//! `z = x / s`, with `s` at least [`MIN_SCALE`]; `y = clamp(round(z), -q_max, q_max) * s`. Gradients are not scaled by the
//! number of elements: the caller may.

use super::affine::Channels;
use super::fake_quantize::{MIN_SCALE, q_max, through_codes};
use crate::Result;

/// The values that codes of `bits` bits can hold, with a learned scale for each channel.
///
/// # Errors
/// When the lengths do not agree, or `bits` is not 2 to 8.
pub fn lsq(x: &[f32], channels: &Channels, bits: u32, scales: &[f32]) -> Result<Vec<f32>> {
    const OP: &str = "lsq";
    let q_max = q_max(bits)?;
    channels.check_tensor(OP, "x", x.len())?;
    channels.check_scales(OP, "scales", scales.len())?;
    let value = |(i, x): (usize, &f32)| through_codes(*x, scales[channels.of(i)].max(MIN_SCALE), q_max);
    Ok(x.iter().enumerate().map(value).collect())
}

/// What [`lsq_backward`] returns.
#[derive(Clone, Debug, PartialEq)]
pub struct LsqGradients {
    /// Of the values.
    pub dx: Vec<f32>,
    /// Of the scales, one for each channel.
    pub dscales: Vec<f32>,
}

/// The gradients of [`lsq`] from that of `y`.
///
/// `dx = dy` where `|z| <= q_max`, else 0. `ds` is the sum over a channel, in order and in f32, of `dy` times
/// `round(z) - z` where `|z| <= q_max`, else `q_max` with the sign of `z`.
///
/// # Errors
/// When the lengths do not agree, or `bits` is not 2 to 8.
pub fn lsq_backward(
    x: &[f32],
    dy: &[f32],
    channels: &Channels,
    bits: u32,
    scales: &[f32],
) -> Result<LsqGradients> {
    const OP: &str = "lsq_backward";
    let q_max = q_max(bits)?;
    channels.check_tensor(OP, "x", x.len())?;
    channels.check_tensor(OP, "dy", dy.len())?;
    channels.check_scales(OP, "scales", scales.len())?;
    let mut gradients = LsqGradients { dx: vec![0.0; x.len()], dscales: vec![0.0; scales.len()] };
    for (i, (x, dy)) in x.iter().zip(dy).enumerate() {
        let c = channels.of(i);
        let z = x / scales[c].max(MIN_SCALE);
        let psi = if z.abs() <= q_max {
            gradients.dx[i] = *dy;
            z.round() - z
        } else {
            q_max * z.signum()
        };
        gradients.dscales[c] += psi * dy;
    }
    Ok(gradients)
}

#[cfg(test)]
mod tests;
