//! Checkpoints whose weights are quantised: floats of 8 and 4 bits with scales, and the integer codes of GPTQ and AWQ.
//!
//! A matrix becomes rows of a GGML type on its way: Q4_0, Q8_0 or MXFP4 where codes and scales can be kept one to one, and
//! else F32, of which packing makes what is asked for.

use super::{Document, HuggingFace, Tensors};
use crate::Result;
use crate::arch::{TensorKind, TensorSpec};
use crate::convert::plan::{SourceTensor, Translate, Translation};
use lowbit_core::Error;
use lowbit_core::import::safetensors::Tensor;
use lowbit_core::pack::{GgmlType, Origin};
use serde_json::Value;

mod float4;
mod float8;
mod integers;

use float4::{Float4, Naming, Scales};
use float8::{Float8, Kind};
use integers::{Integers, Order};

const FIELD: &str = "quantization_config";

const NVFP4_OF_MODEL_OPTIMIZER: Quantization =
    Quantization::Float4 { naming: Naming::ModelOptimizer, scales: Scales::Floats };

/// How a checkpoint is quantised.
#[derive(Clone, Debug)]
pub(super) enum Quantization {
    /// Floats of 8 bits; a scale for this many rows and columns, where one is neither for a row nor for all.
    Float8 { block: [usize; 2] },
    /// Floats of 4 bits.
    Float4 { naming: Naming, scales: Scales },
    /// Integers of so many bits; a scale and a zero for this many inputs (`None`: all) and one output.
    Integers { order: Order, bits: usize, group: Option<usize>, symmetric: bool },
}

impl Quantization {
    /// What config.json says; where it says nothing, what the names of the tensors do.
    ///
    /// # Errors
    /// When it is of a kind that is not supported.
    pub(super) fn of(config: &Document, source: &HuggingFace) -> Result<Option<Self>> {
        let Some(said) = config.get(FIELD) else {
            // Older checkpoints of Model Optimizer say it in a file of their own.
            let mut tensors = source.shards.iter().flat_map(|shard| &shard.header.tensors);
            let is_nvfp4 = tensors.any(|tensor| tensor.name.ends_with(".weight_scale_2"));
            return Ok(is_nvfp4.then_some(NVFP4_OF_MODEL_OPTIMIZER));
        };
        let said = Document { file: config.file.clone(), value: said.clone() };
        let method = said.value["quant_method"].as_str().unwrap_or_default();
        let detail = if method == "modelopt" { "quant_algo" } else { "format" };
        let format = said.value[detail].as_str().unwrap_or_default();
        let compressed = |scales| Some(Self::Float4 { naming: Naming::CompressedTensors, scales });
        match (method, format) {
            ("fp8", _) | ("compressed-tensors", "float-quantized") => Self::float8(&said).map(Some),
            ("compressed-tensors", "mxfp4-pack-quantized") => Ok(compressed(Scales::Powers)),
            ("compressed-tensors", "nvfp4-pack-quantized") => Ok(compressed(Scales::Floats)),
            ("modelopt", "NVFP4" | "W4A16_NVFP4") => Ok(Some(NVFP4_OF_MODEL_OPTIMIZER)),
            ("gptq" | "awq", _) => Self::integers(&said, method).map(Some),
            _ => {
                let what = format!("a model that is already quantised, by {method:?} {format:?},");
                let hint =
                    "use fp8, mxfp4, nvfp4, gptq or awq, the model's unquantised weights, or a GGUF file";
                config.unsupported(FIELD, what, hint)
            }
        }
    }

    fn float8(said: &Document) -> Result<Self> {
        let group = said.value["config_groups"].as_object().and_then(|groups| groups.values().next());
        let block = said.get("weight_block_size");
        let block = block.or(group.and_then(|group| group["weights"].get("block_structure")));
        let Some(block) = block.filter(|block| !block.is_null()) else {
            return Ok(Self::Float8 { block: [128; 2] });
        };
        let side = |i: usize| block[i].as_u64().and_then(|side| usize::try_from(side).ok());
        match [side(0), side(1)] {
            [Some(rows @ 1..), Some(columns @ 1..)] => Ok(Self::Float8 { block: [rows, columns] }),
            _ => said.fail("weight_block_size", &format!("is {block}, expected rows and columns")),
        }
    }

    fn integers(said: &Document, method: &str) -> Result<Self> {
        let bits = said.required_size("bits")?;
        let group = match said.get("group_size").and_then(Value::as_i64) {
            Some(-1) => None,
            Some(size @ 1..) => Some(size as usize),
            _ => return said.fail("group_size", "is missing or no size; fetch the file again"),
        };
        if method == "awq" {
            let version = said.value["version"].as_str().unwrap_or("gemm");
            if bits != 4 || !version.eq_ignore_ascii_case("gemm") || said.flag("zero_point")? == Some(false) {
                let what = format!("AWQ of {bits} bits, version {version:?}");
                return said.unsupported(FIELD, what, "use one of 4 bits with zeros, version gemm");
            }
            return Ok(Self::Integers { order: Order::Awq, bits, group, symmetric: false });
        }
        if !matches!(bits, 4 | 8) {
            return said.unsupported(FIELD, format!("GPTQ of {bits} bits"), "use one of 4 or 8 bits");
        }
        // Version 1 stores zeros less 1.
        let v2 = said.value["checkpoint_format"] == "gptq_v2";
        let symmetric = said.flag("sym")?.unwrap_or(false) && !said.flag("desc_act")?.unwrap_or(false);
        Ok(Self::Integers { order: Order::Gptq { zero_less: u32::from(!v2) }, bits, group, symmetric })
    }

    /// Tensors that say nothing about the weights: how activations are quantised.
    pub(super) fn ignores(&self, name: &str) -> bool {
        ["input_scale", "input_global_scale", "output_scale", "k_scale", "v_scale"]
            .iter()
            .any(|suffix| name.strip_suffix(suffix).is_some_and(|stem| stem.ends_with('.')))
    }

    /// Takes a matrix and what belongs to it out of `tensors`; `None` when it is not quantised.
    pub(super) fn take(
        &self,
        source: &HuggingFace,
        spec: &TensorSpec,
        tensors: &mut Tensors<'_>,
    ) -> Result<Option<SourceTensor>> {
        let TensorKind::Matrix { n, k } = spec.kind else {
            return Ok(None);
        };
        let mut taker = Taker { source, tensors };
        match self {
            Self::Float8 { block } => float8(&mut taker, spec, [n, k], *block),
            &Self::Float4 { naming, scales } => Float4 { naming, scales, k }.take(&mut taker, spec, n),
            Self::Integers { order, bits, group, symmetric } => {
                let group = group.unwrap_or(k);
                let by = Integers { order: *order, bits: *bits, n, k, group, symmetric: *symmetric };
                by.take(&mut taker, spec)
            }
        }
    }
}

/// Takes tensors by name.
struct Taker<'a, 'b> {
    source: &'a HuggingFace,
    tensors: &'a mut Tensors<'b>,
}

/// A tensor that has been taken.
struct Taken<'b> {
    file: usize,
    tensor: &'b Tensor,
    /// First byte in the file.
    offset: u64,
}

impl<'b> Taker<'_, 'b> {
    fn take(&mut self, name: &str) -> Option<Taken<'b>> {
        let (file, tensor) = self.tensors.remove(name)?;
        let offset = self.source.shards[file].header.data_start + tensor.range.start;
        Some(Taken { file, tensor, offset })
    }

    fn required(&mut self, name: &str) -> Result<Taken<'b>> {
        self.take(name).ok_or_else(|| Error::missing_tensor(&self.source.folder, name).into())
    }

    /// A tensor of this type and shape.
    fn checked(&mut self, name: &str, dtype: &str, shape: &[usize]) -> Result<Taken<'b>> {
        let taken = self.required(name)?;
        let fits = taken.tensor.shape.iter().copied().eq(shape.iter().map(|dim| *dim as u64));
        if taken.tensor.dtype == dtype && fits {
            return Ok(taken);
        }
        let found = format!("is {} {:?}, expected {dtype} {shape:?}", taken.tensor.dtype, taken.tensor.shape);
        Err(self.fail(&taken, found))
    }

    fn fail(&self, taken: &Taken<'_>, problem: String) -> crate::Error {
        let file = &self.source.shards[taken.file].header.file;
        Error::malformed(file, format!("tensor {}", taken.tensor.name), problem).into()
    }
}

impl Taken<'_> {
    fn part(&self) -> (usize, std::ops::Range<u64>) {
        (self.file, self.offset..self.offset + (self.tensor.range.end - self.tensor.range.start))
    }
}

fn float8(
    taker: &mut Taker<'_, '_>,
    spec: &TensorSpec,
    [n, k]: [usize; 2],
    block: [usize; 2],
) -> Result<Option<SourceTensor>> {
    let name = spec.hf_name.as_str();
    let Some(kind) = taker.tensors.get(name).and_then(|(_, tensor)| Kind::of_dtype(&tensor.dtype)) else {
        return Ok(None);
    };
    let weight = taker.checked(name, kind.dtype(), &[n, k])?;
    let scale = match taker.take(&format!("{name}_scale_inv")) {
        Some(scale) => scale,
        None => taker.required(&format!("{name}_scale"))?,
    };
    let Some(ty) = GgmlType::from_name(&scale.tensor.dtype).filter(|ty| ty.is_float()) else {
        return Err(taker.fail(&scale, format!("is {}, expected F32, F16 or BF16", scale.tensor.dtype)));
    };
    let [rows, columns] = block;
    let blocks = [n.div_ceil(rows) as u64, k.div_ceil(columns) as u64];
    let block = match scale.tensor.shape.as_slice() {
        [] | [1] | [1, 1] => [n, k],
        [rows] | [rows, 1] if *rows == n as u64 => [1, k],
        shape if *shape == blocks => [rows, columns],
        shape => {
            let expected = format!("expected [1], [{n}, 1] or {blocks:?} for {n} x {k} weights");
            return Err(taker.fail(&scale, format!("its shape is {shape:?}, {expected}")));
        }
    };
    let translation = Translation {
        name: kind.dtype(),
        row_bytes: k,
        whole: false,
        parts: vec![scale.part()],
        by: Box::new(Float8 { kind, k, block, scales: ty }),
    };
    Ok(source_tensor(&weight, "F32", translation))
}

/// A tensor whose translation gives rows of the type called `ty`; `None` when there is none of that name.
fn source_tensor(weight: &Taken<'_>, ty: &str, translation: Translation) -> Option<SourceTensor> {
    Some(SourceTensor {
        file: weight.file,
        name: weight.tensor.name.clone(),
        offset: weight.offset,
        ty: GgmlType::from_name(ty)?,
        translation: Some(translation),
        add: -0.0,
    })
}

/// The values of halves.
fn halves(bytes: &[u8]) -> std::result::Result<Vec<f32>, String> {
    let (mut values, origin) = (Vec::new(), Origin { file: "scales", tensor: "F16" });
    match GgmlType::from_name("F16").map(|ty| ty.floats(bytes, &mut values, origin)) {
        Some(Err(e)) => Err(e.to_string()),
        _ => Ok(values),
    }
}

/// Little-endian words.
fn words(bytes: &[u8]) -> &[[u8; 4]] {
    bytes.as_chunks().0
}

#[cfg(test)]
mod tests;
