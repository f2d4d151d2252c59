//! Quantisation while training: values become those that codes can hold, and gradients go through as if they had not.
//!
//! `y = clamp(round(x / s), -q_max, q_max) * s`, in f32, rounded half away from zero, with a scale for each channel and
//! `q_max = 2^(bits - 1) - 1`.

use super::affine::Channels;
use super::shape_error;
use crate::Result;

/// No scale is smaller.
pub const MIN_SCALE: f32 = 1e-12;

/// Where scales come from. A state has an element for each channel.
#[derive(Debug)]
pub enum ScaleSource<'a> {
    /// From the values: the largest magnitude divided by `q_max`, at least [`MIN_SCALE`].
    PerBatch,
    /// A moving average of those of [`ScaleSource::PerBatch`]: `decay * state + (1 - decay) * current`, or `current` where
    /// the state is not above 0.
    Ema {
        /// The weight of the past, 0 to 1.
        decay: f32,
        /// The average; it is replaced by the new one, which is the scale.
        state: &'a mut [f32],
    },
    /// The state, at least [`MIN_SCALE`].
    Fixed(&'a [f32]),
}

/// What [`fake_quantize`] returns.
#[derive(Clone, Debug, PartialEq)]
pub struct FakeQuantized {
    /// The values, as many as of `x`.
    pub y: Vec<f32>,
    /// The scale that was used, for each channel: what the backward pass needs.
    pub scales: Vec<f32>,
}

/// The largest code of so many bits, `2^(bits - 1) - 1`; the smallest is its negative.
///
/// # Errors
/// Unless there are 2 to 8 bits.
pub fn q_max(bits: u32) -> Result<f32> {
    if !(2..=8).contains(&bits) {
        return Err(shape_error("fake_quantize", format!("{bits} bits; codes have 2 to 8")));
    }
    Ok(((1 << (bits - 1)) - 1) as f32)
}

/// `clamp(round(x / scale), -q_max, q_max) * scale`.
pub(super) fn through_codes(x: f32, scale: f32, q_max: f32) -> f32 {
    (x / scale).round().clamp(-q_max, q_max) * scale
}

/// Makes of `x` what codes of `bits` bits can hold.
///
/// # Errors
/// When the lengths do not agree, `bits` is not 2 to 8, or a decay is not 0 to 1; the state is as before then.
pub fn fake_quantize(
    x: &[f32],
    channels: &Channels,
    bits: u32,
    source: ScaleSource<'_>,
) -> Result<FakeQuantized> {
    const OP: &str = "fake_quantize";
    let q_max = q_max(bits)?;
    channels.check_tensor(OP, "x", x.len())?;
    let scales = match source {
        ScaleSource::PerBatch => batch_scales(x, channels, q_max),
        ScaleSource::Ema { decay, state } => {
            channels.check_scales(OP, "state", state.len())?;
            if !(0.0..=1.0).contains(&decay) {
                return Err(shape_error(OP, format!("a decay of {decay}; it must be 0 to 1")));
            }
            for (state, current) in state.iter_mut().zip(batch_scales(x, channels, q_max)) {
                *state = if *state > 0.0 { decay * *state + (1.0 - decay) * current } else { current };
            }
            state.to_vec()
        }
        ScaleSource::Fixed(state) => {
            channels.check_scales(OP, "state", state.len())?;
            state.iter().map(|scale| scale.max(MIN_SCALE)).collect()
        }
    };
    let y = x.iter().enumerate().map(|(i, x)| through_codes(*x, scales[channels.of(i)], q_max)).collect();
    Ok(FakeQuantized { y, scales })
}

fn batch_scales(x: &[f32], channels: &Channels, q_max: f32) -> Vec<f32> {
    let mut scales = vec![0f32; channels.count()];
    for (i, x) in x.iter().enumerate() {
        let scale = &mut scales[channels.of(i)];
        *scale = scale.max(x.abs());
    }
    scales.iter().map(|absmax| (absmax / q_max).max(MIN_SCALE)).collect()
}

/// A straight-through estimator: what stands for the derivative of rounding and clamping, which is 0 nearly everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ste {
    /// 1.
    Identity,
    /// 1 where `|x| <= q_max * s`, else 0.
    ClippedIdentity,
    /// `1 - tanh(x / s)^2`.
    Tanh,
    /// `max(0, 1 - |x / (q_max * s)|)`.
    HardTanh,
}

impl Ste {
    /// What a gradient is multiplied with at `x`, for codes up to `q_max` and the scale `scale`.
    pub fn factor(self, x: f32, scale: f32, q_max: f32) -> f32 {
        match self {
            Self::Identity => 1.0,
            Self::ClippedIdentity => f32::from(u8::from(x.abs() <= q_max * scale)),
            Self::Tanh => {
                let tanh = libm::tanhf(x / scale);
                1.0 - tanh * tanh
            }
            Self::HardTanh => (1.0 - (x / (q_max * scale)).abs()).max(0.0),
        }
    }
}

/// The gradient of `x` from that of `y`: `dy * ste.factor(x)`, and 0 where the factor is.
///
/// `scales` are those that the forward pass used ([`FakeQuantized::scales`]), wherever they came from.
///
/// # Errors
/// When the lengths do not agree, or `bits` is not 2 to 8.
pub fn fake_quantize_backward(
    x: &[f32],
    dy: &[f32],
    channels: &Channels,
    bits: u32,
    scales: &[f32],
    ste: Ste,
) -> Result<Vec<f32>> {
    const OP: &str = "fake_quantize_backward";
    let q_max = q_max(bits)?;
    channels.check_tensor(OP, "x", x.len())?;
    channels.check_tensor(OP, "dy", dy.len())?;
    channels.check_scales(OP, "scales", scales.len())?;
    let gradient = |(i, (x, dy)): (usize, (&f32, &f32))| {
        let factor = ste.factor(*x, scales[channels.of(i)], q_max);
        if factor == 0.0 { 0.0 } else { dy * factor }
    };
    Ok(x.iter().zip(dy).enumerate().map(gradient).collect())
}

#[cfg(test)]
mod tests;
