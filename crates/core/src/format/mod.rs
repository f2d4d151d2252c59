//! Every weight format, defined once.
//!
//! A [`Format`] says how many bits a code has, in which planes the codes lie, what the scale looks like and which
//! code means zero. Packing, the CPU kernels and the shaders all follow [`FORMATS`].

mod codec;
mod quantize;

pub(crate) use codec::PLANE_NAMES;
pub use quantize::{ChooseCodes, Grid, Levels, Rounding, RowScales, ScaleSearch, SuperScales};

use crate::buffer::Bytes;

/// Output columns of a tile.
pub const TILE_N: usize = 16;
/// Input features of a block.
pub const BLOCK_K: usize = 32;
/// Input features of a superblock, which share what two-level scales are multiplied with.
pub const SUPER_K: usize = 256;
/// Planes of a matrix.
pub const PLANES: usize = 5;

/// Names a weight format. Its properties are in [`FORMATS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// 2-bit codes, f16 scale per 32, zero at 2.
    Q2,
    /// 2-bit codes, f16 scale and f16 min per 32.
    Q2m,
    /// 3-bit codes (2 + 1 planes), f16 scale per 32, zero at 4.
    Q3,
    /// 4-bit codes, f16 scale per 32, zero at 8 (GGUF Q4_0).
    Q4,
    /// 4-bit codes, f16 scale and f16 min per 32 (GGUF Q4_1).
    Q4m,
    /// 5-bit codes (4 + 1 planes), f16 scale per 32, zero at 16 (GGUF Q5_0).
    Q5,
    /// 5-bit codes (4 + 1 planes), f16 scale and f16 min per 32 (GGUF Q5_1).
    Q5m,
    /// 6-bit codes (4 + 2 planes), f16 scale per 32, zero at 32.
    Q6,
    /// Signed bytes, f16 scale per 32 (GGUF Q8_0).
    Q8,
    /// 2-bit codes, two-level scale and min per 16 (GGUF Q2_K).
    Q2k,
    /// 3-bit codes (2 + 1 planes), two-level scale per 16, zero at 4 (GGUF Q3_K).
    Q3k,
    /// 4-bit codes, two-level scale and min per 32 (GGUF Q4_K).
    Q4k,
    /// 5-bit codes (4 + 1 planes), two-level scale and min per 32 (GGUF Q5_K).
    Q5k,
    /// 6-bit codes (4 + 2 planes), two-level scale per 16, zero at 32 (GGUF Q6_K).
    Q6k,
    /// Raw IEEE half.
    F16,
    /// Raw bfloat16.
    Bf16,
    /// Raw single.
    F32,
}

/// How the codes of a format lie in their planes.
///
/// Unsigned codes are cut into fields of 4, 2 or 1 bits, a plane each, the low field in `W` and the high one, if there
/// is one, in `X`. A plane of `B` bits is `[n/16][k/32][B][16]` u32 words, each of `32 / B` codes of one column: code `k`
/// of a word has the bits from `8 * (k % 4) + B * (k / 4)` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// 2 bits.
    U2,
    /// 2 bits, and bit 2.
    U3,
    /// 4 bits.
    U4,
    /// 4 bits, and bit 4.
    U5,
    /// 4 bits, and bits 4 and 5.
    U6,
    /// `W` `[n/16][k/32][8][16]` u32 words of 4 signed bytes.
    I8,
    /// `W` `[n/16][k][16]` floats: 16 columns side by side.
    Float,
}

impl Codes {
    /// Codes whose products are summed over so many, the rest in f32: a block, or half of one.
    pub(crate) const fn summed(self) -> usize {
        match self {
            Self::U2 | Self::U3 | Self::U6 => BLOCK_K / 2,
            _ => BLOCK_K,
        }
    }

    /// Bits of a code in the planes `W` and `X`; of floats, none.
    pub const fn fields(self) -> [usize; 2] {
        match self {
            Self::U2 => [2, 0],
            Self::U3 => [2, 1],
            Self::U4 => [4, 0],
            Self::U5 => [4, 1],
            Self::U6 => [4, 2],
            Self::I8 => [8, 0],
            Self::Float => [0, 0],
        }
    }
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
    /// `S` `[n/16][k/group][16]` i8 and `D` `[n/16][k/256][16]` f16: `w = (d * s) * code`.
    Super,
    /// `S` and `M` as above and `D` `[n/16][k/256][2][16]` f16, d and e: `w = (d * s) * code + e * m`.
    SuperMin,
}

impl ScaleForm {
    /// Whether there are mins.
    pub const fn has_min(self) -> bool {
        matches!(self, Self::F16Min | Self::SuperMin)
    }

    /// Whether scales have two levels; then rows are whole superblocks.
    pub const fn is_super(self) -> bool {
        self.parts() > 0
    }

    /// Halves of a superblock and column in the plane `D`.
    pub const fn parts(self) -> usize {
        match self {
            Self::Super => 1,
            Self::SuperMin => 2,
            _ => 0,
        }
    }
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
    /// Its scales.
    pub scale: ScaleForm,
    /// Input features that share a scale: a block, or half of one.
    pub group: usize,
    /// The code of the value zero, subtracted before scaling.
    pub offset: i32,
}

/// All formats, in the order of [`Format`].
pub const FORMATS: &[FormatSpec] = &[
    packed(Format::Q2, "q2", Codes::U2, ScaleForm::F16, 32, 2),
    packed(Format::Q2m, "q2m", Codes::U2, ScaleForm::F16Min, 32, 0),
    packed(Format::Q3, "q3", Codes::U3, ScaleForm::F16, 32, 4),
    packed(Format::Q4, "q4", Codes::U4, ScaleForm::F16, 32, 8),
    packed(Format::Q4m, "q4m", Codes::U4, ScaleForm::F16Min, 32, 0),
    packed(Format::Q5, "q5", Codes::U5, ScaleForm::F16, 32, 16),
    packed(Format::Q5m, "q5m", Codes::U5, ScaleForm::F16Min, 32, 0),
    packed(Format::Q6, "q6", Codes::U6, ScaleForm::F16, 32, 32),
    packed(Format::Q8, "q8", Codes::I8, ScaleForm::F16, 32, 0),
    packed(Format::Q2k, "q2k", Codes::U2, ScaleForm::SuperMin, 16, 0),
    packed(Format::Q3k, "q3k", Codes::U3, ScaleForm::Super, 16, 4),
    packed(Format::Q4k, "q4k", Codes::U4, ScaleForm::SuperMin, 32, 0),
    packed(Format::Q5k, "q5k", Codes::U5, ScaleForm::SuperMin, 32, 0),
    packed(Format::Q6k, "q6k", Codes::U6, ScaleForm::Super, 16, 32),
    raw(Format::F16, "f16", 16),
    raw(Format::Bf16, "bf16", 16),
    raw(Format::F32, "f32", 32),
];

const fn packed(
    format: Format,
    name: &'static str,
    codes: Codes,
    scale: ScaleForm,
    group: usize,
    offset: i32,
) -> FormatSpec {
    let [low, high] = codes.fields();
    FormatSpec { format, name, bits: low + high, codes, scale, group, offset }
}

const fn raw(format: Format, name: &'static str, bits: usize) -> FormatSpec {
    FormatSpec { format, name, bits, codes: Codes::Float, scale: ScaleForm::None, group: BLOCK_K, offset: 0 }
}

impl Format {
    /// The format's properties.
    pub fn spec(self) -> &'static FormatSpec {
        &FORMATS[self as usize]
    }

    /// Input features come in multiples of this; what is missing of a block of 32 is padding.
    pub fn k_multiple(self) -> usize {
        if self.spec().scale.is_super() { SUPER_K } else { 1 }
    }

    /// The sizes in bytes of the planes of an `n` x `k` matrix, or `None` when they overflow or `k` is not a multiple of
    /// [`Format::k_multiple`].
    pub fn plane_sizes(self, n: usize, k: usize) -> Option<PlaneSizes> {
        let FormatSpec { bits, codes, scale, group, .. } = self.spec();
        if !k.is_multiple_of(self.k_multiple()) {
            return None;
        }
        let blocks = n.div_ceil(TILE_N).checked_mul(k.div_ceil(BLOCK_K))?;
        let weights = blocks.checked_mul(TILE_N * BLOCK_K)?;
        let plane = |bits: usize| weights.checked_mul(bits).map(|x| x / 8);
        let [low, high] = if *codes == Codes::Float { [*bits, 0] } else { codes.fields() };
        let scales = match scale {
            ScaleForm::None => 0,
            ScaleForm::F16 | ScaleForm::F16Min => blocks.checked_mul(TILE_N * 2)?,
            ScaleForm::Super | ScaleForm::SuperMin => weights / group,
        };
        let mins = if scale.has_min() { scales } else { 0 };
        let supers = weights / SUPER_K;
        Some(PlaneSizes {
            w: plane(low)?,
            x: plane(high)?,
            s: scales,
            m: mins,
            d: supers * scale.parts() * 2,
        })
    }
}

/// Bytes of each plane; 0 for a plane that the format does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaneSizes {
    /// Codes, or their low bits.
    pub w: usize,
    /// The high bits of the codes.
    pub x: usize,
    /// Scales.
    pub s: usize,
    /// Mins.
    pub m: usize,
    /// What scales and mins of two levels are multiplied with.
    pub d: usize,
}

impl PlaneSizes {
    /// The sizes in the order of the planes: W, X, S, M, D.
    pub fn array(self) -> [usize; PLANES] {
        [self.w, self.x, self.s, self.m, self.d]
    }

    /// Bytes of all planes.
    pub fn total(self) -> usize {
        self.array().iter().sum()
    }
}

/// An `n` x `k` matrix of packed weights: `y[n] = sum over k of w[n][k] * x[k]`.
///
/// `n` is padded to 16 and `k` to 32 in the planes; padded codes equal the offset, padded scales and mins are zero.
/// The sizes of the planes have been validated; halves among scales and mins are finite.
#[derive(Clone, Debug)]
pub struct PackedMatrix {
    /// The format of the codes and scales.
    pub format: Format,
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
    /// Codes, or their low bits.
    pub w: Bytes,
    /// High bits of the codes, or empty.
    pub x: Bytes,
    /// Scales, or empty.
    pub s: Bytes,
    /// Mins, or empty.
    pub m: Bytes,
    /// What scales and mins of two levels are multiplied with, or empty.
    pub d: Bytes,
}
