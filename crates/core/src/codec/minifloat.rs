//! Floats of up to 8 bits: a sign, then the exponent, then the mantissa, from the highest bit of a code down.
//!
//! | format | largest | smallest | special codes |
//! |---|---|---|---|
//! | [`Minifloat::F8E4M3`] | 448 | 2^-9 | `0x7f`, `0xff` NaN |
//! | [`Minifloat::F8E5M2`] | 57344 | 2^-16 | as IEEE: the highest exponent is infinity or NaN |
//! | [`Minifloat::F8E4M3FNUZ`] | 240 | 2^-10 | `0x80` NaN; no negative zero |
//! | [`Minifloat::F8E5M2FNUZ`] | 57344 | 2^-17 | `0x80` NaN; no negative zero |
//! | [`Minifloat::F6E2M3`] | 7.5 | 2^-3 | |
//! | [`Minifloat::F6E3M2`] | 28 | 2^-4 | |
//! | [`Minifloat::F4E2M1`] | 6 | 2^-1 | |

use crate::{Error, Result};

/// What the codes at the end of the range mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    /// The highest exponent is infinity (mantissa 0) or NaN.
    Ieee,
    /// The highest exponent is finite; only with all mantissa bits set it is NaN. "FN" in names: finite, NaN.
    Ocp,
    /// All finite but the code of negative zero, which is NaN. "FNUZ": finite, NaN, unsigned zero.
    Fnuz,
    /// All finite.
    None,
}

/// A format of floats of up to 8 bits: `(-1)^sign * 2^(exponent - bias) * (1 + mantissa / 2^mantissa_bits)`, or with
/// an exponent of 0, `(-1)^sign * 2^(1 - bias) * mantissa / 2^mantissa_bits`.
///
/// Every value is an f32, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Minifloat {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    special: Special,
}

impl Minifloat {
    /// FP8 E4M3 of the OCP ("e4m3fn").
    pub const F8E4M3: Self = Self::known(4, 3, 7, Special::Ocp);
    /// FP8 E5M2, the upper byte of a half.
    pub const F8E5M2: Self = Self::known(5, 2, 15, Special::Ieee);
    /// FP8 E4M3 without negative zero.
    pub const F8E4M3FNUZ: Self = Self::known(4, 3, 8, Special::Fnuz);
    /// FP8 E5M2 without infinities and negative zero.
    pub const F8E5M2FNUZ: Self = Self::known(5, 2, 16, Special::Fnuz);
    /// FP6 E2M3.
    pub const F6E2M3: Self = Self::known(2, 3, 1, Special::None);
    /// FP6 E3M2.
    pub const F6E3M2: Self = Self::known(3, 2, 3, Special::None);
    /// FP4 E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
    pub const F4E2M1: Self = Self::known(2, 1, 1, Special::None);

    const fn known(exponent_bits: u32, mantissa_bits: u32, bias: i32, special: Special) -> Self {
        Self { exponent_bits, mantissa_bits, bias, special }
    }

    /// A format whose codes are all finite.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no exponent, when a code has more than 8 bits, and when the bias is such that a
    /// value would not be an f32.
    pub fn custom(exponent_bits: u32, mantissa_bits: u32, bias: i32) -> Result<Self> {
        let error = |problem: String| {
            Err(Error::Shape { what: format!("minifloat e{exponent_bits}m{mantissa_bits}"), problem })
        };
        if exponent_bits == 0 {
            return error("an exponent has at least 1 bit".into());
        }
        if exponent_bits > 7 || mantissa_bits > 7 - exponent_bits {
            return error("with its sign, a code has at most 8 bits".into());
        }
        // Exponents of the largest value and of the smallest, within those of f32.
        let (least, most) = ((1 << exponent_bits) - 128, 150 - mantissa_bits as i32);
        if bias < least || bias > most {
            return error(format!("a bias of {bias}; values are f32 with biases of {least} to {most}"));
        }
        Ok(Self::known(exponent_bits, mantissa_bits, bias, Special::None))
    }

    /// Bits of a code. Those above are 0 in what [`Minifloat::encode`] returns; [`Minifloat::decode`] ignores them.
    pub const fn bits(self) -> u32 {
        1 + self.exponent_bits + self.mantissa_bits
    }

    /// Bits of the exponent.
    pub const fn exponent_bits(self) -> u32 {
        self.exponent_bits
    }

    /// Bits of the mantissa.
    pub const fn mantissa_bits(self) -> u32 {
        self.mantissa_bits
    }

    /// What is subtracted from an exponent.
    pub const fn bias(self) -> i32 {
        self.bias
    }

    /// What the codes at the end of the range mean.
    pub const fn special(self) -> Special {
        self.special
    }

    /// The largest finite value.
    pub const fn max_finite(self) -> f32 {
        self.decode(self.max_code() as u8)
    }

    /// The value of a code.
    pub const fn decode(self, code: u8) -> f32 {
        let code = code as u32 & ((1 << self.bits()) - 1);
        let sign = self.sign_bit();
        let magnitude = code & (sign - 1);
        let exponent = magnitude >> self.mantissa_bits;
        let mantissa = magnitude & ((1 << self.mantissa_bits) - 1);
        let value = if magnitude > self.max_code() {
            // Only `Ieee` and `Ocp` have codes beyond the largest.
            match self.special {
                Special::Ieee if mantissa == 0 => f32::INFINITY,
                _ => f32::NAN,
            }
        } else if exponent == 0 {
            mantissa as f32 * power_of_two(1 - self.bias - self.mantissa_bits as i32)
        } else {
            let significand = mantissa | 1 << self.mantissa_bits;
            significand as f32 * power_of_two(exponent as i32 - self.bias - self.mantissa_bits as i32)
        };
        match self.special {
            Special::Fnuz if code == sign => f32::NAN,
            _ if code & sign != 0 => -value,
            _ => value,
        }
    }

    /// The code of the nearest value; of two, the one with an even mantissa, or without mantissa bits the smaller one.
    ///
    /// What exceeds the largest finite value, and infinity, becomes that value. What becomes zero, of either sign, and NaN
    /// become code 0.
    pub const fn encode(self, x: f32) -> u8 {
        let magnitude = if x.is_nan() {
            0
        } else if x.is_infinite() {
            self.max_code()
        } else {
            let code = self.round(x.abs());
            if code < self.max_code() { code } else { self.max_code() }
        };
        let sign = if x.is_sign_negative() && magnitude != 0 { self.sign_bit() } else { 0 };
        (magnitude | sign) as u8
    }

    /// The code of a finite value that is not negative, in a format without a largest value.
    const fn round(self, x: f32) -> u32 {
        // x = significand * 2^exponent
        let field = (x.to_bits() >> 23) as i32;
        let fraction = x.to_bits() & 0x7f_ffff;
        let (significand, exponent) =
            if field == 0 { (fraction, -149) } else { (fraction | 1 << 23, field - 150) };
        if significand == 0 {
            return 0;
        }
        // The exponent that the code gets, from 1 up, and x in units of that exponent's last place.
        let log2 = exponent + significand.ilog2() as i32;
        let normal = if log2 + self.bias > 1 { log2 + self.bias } else { 1 };
        let shift = normal - self.bias - self.mantissa_bits as i32 - exponent;
        let units = if shift <= 0 {
            significand << -shift
        } else if shift > 24 {
            // Below half a unit.
            0
        } else {
            let (whole, rest, half) =
                (significand >> shift, significand & ((1 << shift) - 1), 1 << (shift - 1));
            let odd = whole & 1 == 1 && self.mantissa_bits > 0;
            whole + (rest > half || rest == half && odd) as u32
        };
        // The leading 1 of `units`, where there is one, is the exponent's last bit; so is a carry.
        ((normal as u32 - 1) << self.mantissa_bits) + units
    }

    const fn sign_bit(self) -> u32 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// The code of the largest finite value.
    const fn max_code(self) -> u32 {
        let all = self.sign_bit() - 1;
        match self.special {
            Special::Ieee => all - (1 << self.mantissa_bits),
            Special::Ocp => all - 1,
            Special::Fnuz | Special::None => all,
        }
    }
}

/// `2^exponent` for an exponent in `-149..=127`.
pub(super) const fn power_of_two(exponent: i32) -> f32 {
    if exponent < -126 {
        f32::from_bits(1 << (exponent + 149))
    } else {
        f32::from_bits(((exponent + 127) as u32) << 23)
    }
}

#[cfg(test)]
mod tests;
