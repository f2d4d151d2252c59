//! Scales of one byte.

use super::minifloat::{Minifloat, power_of_two};

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
