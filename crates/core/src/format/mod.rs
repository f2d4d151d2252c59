//! Every weight format, defined once.
//!
//! A [`Format`] says how many bits a code has, in which planes the codes lie, what the scale looks like and which
//! code means zero. Packing, the CPU kernels and the shaders all follow [`FORMATS`].

mod codec;
mod quantize;

pub use quantize::{quantize_q4, quantize_q8};

use crate::buffer::Bytes;

/// Output columns of a tile.
pub const TILE_N: usize = 16;
/// Input features of a block: one scale a column.
pub const BLOCK_K: usize = 32;

/// Names a weight format. Its properties are in [`FORMATS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// 4-bit codes, f16 scale per 32, zero at 8 (GGUF Q4_0).
    Q4,
    /// 4-bit codes, f16 scale and f16 min per 32 (GGUF Q4_1).
    Q4m,
    /// 5-bit codes (4 + 1 planes), f16 scale per 32, zero at 16 (GGUF Q5_0).
    Q5,
    /// 5-bit codes (4 + 1 planes), f16 scale and f16 min per 32 (GGUF Q5_1).
    Q5m,
    /// Signed bytes, f16 scale per 32 (GGUF Q8_0).
    Q8,
    /// Raw IEEE half.
    F16,
    /// Raw bfloat16.
    Bf16,
    /// Raw single.
    F32,
}

/// How the codes of a format lie in their planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// `W` `[n/16][k/32][4][16]` u32 words of 8 unsigned 4-bit codes.
    U4,
    /// As [`Codes::U4`], and `X` `[n/16][k/32][16]` u32: bit `8 * (k % 4) + k / 4` is bit 4 of code `k` of the block.
    U5,
    /// `W` `[n/16][k/32][8][16]` u32 words of 4 signed bytes.
    I8,
    /// `W` `[n/16][k][16]` floats: 16 columns side by side.
    Float,
}

/// The scale of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleForm {
    /// None: the codes are the values.
    None,
    /// `S` `[n/16][k/32][16]` f16.
    F16,
    /// `S` as above and `M` of the same shape: `w = s * code + m`.
    F16Min,
}

/// The properties of a format.
#[derive(Clone, Copy, Debug)]
pub struct FormatSpec {
    /// The format.
    pub format: Format,
    /// Its name in artifacts, on the command line and in messages.
    pub name: &'static str,
    /// Bits of one code.
    pub bits: usize,
    /// The planes of the codes.
    pub codes: Codes,
    /// The scale of a block.
    pub scale: ScaleForm,
    /// The code of the value zero, subtracted before scaling.
    pub offset: i32,
}

/// All formats, in the order of [`Format`].
pub const FORMATS: &[FormatSpec] = &[
    FormatSpec {
        format: Format::Q4,
        name: "q4",
        bits: 4,
        codes: Codes::U4,
        scale: ScaleForm::F16,
        offset: 8,
    },
    FormatSpec {
        format: Format::Q4m,
        name: "q4m",
        bits: 4,
        codes: Codes::U4,
        scale: ScaleForm::F16Min,
        offset: 0,
    },
    FormatSpec {
        format: Format::Q5,
        name: "q5",
        bits: 5,
        codes: Codes::U5,
        scale: ScaleForm::F16,
        offset: 16,
    },
    FormatSpec {
        format: Format::Q5m,
        name: "q5m",
        bits: 5,
        codes: Codes::U5,
        scale: ScaleForm::F16Min,
        offset: 0,
    },
    FormatSpec {
        format: Format::Q8,
        name: "q8",
        bits: 8,
        codes: Codes::I8,
        scale: ScaleForm::F16,
        offset: 0,
    },
    FormatSpec {
        format: Format::F16,
        name: "f16",
        bits: 16,
        codes: Codes::Float,
        scale: ScaleForm::None,
        offset: 0,
    },
    FormatSpec {
        format: Format::Bf16,
        name: "bf16",
        bits: 16,
        codes: Codes::Float,
        scale: ScaleForm::None,
        offset: 0,
    },
    FormatSpec {
        format: Format::F32,
        name: "f32",
        bits: 32,
        codes: Codes::Float,
        scale: ScaleForm::None,
        offset: 0,
    },
];

impl Format {
    /// The format's properties.
    pub fn spec(self) -> &'static FormatSpec {
        &FORMATS[self as usize]
    }

    /// The sizes in bytes of the planes of an `n` x `k` matrix, or `None` when they overflow.
    pub fn plane_sizes(self, n: usize, k: usize) -> Option<PlaneSizes> {
        let spec = self.spec();
        let tiles = n.div_ceil(TILE_N);
        let blocks = tiles.checked_mul(k.div_ceil(BLOCK_K))?;
        let weights = blocks.checked_mul(TILE_N * BLOCK_K)?;
        let bits = |b: usize| weights.checked_mul(b).map(|x| x / 8);
        let scales = blocks.checked_mul(TILE_N * 2)?;
        Some(PlaneSizes {
            w: bits(if spec.codes == Codes::U5 { 4 } else { spec.bits })?,
            x: if spec.codes == Codes::U5 { bits(1)? } else { 0 },
            s: if spec.scale == ScaleForm::None { 0 } else { scales },
            m: if spec.scale == ScaleForm::F16Min { scales } else { 0 },
        })
    }
}

/// Bytes of each plane; 0 for a plane that the format does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneSizes {
    /// Codes.
    pub w: usize,
    /// The high bits of the codes.
    pub x: usize,
    /// Scales.
    pub s: usize,
    /// Mins.
    pub m: usize,
}

/// An `n` x `k` matrix of packed weights: `y[n] = sum over k of w[n][k] * x[k]`.
///
/// `n` is padded to 16 and `k` to 32 in the planes; padded codes equal the offset, padded scales and mins are zero.
/// The sizes of the planes have been validated; scales and mins are finite.
#[derive(Clone, Debug)]
pub struct PackedMatrix {
    /// The format of the codes and scales.
    pub format: Format,
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
    /// Codes.
    pub w: Bytes,
    /// High bits of 5-bit codes, else empty.
    pub x: Bytes,
    /// Scales, f16, or empty.
    pub s: Bytes,
    /// Mins, f16, or empty.
    pub m: Bytes,
}
