//! Every weight format, defined once.
//!
//! A [`Format`] says how many bits a code has, in which planes the codes lie, what the scale looks like and which
//! code means zero. Packing, the CPU kernels and the shaders all follow [`FORMATS`].

mod codebook;
mod codec;
mod quantize;
mod quantize_channel;

pub use codebook::Codebook;
pub(crate) use codebook::{E4M3_MAX, E8M0_MAX, e4m3, e8m0};
pub(crate) use codec::{PLANE_NAMES, field_at};
pub use quantize::{ChooseCodes, Grid, Levels, Rounding, RowScales, ScaleSearch, SuperScales};
pub use quantize_channel::{ChannelRow, quantize_channel};

use crate::buffer::Bytes;

/// Output columns of a tile.
pub const TILE_N: usize = 16;
/// Input features of a block.
pub const BLOCK_K: usize = 32;
/// Input features of a superblock, which share what two-level scales are multiplied with.
pub const SUPER_K: usize = 256;
/// Planes of a matrix.
pub const PLANES: usize = 6;

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
    /// Signs, f16 scale per 128 (GGUF Q1_0).
    Q1,
    /// 2-bit codes, f16 scale per 256, zero at 1: ternary weights (GGUF TQ1_0, TQ2_0).
    T2,
    /// 4-bit codes of uneven values, f16 scale per 32 (GGUF IQ4_NL).
    Iq4,
    /// The same, two-level scale per 32 (GGUF IQ4_XS).
    Iq4k,
    /// 4-bit floats, scale per 32 that is a power of two (GGUF MXFP4).
    Mxfp4,
    /// 4-bit floats, 8-bit float scale per 16 (GGUF NVFP4).
    Nvfp4,
    /// 4-bit codes, f32 scale per output feature, zero at 8.
    C4,
    /// Signed bytes, f32 scale per output feature.
    C8,
    /// 4-bit codes, an integer of 1 to 15 per 32 and f32 scale per output feature, zero at 8.
    P4,
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
    /// 1 bit.
    U1,
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
    /// Bits of a code in the planes `W` and `X`; of floats, none.
    pub const fn fields(self) -> [usize; 2] {
        match self {
            Self::U1 => [1, 0],
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

/// The scale of a group of weights or, of a channel's, of a whole row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleForm {
    /// None: the codes are the values.
    None,
    /// `S` `[n/16][k/group][16]` f16.
    F16,
    /// `S` as above and `M` of the same shape: `w = s * code + m`.
    F16Min,
    /// `S` `[n/16][k/group][16]` i8 and `D` `[n/16][k/256][16]` f16: `w = (d * s) * code`.
    Super,
    /// `S` and `M` as above and `D` `[n/16][k/256][2][16]` f16, d and e: `w = (d * s) * code + e * m`.
    SuperMin,
    /// `S` `[n/16][k/group][16]` bytes `e`, at most 254, that stand for `2^(e - 127)`; half of it, as [`Codebook::E2m1`]
    /// holds twice the values: `w = 2^(e - 128) * value`.
    E8m0,
    /// `S` as above of floats of 4 bits of exponent and 3 of mantissa without a sign, at most 448; again half of it.
    E4m3,
    /// `C` `[n/16][16]` f32: `w = c * code`.
    Channel,
    /// `C` as above and `S` `[n/16][k/32][16]` u8, 0 to [`MAX_STEP`]: `w = c * (s * code)`, of which `s * code` is an integer.
    Progressive,
}

/// The largest integer that a progressive scale multiplies codes with: they stay signed bytes.
pub const MAX_STEP: u8 = 15;

impl ScaleForm {
    /// Bytes of a scale in the plane `S`; of a min in `M`.
    pub const fn bytes(self) -> usize {
        match self {
            Self::None | Self::Channel => 0,
            Self::F16 | Self::F16Min => 2,
            Self::Super | Self::SuperMin | Self::E8m0 | Self::E4m3 | Self::Progressive => 1,
        }
    }

    /// Whether a row of weights has one float scale. Products are then integers over all of `k`, and the rows they are made
    /// with have one scale as well.
    pub const fn is_channel(self) -> bool {
        matches!(self, Self::Channel | Self::Progressive)
    }

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
    /// Input features that share a scale, a power of two: half a block, or whole ones.
    pub group: usize,
    /// The code of the value zero, subtracted before scaling; 0 with a codebook.
    pub offset: i32,
    /// What codes stand for.
    pub codebook: Codebook,
    /// The values of codes of up to 4 bits, before scaling.
    pub(crate) values: [i8; 16],
}

impl FormatSpec {
    /// What a code of an integer format stands for, before scaling.
    pub fn value(&self, code: i32) -> i32 {
        match self.codebook {
            Codebook::Linear => code - self.offset,
            _ => i32::from(self.values[code as usize & 15]),
        }
    }

    /// Groups of a block: 2, or 1 where a group is a block or several.
    pub const fn groups(&self) -> usize {
        if self.group < BLOCK_K { BLOCK_K / self.group } else { 1 }
    }
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
    coded(Format::Q1, "q1", Codes::U1, ScaleForm::F16, 128, Codebook::Sign),
    packed(Format::T2, "t2", Codes::U2, ScaleForm::F16, 256, 1),
    coded(Format::Iq4, "iq4", Codes::U4, ScaleForm::F16, 32, Codebook::Iq4Nl),
    coded(Format::Iq4k, "iq4k", Codes::U4, ScaleForm::Super, 32, Codebook::Iq4Nl),
    coded(Format::Mxfp4, "mxfp4", Codes::U4, ScaleForm::E8m0, 32, Codebook::E2m1),
    coded(Format::Nvfp4, "nvfp4", Codes::U4, ScaleForm::E4m3, 16, Codebook::E2m1),
    packed(Format::C4, "c4", Codes::U4, ScaleForm::Channel, 32, 8),
    packed(Format::C8, "c8", Codes::I8, ScaleForm::Channel, 32, 0),
    packed(Format::P4, "p4", Codes::U4, ScaleForm::Progressive, 32, 8),
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
    let (codebook, values) = (Codebook::Linear, codebook::linear(offset));
    FormatSpec { format, name, bits: low + high, codes, scale, group, offset, codebook, values }
}

const fn coded(
    format: Format,
    name: &'static str,
    codes: Codes,
    scale: ScaleForm,
    group: usize,
    codebook: Codebook,
) -> FormatSpec {
    FormatSpec { codebook, values: codebook.values(), ..packed(format, name, codes, scale, group, 0) }
}

const fn raw(format: Format, name: &'static str, bits: usize) -> FormatSpec {
    FormatSpec { bits, ..packed(format, name, Codes::Float, ScaleForm::None, BLOCK_K, 0) }
}

impl Format {
    /// Whether the weights are floats, not codes.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// The format's properties.
    pub fn spec(self) -> &'static FormatSpec {
        &FORMATS[self as usize]
    }

    /// Input features come in multiples of this, which is whole groups; what is missing of a block of 32 is padding.
    pub fn k_multiple(self) -> usize {
        match self.spec() {
            spec if spec.scale.is_super() => SUPER_K,
            spec if spec.group > BLOCK_K => spec.group,
            _ => 1,
        }
    }

    /// The most input features: in a product of integers over all of them, of codes of a8, no sum leaves 32 bits.
    pub fn max_k(self) -> usize {
        let FormatSpec { bits, codes, scale, offset, .. } = *self.spec();
        if !scale.is_channel() {
            return usize::MAX;
        }
        let code = if codes == Codes::I8 { 128 } else { (1 << bits) - 1 - offset }.max(offset);
        let step = if scale == ScaleForm::Progressive { i32::from(MAX_STEP) } else { 1 };
        (i32::MAX / (BLOCK_K as i32 * 127 * code * step)) as usize * BLOCK_K
    }

    /// What is wrong with rows of `k` weights, if anything is.
    pub fn refuses(self, k: usize) -> Option<String> {
        let (of, multiple, most) = (self.spec().name, self.k_multiple(), self.max_k());
        if !k.is_multiple_of(multiple) {
            Some(format!("its rows have {k} weights, those of {of} are multiples of {multiple}"))
        } else if k > most {
            Some(format!("its rows have {k} weights, those of {of} at most {most}, or products overflow"))
        } else {
            None
        }
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
        let scales = (weights / group).checked_mul(scale.bytes())?;
        let mins = if scale.has_min() { scales } else { 0 };
        let supers = weights / SUPER_K;
        Some(PlaneSizes {
            w: plane(low)?,
            x: plane(high)?,
            s: scales,
            m: mins,
            d: supers * scale.parts() * 2,
            c: if scale.is_channel() { n.div_ceil(TILE_N) * TILE_N * 4 } else { 0 },
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
    /// Scales of output features.
    pub c: usize,
}

impl PlaneSizes {
    /// The sizes in the order of the planes: W, X, S, M, D, C.
    pub fn array(self) -> [usize; PLANES] {
        [self.w, self.x, self.s, self.m, self.d, self.c]
    }

    /// Bytes of all planes.
    pub fn total(self) -> usize {
        self.array().iter().sum()
    }
}

/// An `n` x `k` matrix of packed weights: `y[n] = sum over k of w[n][k] * x[k]`.
///
/// `n` is padded to 16 and `k` to 32 in the planes; padded codes equal the offset, padded scales and mins are zero.
/// The sizes of the planes have been validated; floats among scales and mins are finite, and integers in their range.
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
    /// Scales of output features, or empty.
    pub c: Bytes,
}
