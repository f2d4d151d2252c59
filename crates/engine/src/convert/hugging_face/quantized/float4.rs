//! Floats of 4 bits (E2M1), two a byte, the first in the low half, with a scale for some neighbours of a row: MXFP4 and NVFP4.

use super::float8::Kind;
use super::{SourceTensor, Taken, Taker, TensorSpec, Translate, Translation, source_tensor, words};
use crate::Result;
use lowbit_core::format::{BLOCK_K, Codebook};

/// What the tensors are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::convert::hugging_face) enum Naming {
    /// `weight_packed`, `weight_scale`, and what NVFP4's scales are divided by: `weight_global_scale`.
    CompressedTensors,
    /// `weight`, `weight_scale`, and what scales are multiplied with: `weight_scale_2`.
    ModelOptimizer,
}

/// What scales are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::convert::hugging_face) enum Scales {
    /// Powers of two (E8M0), one for 32 weights: MXFP4, whose codes and scales are kept one to one.
    Powers,
    /// Floats of 8 bits (E4M3), one for 16 weights, and a single for the matrix: NVFP4. No format has a place for the single.
    Floats,
}

impl Scales {
    fn group(self) -> usize {
        match self {
            Self::Powers => BLOCK_K,
            Self::Floats => 16,
        }
    }

    fn dtype(self) -> &'static str {
        match self {
            Self::Powers => "U8",
            Self::Floats => Kind::E4m3.dtype(),
        }
    }
}

/// A matrix of such floats, of `k` inputs.
#[derive(Debug)]
pub(super) struct Float4 {
    pub naming: Naming,
    pub scales: Scales,
    pub k: usize,
}

impl Float4 {
    /// Takes the tensors of a matrix of `n` outputs; `None` when it is not quantised.
    pub fn take(
        self,
        taker: &mut Taker<'_, '_>,
        spec: &TensorSpec,
        n: usize,
    ) -> Result<Option<SourceTensor>> {
        let Self { naming, scales, k } = self;
        let plain = spec.hf_name.as_str();
        let (name, global) = match naming {
            Naming::CompressedTensors => (format!("{plain}_packed"), format!("{plain}_global_scale")),
            Naming::ModelOptimizer => (plain.to_owned(), format!("{plain}_scale_2")),
        };
        if taker.tensors.get(name.as_str()).is_none_or(|(_, tensor)| tensor.dtype != "U8") {
            return Ok(None);
        }
        let weight = taker.checked(&name, "U8", &[n, k / 2])?;
        let group = scales.group();
        if !k.is_multiple_of(group) {
            return Err(taker.fail(&weight, format!("rows of {k} weights, expected a multiple of {group}")));
        }
        let scale = taker.checked(&format!("{plain}_scale"), scales.dtype(), &[n, k / group])?;
        let mut parts = vec![scale.part()];
        if scales == Scales::Floats {
            parts.push(single(taker, &global)?.part());
        }
        let (name, ty) = match scales {
            Scales::Powers => ("MXFP4", "MXFP4"),
            Scales::Floats => ("NVFP4 with a scale a matrix", "F32"),
        };
        let translation = Translation { name, row_bytes: k / 2, whole: false, parts, by: Box::new(self) };
        Ok(source_tensor(&weight, ty, translation))
    }

    /// Code `j` of a row.
    fn code(bytes: &[u8], j: usize) -> u8 {
        bytes[j / 2] >> (4 * (j % 2)) & 15
    }

    /// Appends a row as blocks of MXFP4: scale, codes.
    fn blocks(bytes: &[u8], scales: &[u8], out: &mut Vec<u8>) {
        for (bytes, scale) in bytes.chunks_exact(BLOCK_K / 2).zip(scales) {
            out.push(*scale);
            let code = |j: usize| Self::code(bytes, j);
            out.extend((0..BLOCK_K / 2).map(|j| code(j) | code(j + BLOCK_K / 2) << 4));
        }
    }

    /// Appends a row as floats: every scale times the matrix's, rounded, and then times the codes, as the checkpoints'
    /// libraries do.
    fn floats(
        &self,
        bytes: &[u8],
        scales: &[u8],
        global: f32,
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), String> {
        let table = Codebook::E2m1.values();
        let groups = bytes.chunks_exact(Scales::Floats.group() / 2);
        for (group, (bytes, byte)) in groups.zip(scales).enumerate() {
            let Some(scale) = Kind::E4m3.value(*byte) else {
                return Err(format!("scale {group} is {byte:#04x}, which is not finite"));
            };
            let scale = match self.naming {
                Naming::CompressedTensors => scale / global,
                Naming::ModelOptimizer => scale * global,
            };
            // The table has twice the values.
            let value = |j: usize| f32::from(table[usize::from(Self::code(bytes, j))]) * 0.5 * scale;
            (0..2 * bytes.len()).for_each(|j| out.extend(value(j).to_le_bytes()));
        }
        Ok(())
    }
}

/// A tensor of one single.
fn single<'b>(taker: &mut Taker<'_, 'b>, name: &str) -> Result<Taken<'b>> {
    let taken = taker.required(name)?;
    match (taken.tensor.dtype.as_str(), taken.tensor.shape.as_slice()) {
        ("F32", [] | [1]) => Ok(taken),
        (dtype, shape) => Err(taker.fail(&taken, format!("is {dtype} {shape:?}, expected F32 [1]"))),
    }
}

impl Translate for Float4 {
    fn translate(
        &self,
        bytes: &[u8],
        first_row: usize,
        parts: &[Vec<u8>],
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), String> {
        let [scales, rest @ ..] = parts else {
            return Err("has no scales".to_owned());
        };
        let global =
            rest.first().and_then(|part| words(part).first()).map_or(1.0, |word| f32::from_le_bytes(*word));
        if !(global.is_finite() && global > 0.0) {
            return Err(format!("its scale for the whole matrix is {global}, expected a number above 0"));
        }
        let rows = bytes.chunks_exact(self.k / 2);
        let scales = scales.chunks_exact(self.k / self.scales.group()).skip(first_row);
        for (row, (bytes, scales)) in (first_row..).zip(rows.zip(scales)) {
            match self.scales {
                Scales::Powers => Self::blocks(bytes, scales, out),
                Scales::Floats => self
                    .floats(bytes, scales, global, out)
                    .map_err(|problem| format!("row {row}: {problem}"))?,
            }
        }
        Ok(())
    }
}
