//! The block types of GGML files.

use super::superblock::Superblock;
use super::{Origin, Planes, ternary};
use crate::format::{BLOCK_K, Codes, E4M3_MAX, E8M0_MAX, SUPER_K, ScaleForm};
use crate::{Error, Format, Result};

/// A tensor type as GGUF files number them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GgmlType(&'static TypeSpec);

/// The properties of a tensor type.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct TypeSpec {
    /// The number in files.
    pub id: u32,
    /// The usual name.
    pub name: &'static str,
    /// Weights of a block.
    pub block: usize,
    /// Bytes of a block.
    pub bytes: usize,
    /// The format that holds it without loss, if this library packs the type.
    pub format: Option<Format>,
}

const fn spec(id: u32, name: &'static str, block: usize, bytes: usize, format: Option<Format>) -> TypeSpec {
    TypeSpec { id, name, block, bytes, format }
}

/// All types in use; those without a format can be listed but not packed.
pub const GGML_TYPES: &[TypeSpec] = &[
    spec(0, "F32", 1, 4, Some(Format::F32)),
    spec(1, "F16", 1, 2, Some(Format::F16)),
    spec(2, "Q4_0", 32, 18, Some(Format::Q4)),
    spec(3, "Q4_1", 32, 20, Some(Format::Q4m)),
    spec(6, "Q5_0", 32, 22, Some(Format::Q5)),
    spec(7, "Q5_1", 32, 24, Some(Format::Q5m)),
    spec(8, "Q8_0", 32, 34, Some(Format::Q8)),
    spec(9, "Q8_1", 32, 36, None),
    spec(10, "Q2_K", 256, 84, Some(Format::Q2k)),
    spec(11, "Q3_K", 256, 110, Some(Format::Q3k)),
    spec(12, "Q4_K", 256, 144, Some(Format::Q4k)),
    spec(13, "Q5_K", 256, 176, Some(Format::Q5k)),
    spec(14, "Q6_K", 256, 210, Some(Format::Q6k)),
    spec(15, "Q8_K", 256, 292, None),
    spec(16, "IQ2_XXS", 256, 66, None),
    spec(17, "IQ2_XS", 256, 74, None),
    spec(18, "IQ3_XXS", 256, 98, None),
    spec(19, "IQ1_S", 256, 50, None),
    spec(20, "IQ4_NL", 32, 18, Some(Format::Iq4)),
    spec(21, "IQ3_S", 256, 110, None),
    spec(22, "IQ2_S", 256, 82, None),
    spec(23, "IQ4_XS", 256, 136, Some(Format::Iq4k)),
    spec(24, "I8", 1, 1, None),
    spec(25, "I16", 1, 2, None),
    spec(26, "I32", 1, 4, None),
    spec(27, "I64", 1, 8, None),
    spec(28, "F64", 1, 8, None),
    spec(29, "IQ1_M", 256, 56, None),
    spec(30, "BF16", 1, 2, Some(Format::Bf16)),
    spec(34, "TQ1_0", 256, 54, Some(Format::T2)),
    spec(35, "TQ2_0", 256, 66, Some(Format::T2)),
    spec(39, "MXFP4", 32, 17, Some(Format::Mxfp4)),
    spec(40, "NVFP4", 64, 36, Some(Format::Nvfp4)),
    spec(41, "Q1_0", 128, 18, Some(Format::Q1)),
];

impl GgmlType {
    /// The type with this number.
    pub fn from_id(id: u32) -> Option<Self> {
        GGML_TYPES.iter().find(|spec| spec.id == id).map(Self)
    }

    /// The type with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        GGML_TYPES.iter().find(|spec| spec.name == name).map(Self)
    }

    /// The usual name.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// The type whose blocks a format holds; of two, the later one, which holds all of its codes.
    pub fn of_format(format: Format) -> Option<Self> {
        GGML_TYPES.iter().rfind(|spec| spec.format == Some(format)).map(Self)
    }

    /// The number in files.
    pub fn id(self) -> u32 {
        self.0.id
    }

    /// Weights of a block.
    pub fn block(self) -> usize {
        self.0.block
    }

    /// The format that holds this type without loss.
    pub fn format(self) -> Option<Format> {
        self.0.format
    }

    /// Whether the values are floats, not blocks.
    pub fn is_float(self) -> bool {
        self.0.format.is_some_and(Format::is_float)
    }

    /// Bytes of `count` weights, or `None` when they are not whole blocks or overflow.
    pub fn bytes_of(self, count: usize) -> Option<usize> {
        if !count.is_multiple_of(self.0.block) {
            return None;
        }
        (count / self.0.block).checked_mul(self.0.bytes)
    }

    /// The error for a tensor of a type that cannot be packed.
    pub fn unsupported(self, origin: Origin<'_>) -> Error {
        let known: Vec<_> = GGML_TYPES.iter().filter(|t| t.format.is_some()).map(|t| t.name).collect();
        Error::unsupported(
            origin.file,
            format!("tensor {}", origin.tensor),
            format!("type {}", self.name()),
            format!("use a file whose tensors are {}", known.join(", ")),
        )
    }

    /// Appends the values of whole float elements ([`GgmlType::is_float`]) to `out`.
    ///
    /// # Errors
    /// When the type is a block type or a value is not finite.
    pub fn floats(self, bytes: &[u8], out: &mut Vec<f32>, origin: Origin<'_>) -> Result<()> {
        let start = out.len();
        match self.0.format {
            Some(Format::F32) => out.extend(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))),
            Some(Format::F16) => {
                out.extend(bytes.as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()));
            }
            Some(Format::Bf16) => {
                out.extend(bytes.as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()));
            }
            _ => return Err(self.unsupported(origin)),
        }
        match out[start..].iter().position(|x| !x.is_finite()) {
            Some(i) => Err(origin.malformed(format!(
                "element {i} of this part is {}; weights must be finite, the file is damaged",
                out[start + i]
            ))),
            None => Ok(()),
        }
    }

    /// The bytes of floats of this type ([`GgmlType::is_float`]): the inverse of [`GgmlType::floats`].
    ///
    /// # Errors
    /// When the type is a block type, or cannot hold a value exactly.
    pub fn floats_to_bytes(self, values: &[f32], origin: Origin<'_>) -> Result<Vec<u8>> {
        let bytes: Vec<u8> = match self.0.format {
            Some(Format::F32) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Some(Format::F16) => values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect(),
            Some(Format::Bf16) => {
                values.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect()
            }
            _ => return Err(self.unsupported(origin)),
        };
        let mut back = Vec::with_capacity(values.len());
        self.floats(&bytes, &mut back, origin)?;
        match values.iter().zip(&back).position(|(a, b)| a.to_bits() != b.to_bits()) {
            Some(i) => {
                Err(origin.malformed(format!("element {i} is {}, which is no {}", values[i], self.name())))
            }
            None => Ok(bytes),
        }
    }
}

/// Packs one row of blocks. The error says which block and why.
pub(super) fn pack_row(
    planes: &mut Planes,
    ty: GgmlType,
    row: usize,
    bytes: &[u8],
) -> std::result::Result<(), String> {
    match ty.name() {
        "F32" => pack_floats(planes, row, bytes, |b: [u8; 4]| f32::from_le_bytes(b).is_finite()),
        "F16" => pack_floats(planes, row, bytes, |b: [u8; 2]| half::f16::from_le_bytes(b).is_finite()),
        "BF16" => pack_floats(planes, row, bytes, |b: [u8; 2]| half::bf16::from_le_bytes(b).is_finite()),
        _ => {
            for (b, block) in bytes.chunks_exact(ty.0.bytes).enumerate() {
                pack_any_block(planes, ty, row, b, block)
                    .map_err(|problem| format!("block {b}: {problem}; the file is damaged"))?;
            }
            Ok(())
        }
    }
}

/// Puts one row of blocks together, which is what [`pack_row`] has taken apart. The error says which block and why.
pub(super) fn unpack_row(
    planes: &Planes,
    ty: GgmlType,
    row: usize,
    bytes: &mut [u8],
) -> std::result::Result<(), String> {
    match ty.name() {
        "F32" => unpack_floats(planes, row, bytes, |b: [u8; 4]| f32::from_le_bytes(b).is_finite()),
        "F16" => unpack_floats(planes, row, bytes, |b: [u8; 2]| half::f16::from_le_bytes(b).is_finite()),
        "BF16" => unpack_floats(planes, row, bytes, |b: [u8; 2]| half::bf16::from_le_bytes(b).is_finite()),
        _ => {
            for (b, block) in bytes.chunks_exact_mut(ty.0.bytes).enumerate() {
                block.fill(0);
                unpack_any_block(planes, ty, row, b, block)
                    .map_err(|problem| format!("block {b}: {problem}"))?;
            }
            Ok(())
        }
    }
}

/// Packs a block of any size. The error says what of it cannot be.
fn pack_any_block(
    planes: &mut Planes,
    ty: GgmlType,
    row: usize,
    b: usize,
    block: &[u8],
) -> std::result::Result<(), String> {
    let spec = planes.format.spec();
    let halves = match spec.scale {
        ScaleForm::Super | ScaleForm::SuperMin => pack_super(planes, row, b, block),
        ScaleForm::E8m0 => return pack_mxfp4(planes, row, b, block),
        ScaleForm::E4m3 => return pack_nvfp4(planes, row, b, block),
        _ if spec.group > BLOCK_K => pack_wide(planes, ty, row, b, block),
        _ => pack_block(planes, ty, row, b, block),
    };
    check_finite(halves)
}

/// Puts a block of zero bytes together, the inverse of [`pack_any_block`].
fn unpack_any_block(
    planes: &Planes,
    ty: GgmlType,
    row: usize,
    b: usize,
    block: &mut [u8],
) -> std::result::Result<(), String> {
    let spec = planes.format.spec();
    let halves = match spec.scale {
        ScaleForm::Super | ScaleForm::SuperMin => unpack_super(planes, row, b, block)?,
        ScaleForm::E8m0 => return unpack_mxfp4(planes, row, b, block),
        ScaleForm::E4m3 => return unpack_nvfp4(planes, row, b, block),
        _ if spec.group > BLOCK_K => unpack_wide(planes, ty, row, b, block)?,
        _ => unpack_block(planes, row, b, block),
    };
    check_finite(halves)
}

fn check_finite(halves: [u16; 2]) -> std::result::Result<(), String> {
    for (what, bits) in ["scale", "min"].into_iter().zip(halves) {
        let value = half::f16::from_bits(bits);
        if !value.is_finite() {
            return Err(format!("{what} is {value}"));
        }
    }
    Ok(())
}

fn pack_floats<const N: usize>(
    planes: &mut Planes,
    row: usize,
    bytes: &[u8],
    finite: impl Fn([u8; N]) -> bool,
) -> std::result::Result<(), String> {
    for (k, &value) in bytes.as_chunks().0.iter().enumerate() {
        if !finite(value) {
            return Err(format!("weight {k} is not finite; the file is damaged"));
        }
        planes.put_float(row, k, value);
    }
    Ok(())
}

fn unpack_floats<const N: usize>(
    planes: &Planes,
    row: usize,
    bytes: &mut [u8],
    finite: impl Fn([u8; N]) -> bool,
) -> std::result::Result<(), String> {
    for (k, value) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
        *value = planes.float(row, k);
        if !finite(*value) {
            return Err(format!("weight {k} is not finite; the file is damaged"));
        }
    }
    Ok(())
}

/// Packs a block of 32 and returns the bits of its scale and min.
///
/// Blocks begin with an f16 scale; `_1` types go on with an f16 min, 5-bit types with the high bits; codes follow.
fn pack_block(planes: &mut Planes, ty: GgmlType, row: usize, b: usize, block: &[u8]) -> [u16; 2] {
    let spec = planes.format.spec();
    let half_at = |i: usize| u16::from_le_bytes([block[i], block[i + 1]]);
    let word_at = |i: usize| u32::from_le_bytes([block[i], block[i + 1], block[i + 2], block[i + 3]]);
    if spec.codes == Codes::I8 {
        if let Some(codes) = block[ty.0.bytes - BLOCK_K..].as_array() {
            planes.put_bytes(row, b, codes);
        }
    } else {
        let codes = ty.0.bytes - BLOCK_K / 2;
        planes.put_words(row, b, &regroup_nibbles(std::array::from_fn(|i| word_at(codes + 4 * i))));
        if spec.codes == Codes::U5 {
            let high = word_at(codes - 4);
            planes.put_high(
                row,
                b,
                &[(0..32).fold(0, |word, k| word | (high >> k & 1) << (8 * (k % 4) + k / 4))],
            );
        }
    }
    let halves = [half_at(0), if spec.scale.has_min() { half_at(2) } else { 0 }];
    planes.put_scale(row, b, halves[0], halves[1]);
    halves
}

/// Puts a block of zero bytes together, the inverse of [`pack_block`].
fn unpack_block(planes: &Planes, row: usize, b: usize, block: &mut [u8]) -> [u16; 2] {
    let spec = planes.format.spec();
    let (len, codes) = (block.len(), planes.codes(row, b));
    if spec.codes == Codes::I8 {
        block[len - BLOCK_K..].copy_from_slice(&codes);
    } else {
        let at = len - BLOCK_K / 2;
        for (k, code) in codes.iter().enumerate() {
            block[at + k % 16] |= (code & 15) << (4 * (k / 16));
            if spec.codes == Codes::U5 {
                block[at - 4 + k / 8] |= (code >> 4) << (k % 8);
            }
        }
    }
    let halves = planes.scales(row, b);
    block[..2].copy_from_slice(&halves[0].to_le_bytes());
    if spec.scale.has_min() {
        block[2..4].copy_from_slice(&halves[1].to_le_bytes());
    }
    halves
}

/// Packs a block of 32: its scale and its codes.
fn pack_mxfp4(planes: &mut Planes, row: usize, b: usize, block: &[u8]) -> std::result::Result<(), String> {
    let word_at = |i: usize| u32::from_le_bytes([block[i], block[i + 1], block[i + 2], block[i + 3]]);
    if block[0] > E8M0_MAX {
        return Err("scale is NaN".to_owned());
    }
    planes.put_byte_scale(row, b, block[0]);
    planes.put_words(row, b, &regroup_nibbles(std::array::from_fn(|i| word_at(1 + 4 * i))));
    Ok(())
}

/// The inverse of [`pack_mxfp4`].
fn unpack_mxfp4(planes: &Planes, row: usize, b: usize, block: &mut [u8]) -> std::result::Result<(), String> {
    block[0] = planes.byte_scale(row, b);
    for (k, code) in planes.codes(row, b).iter().enumerate() {
        block[1 + k % 16] |= code << (4 * (k / 16));
    }
    Ok(())
}

/// Packs a block of 64: four scales, and the codes of as many groups of 16. A scale that is no number counts as 0, as GGML
/// has it.
fn pack_nvfp4(planes: &mut Planes, row: usize, b: usize, block: &[u8]) -> std::result::Result<(), String> {
    let (scales, codes) = block.split_at(4);
    for (i, scale) in scales.iter().enumerate() {
        if *scale > 0x7f {
            return Err(format!("scale {i} is the byte {scale}, which has a sign"));
        }
        planes.put_byte_scale(row, 4 * b + i, if *scale > E4M3_MAX { 0 } else { *scale });
    }
    for (half, bytes) in codes.chunks_exact(16).enumerate() {
        let code = |k: usize| bytes[k / 16 * 8 + k % 8] >> (k % 16 / 8 * 4) & 15;
        planes.put_codes(row, 2 * b + half, &std::array::from_fn(code));
    }
    Ok(())
}

/// The inverse of [`pack_nvfp4`].
fn unpack_nvfp4(planes: &Planes, row: usize, b: usize, block: &mut [u8]) -> std::result::Result<(), String> {
    let (scales, codes) = block.split_at_mut(4);
    for (i, scale) in scales.iter_mut().enumerate() {
        *scale = planes.byte_scale(row, 4 * b + i);
    }
    for (half, bytes) in codes.chunks_exact_mut(16).enumerate() {
        for (k, code) in planes.codes(row, 2 * b + half).iter().enumerate() {
            bytes[k / 16 * 8 + k % 8] |= code << (k % 16 / 8 * 4);
        }
    }
    Ok(())
}

/// Packs a block of several blocks of 32 that share a scale; returns its bits.
fn pack_wide(planes: &mut Planes, ty: GgmlType, row: usize, b: usize, block: &[u8]) -> [u16; 2] {
    let (scale, codes) = match ty.name() {
        "TQ1_0" => ternary::tq1_0(block),
        "TQ2_0" => ternary::tq2_0(block),
        _ => ternary::q1_0(block),
    };
    let of_block = ty.0.block / BLOCK_K;
    for (i, codes) in codes.as_chunks().0.iter().enumerate().take(of_block) {
        planes.put_codes(row, b * of_block + i, codes);
    }
    planes.put_scale(row, b, scale, 0);
    [scale, 0]
}

/// The inverse of [`pack_wide`].
fn unpack_wide(
    planes: &Planes,
    ty: GgmlType,
    row: usize,
    b: usize,
    block: &mut [u8],
) -> std::result::Result<[u16; 2], String> {
    let of_block = ty.0.block / BLOCK_K;
    let mut codes = [0; SUPER_K];
    for (i, codes) in codes.as_chunks_mut().0.iter_mut().enumerate().take(of_block) {
        *codes = planes.codes(row, b * of_block + i);
    }
    let halves = planes.scales(row, b);
    match ty.name() {
        "TQ1_0" if codes.contains(&3) => return Err("code 3 is no digit to base 3".to_owned()),
        "TQ1_0" => ternary::put_tq1_0(halves[0], &codes, block),
        "TQ2_0" => ternary::put_tq2_0(halves[0], &codes, block),
        _ => ternary::put_q1_0(halves[0], &codes, block),
    }
    Ok(halves)
}

/// GGML pairs `k` (low nibble) with `k + 16` (high) in byte `k`; our word pairs `k` with `k + 4`.
fn regroup_nibbles([q0, q1, q2, q3]: [u32; 4]) -> [u32; 4] {
    const LOW: u32 = 0x0f0f_0f0f;
    let low = |a: u32, b: u32| a & LOW | (b & LOW) << 4;
    let high = |a: u32, b: u32| a >> 4 & LOW | b & !LOW;
    [low(q0, q1), low(q2, q3), high(q0, q1), high(q2, q3)]
}

/// Packs a superblock of 256 and returns the bits of what its scales and mins are multiplied with.
fn pack_super(planes: &mut Planes, row: usize, b: usize, block: &[u8]) -> [u16; 2] {
    let superblock = match planes.format {
        Format::Q2k => Superblock::q2_k(block),
        Format::Q3k => Superblock::q3_k(block),
        Format::Q4k => Superblock::q45_k(block, false),
        Format::Q5k => Superblock::q45_k(block, true),
        Format::Iq4k => Superblock::iq4_xs(block),
        _ => Superblock::q6_k(block),
    };
    for (i, codes) in superblock.codes.as_chunks().0.iter().enumerate() {
        planes.put_codes(row, b * (SUPER_K / BLOCK_K) + i, codes);
    }
    planes.put_super(row, b, &superblock);
    superblock.d
}

/// Puts a superblock of zero bytes together, the inverse of [`pack_super`]. The error says what it cannot hold.
fn unpack_super(
    planes: &Planes,
    row: usize,
    b: usize,
    block: &mut [u8],
) -> std::result::Result<[u16; 2], String> {
    let superblock = planes.superblock(row, b);
    match planes.format {
        Format::Q2k => superblock.put_q2_k(block),
        Format::Q3k => superblock.put_q3_k(block),
        Format::Q4k => superblock.put_q45_k(block, false),
        Format::Q5k => superblock.put_q45_k(block, true),
        Format::Iq4k => superblock.put_iq4_xs(block),
        _ => superblock.put_q6_k(block),
    }?;
    Ok(superblock.d)
}
