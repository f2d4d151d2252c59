//! Scales of one byte, and where the scales of a matrix `[rows, k]` lie.

use super::minifloat::{Minifloat, power_of_two};
use super::{check_len, shape_error};
use crate::Result;

/// How the scales of a matrix are stored: one for all, or one for each block of `block` neighbours along `k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleLayout {
    /// One f32.
    PerTensor,
    /// E8M0 bytes ([`decode_e8m0`]), `[rows, k.div_ceil(block)]`.
    E8m0 {
        /// Elements that share a scale.
        block: usize,
    },
    /// E4M3 bytes ([`Minifloat::F8E4M3`]), `[rows, k.div_ceil(block)]`.
    E4m3 {
        /// Elements that share a scale.
        block: usize,
    },
}

impl ScaleLayout {
    /// The scales of the OCP's MX formats.
    pub const MX: Self = Self::E8m0 { block: 32 };
    /// The block scales of NVFP4.
    pub const NVFP4: Self = Self::E4m3 { block: 16 };
}

/// The scales of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub enum Scales {
    /// One for all; 1 by default.
    PerTensor(f32),
    /// As [`ScaleLayout::E8m0`].
    E8m0 {
        /// Elements that share a scale.
        block: usize,
        /// `[rows, k.div_ceil(block)]`.
        bytes: Vec<u8>,
    },
    /// As [`ScaleLayout::E4m3`].
    E4m3 {
        /// Elements that share a scale.
        block: usize,
        /// `[rows, k.div_ceil(block)]`.
        bytes: Vec<u8>,
    },
}

impl Default for Scales {
    fn default() -> Self {
        Self::PerTensor(1.0)
    }
}

impl Scales {
    pub(super) fn check(&self, op: &str, rows: usize, k: usize) -> Result<()> {
        match self {
            Self::PerTensor(_) => Ok(()),
            Self::E8m0 { block, bytes } | Self::E4m3 { block, bytes } => {
                check_len(op, "scales", bytes.len(), &[rows, blocks(op, k, *block)?])
            }
        }
    }

    /// The scale of element `p` of a row of `k`, in a matrix for which [`Scales::check`] has passed.
    pub(super) fn at(&self, row: usize, p: usize, k: usize) -> f32 {
        let byte = |block: usize, bytes: &[u8]| bytes[row * k.div_ceil(block) + p / block];
        match self {
            Self::PerTensor(scale) => *scale,
            Self::E8m0 { block, bytes } => decode_e8m0(byte(*block, bytes)),
            Self::E4m3 { block, bytes } => Minifloat::F8E4M3.decode(byte(*block, bytes)),
        }
    }
}

/// Blocks of a row of `k`.
pub(super) fn blocks(op: &str, k: usize, block: usize) -> Result<usize> {
    if block == 0 {
        return Err(shape_error(op, "blocks of 0; a block has at least 1 element"));
    }
    Ok(k.div_ceil(block))
}

/// The value of an E8M0 scale, `2^(byte - 127)`; `0xff` is NaN.
pub const fn decode_e8m0(byte: u8) -> f32 {
    if byte == 0xff { f32::NAN } else { power_of_two(byte as i32 - 127) }
}

/// The smallest E8M0 scale that is not below `scale`: the byte of `2^ceil(log2(scale))`, at most 254.
///
/// The exponent is read from the bits, since a logarithm in f32 is wrong just above powers of two. A scale that is not
/// finite, and one that is not above 0, becomes byte 0.
pub const fn encode_e8m0(scale: f32) -> u8 {
    if !(scale.is_finite() && scale > 0.0) {
        return 0;
    }
    let (field, fraction) = (scale.to_bits() >> 23, scale.to_bits() & 0x7f_ffff);
    match field {
        // Below 2^-126; byte 0 is 2^-127.
        0 => (fraction > 1 << 22) as u8,
        254 => 254,
        _ => (field + (fraction != 0) as u32) as u8,
    }
}

/// The value of an unsigned E4M3 scale, as in NVFP4: bit 7 is ignored, and the code of NaN is 0.
pub const fn decode_ue4m3(byte: u8) -> f32 {
    let scale = Minifloat::F8E4M3.decode(byte & 0x7f);
    if scale.is_nan() { 0.0 } else { scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e8m0_snaps_up_to_a_power_of_two() {
        for byte in 0..255u8 {
            let power = decode_e8m0(byte);
            assert_eq!(f64::from(power), 2f64.powi(i32::from(byte) - 127));
            assert_eq!(encode_e8m0(power), byte);
            assert_eq!(
                encode_e8m0(power.next_up()),
                (byte + 1).min(254),
                "just above 2^{}",
                i32::from(byte) - 127
            );
            assert_eq!(encode_e8m0(power.next_down()), byte, "just below 2^{}", i32::from(byte) - 127);
        }
        assert!(decode_e8m0(255).is_nan());
        assert_eq!(encode_e8m0(f32::MAX), 254);
        for scale in [0.0, -0.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::from_bits(1)] {
            assert_eq!(encode_e8m0(scale), 0, "{scale}");
        }
    }

    #[test]
    fn unsigned_e4m3_has_neither_sign_nor_nan() {
        for byte in 0..=255u8 {
            let expected = if byte & 0x7f == 0x7f { 0.0 } else { Minifloat::F8E4M3.decode(byte).abs() };
            assert_eq!(decode_ue4m3(byte), expected, "{byte:#x}");
        }
    }
}
