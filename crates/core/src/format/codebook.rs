//! What codes stand for that are not evenly spaced, and scales that are bytes.

/// The values of codes. All are signed bytes, so that products with activations stay exact integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codebook {
    /// The code minus the format's offset.
    Linear,
    /// Floats of a sign, 2 bits of exponent and 1 of mantissa (OCP FP4), doubled: 0, 1, 2, 3, 4, 6, 8, 12, and the same
    /// below zero.
    E2m1,
    /// 16 values that lie closer to each other near zero (GGML's IQ4_NL).
    Iq4Nl,
    /// -1 and 1.
    Sign,
}

impl Codebook {
    /// The values of codes of up to 4 bits.
    pub const fn values(self) -> [i8; 16] {
        match self {
            Self::Linear => linear(0),
            Self::E2m1 => [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12],
            Self::Iq4Nl => [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
            Self::Sign => [-1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        }
    }
}

/// Codes minus `offset`.
pub(super) const fn linear(offset: i32) -> [i8; 16] {
    let mut values = [0; 16];
    let mut code = 0;
    while code < 16 {
        values[code] = (code as i32 - offset) as i8;
        code += 1;
    }
    values
}

/// The largest byte of [`super::ScaleForm::E8m0`]: the next one is no number.
pub(crate) const E8M0_MAX: u8 = 0xfe;
/// The largest byte of [`super::ScaleForm::E4m3`]: the next one is no number, and the others have a sign.
pub(crate) const E4M3_MAX: u8 = 0x7e;

/// `2^(e - 128)`, exactly: half of what the byte `e` of [`super::ScaleForm::E8m0`] stands for.
#[inline(always)]
pub(crate) fn e8m0(e: u8) -> f32 {
    let subnormal = f32::from_bits(1 << (21 + (e & 1)));
    if e < 2 { subnormal } else { f32::from_bits((u32::from(e) - 1) << 23) }
}

/// Half of what the byte of [`super::ScaleForm::E4m3`] stands for, exactly. No subnormal float is computed with: they are slow.
#[inline(always)]
pub(crate) fn e4m3(byte: u8) -> f32 {
    let subnormal = f32::from(byte) / 1024.0;
    if byte < 8 { subnormal } else { f32::from_bits((u32::from(byte) << 20) + (119 << 23)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_what_their_standards_say() {
        for e in 0..=254u8 {
            assert_eq!(f64::from(e8m0(e)), 2f64.powi(i32::from(e) - 128), "{e}");
        }
        assert_eq!(
            [0, 1, 8, 0x38, 0x7e].map(|byte| e4m3(byte) * 2.0),
            [0.0, 1.0 / 512.0, 1.0 / 64.0, 1.0, 448.0]
        );
        for byte in 0..0x7e {
            assert!(e4m3(byte) < e4m3(byte + 1), "{byte}");
        }
    }
}
