//! Floats of 8 bits, as the Open Compute Project defines them, times scales.

use super::Translate;
use lowbit_core::pack::{GgmlType, Origin};

/// The two kinds of floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// 4 bits of exponent, 3 of mantissa; no infinities, one NaN of each sign.
    E4m3,
    /// 5 bits of exponent, 2 of mantissa: the upper half of an IEEE half.
    E5m2,
}

impl Kind {
    pub fn of_dtype(dtype: &str) -> Option<Self> {
        [Self::E4m3, Self::E5m2].into_iter().find(|kind| kind.dtype() == dtype)
    }

    /// Its name in safetensors files.
    pub fn dtype(self) -> &'static str {
        match self {
            Self::E4m3 => "F8_E4M3",
            Self::E5m2 => "F8_E5M2",
        }
    }

    /// The value, exactly; `None` where it is not finite.
    pub fn value(self, byte: u8) -> Option<f32> {
        let (mantissa_bits, bias) = match self {
            Self::E4m3 => (3, 7),
            Self::E5m2 => (2, 15),
        };
        let is_finite = match self {
            Self::E4m3 => byte & 0x7f != 0x7f,
            Self::E5m2 => byte & 0x7c != 0x7c,
        };
        let exponent = i32::from(byte & 0x7f) >> mantissa_bits;
        let mantissa = u32::from(byte) & ((1 << mantissa_bits) - 1);
        // Numbers of the lowest exponent have no leading one.
        let significand = if exponent == 0 { mantissa } else { mantissa | 1 << mantissa_bits };
        let power = exponent.max(1) - bias - mantissa_bits;
        let value = significand as f32 * f32::from_bits(((127 + power) as u32) << 23);
        is_finite.then_some(if byte & 0x80 == 0 { value } else { -value })
    }
}

/// A matrix of such floats.
#[derive(Debug)]
pub(super) struct Float8 {
    pub kind: Kind,
    /// Columns of the matrix.
    pub k: usize,
    /// Rows and columns that share a scale.
    pub block: [usize; 2],
    /// Type of the scales.
    pub scales: GgmlType,
}

impl Translate for Float8 {
    fn translate(
        &self,
        bytes: &[u8],
        first_row: usize,
        parts: &[Vec<u8>],
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let [rows, columns] = self.block;
        let mut scales = Vec::new();
        let origin = Origin { file: "scales", tensor: self.kind.dtype() };
        for part in parts {
            self.scales.floats(part, &mut scales, origin).map_err(|e| e.to_string())?;
        }
        for (row, bytes) in (first_row..).zip(bytes.chunks_exact(self.k)) {
            let first = row / rows * self.k.div_ceil(columns);
            for (column, byte) in bytes.iter().enumerate() {
                let Some(value) = self.kind.value(*byte) else {
                    return Err(format!("element [{row}, {column}] is {byte:#04x}, which is not finite"));
                };
                let Some(scale) = scales.get(first + column / columns) else {
                    return Err(format!("element [{row}, {column}] has no scale"));
                };
                out.extend((value * scale).to_le_bytes());
            }
        }
        Ok(())
    }
}
