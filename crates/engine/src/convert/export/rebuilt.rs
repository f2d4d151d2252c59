//! A GGUF file from the manifest and the tokenizer of an artifact.

use super::header::{HeaderWriter, padding};
use super::{Part, Tensor, document, tokenizer};
use crate::arch::{ArchSpec, ModelConfig, RopeConfig, RopeScaling, TensorKind, TensorSpec, arch};
use crate::convert::file::Source;
use crate::convert::{Options, gguf, in_file};
use crate::{Result, SamplingOptions};
use lowbit_core::backend::RopeStyle;
use lowbit_core::container::{Header, MatrixEntry};
use lowbit_core::pack::GgmlType;
use lowbit_core::{Error, Format};
use std::path::Path;

const ROPE_FREQS: &str = "rope_freqs.weight";

/// The parts of the file. What the importer makes of them has been compared with the artifact.
pub(super) fn parts(header: &Header, source: &Source, name: &Path) -> Result<Vec<Part>> {
    let manifest = &header.manifest;
    let config = in_file(&header.file, ModelConfig::of(manifest))?;
    let arch = arch(&manifest.architecture)?;
    let tokenizer = match &manifest.tokenizer {
        Some(name) => document(header, source, name)?.unwrap_or_default(),
        None => return Err(unsupported(header, "tokenizer", "a model without tokenizer".to_owned())),
    };
    let mut writer = HeaderWriter::default();
    general(&mut writer, header, arch);
    hyper_parameters(&mut writer, header, arch, &config)?;
    tokenizer::write(&mut writer, &header.file, &tokenizer, &config)?;
    if let Some(template) = &manifest.chat_template {
        writer.text("tokenizer.chat_template", template);
    }
    sampling(&mut writer, header);

    let (mut data, mut matrices) = (Vec::new(), 0);
    let factors = config.rope.divisors(config.head_dim);
    let mut first = Vec::new();
    if let Some(factors) = &factors {
        first = factors.iter().flat_map(|x| x.to_le_bytes()).collect();
        writer.tensor(ROPE_FREQS, &[factors.len()], ty_of(header, ROPE_FREQS, Format::F32)?, first.len());
        first.resize(first.len() + padding(first.len()), 0);
    }
    for spec in config.tensors() {
        let (tensor, dims, bytes) = tensor(header, arch, &config, &spec)?;
        writer.tensor(&spec.name, &dims, tensor.ty, bytes);
        matrices += usize::from(dims.len() == 2);
        data.push(Part::Tensor(tensor));
        data.push(Part::Bytes(vec![0; padding(bytes)]));
    }
    if matrices != manifest.matrices.len() {
        let problem = format!("has {} matrices, the model has {matrices}", manifest.matrices.len());
        return Err(Error::malformed(&header.file, "manifest", problem).into());
    }
    let mut bytes = writer.finish();
    bytes.extend(first);
    import_again(header, &config, arch, &tokenizer, &bytes, name)?;
    data.insert(0, Part::Bytes(bytes));
    Ok(data)
}

fn general(writer: &mut HeaderWriter, header: &Header, arch: &ArchSpec) {
    let source = &header.manifest.source;
    writer.text("general.architecture", arch.name);
    if let Some(name) = Path::new(&source.file).file_stem().and_then(|stem| stem.to_str()) {
        writer.text("general.name", name);
    }
    if !source.licence.is_empty() {
        writer.text("general.license", &source.licence);
    }
    writer.u32("general.quantization_version", 2);
}

/// The inverse of what the importer reads.
fn hyper_parameters(
    writer: &mut HeaderWriter,
    header: &Header,
    arch: &ArchSpec,
    config: &ModelConfig,
) -> Result<()> {
    let key = |name: &str| format!("{}.{name}", arch.name);
    for (name, value) in [
        ("block_count", config.n_layers),
        ("context_length", config.context_length),
        ("embedding_length", config.d_model),
        ("feed_forward_length", config.ffn_dim),
        ("attention.head_count", config.n_heads),
        ("attention.head_count_kv", config.n_kv_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
        ("rope.dimension_count", config.head_dim),
        ("vocab_size", config.vocab_size),
    ] {
        // Validated: far below.
        writer.u32(&key(name), value as u32);
    }
    writer.f32(&key("attention.layer_norm_rms_epsilon"), config.rms_eps);
    writer.f32(&key("rope.freq_base"), config.rope.base as f32);
    if let RopeScaling::Linear { factor } = config.rope.scaling {
        writer.text(&key("rope.scaling.type"), "linear");
        writer.f32(&key("rope.scaling.factor"), factor as f32);
    }
    if let Some(gemma3) = &config.gemma3 {
        let Ok(window) = u32::try_from(gemma3.window) else {
            return Err(unsupported(header, "config.window", format!("a window of {}", gemma3.window)));
        };
        writer.u32(&key("attention.sliding_window"), window);
        // Others than these are read by few programs.
        if gemma3.global_every != 6 {
            writer.u32(&key("attention.sliding_window_pattern"), gemma3.global_every as u32);
        }
        if gemma3.local_rope.base != 10_000.0 {
            writer.f32(&key("rope.freq_base_swa"), gemma3.local_rope.base as f32);
        }
    }
    Ok(())
}

fn sampling(writer: &mut HeaderWriter, header: &Header) {
    let said = &header.manifest.sampling;
    for (field, name) in [
        ("temperature", "temp"),
        ("topP", "top_p"),
        ("minP", "min_p"),
        ("repetitionPenalty", "penalty_repeat"),
    ] {
        if let Some(value) = said[field].as_f64() {
            writer.f32(&format!("general.sampling.{name}"), value as f32);
        }
    }
    if let Some(k) = said["topK"].as_u64() {
        writer.u32("general.sampling.top_k", u32::try_from(k).unwrap_or(u32::MAX));
    }
}

/// A tensor, its dimensions, and its bytes.
fn tensor(
    header: &Header,
    arch: &ArchSpec,
    config: &ModelConfig,
    spec: &TensorSpec,
) -> Result<(Tensor, Vec<usize>, usize)> {
    let name = spec.name.as_str();
    let missing = || Error::missing_tensor(&header.file, name);
    let (dims, format) = match spec.kind {
        TensorKind::Matrix { .. } => {
            let (&MatrixEntry { format, n, k }, _) = header.matrix(name).ok_or_else(missing)?;
            (vec![k, n], format)
        }
        TensorKind::Vector { .. } => {
            let range = header.vector(name).ok_or_else(missing)?;
            (vec![range.len() / size_of::<f32>()], Format::F32)
        }
    };
    let ty = ty_of(header, name, format)?;
    // The planes of as many weights are in the file.
    let bytes = dims.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
    let Some(bytes) = bytes.and_then(|count| ty.bytes_of(count)) else {
        let problem = format!("its shape {dims:?} is not that of whole blocks of {}", ty.name());
        return Err(Error::malformed(&header.file, format!("tensor {name}"), problem).into());
    };
    let heads = match name.rsplit('.').nth(1) {
        Some("attn_q") => Some(config.n_heads),
        Some("attn_k") => Some(config.n_kv_heads),
        _ => None,
    };
    let heads = heads.filter(|_| is_reordered(config, arch));
    Ok((Tensor { name: name.to_owned(), ty, len: bytes as u64, heads }, dims, bytes))
}

/// Whether rows are in the order of Hugging Face where GGUF has its own.
fn is_reordered(config: &ModelConfig, arch: &ArchSpec) -> bool {
    config.rope.style == RopeStyle::Half && arch.gguf_rope == RopeStyle::Interleaved
}

fn ty_of(header: &Header, tensor: &str, format: Format) -> Result<GgmlType> {
    GgmlType::of_format(format).ok_or_else(|| {
        let what = format!("the format {}", format.spec().name);
        unsupported(header, &format!("tensor {tensor}"), what)
    })
}

fn unsupported(header: &Header, field: &str, what: String) -> crate::Error {
    let hint = "GGUF files cannot hold it";
    Error::unsupported(&header.file, field, what, hint).into()
}

/// Reads what has been written as the importer does, and compares with the artifact: nothing may be lost in silence.
fn import_again(
    header: &Header,
    config: &ModelConfig,
    arch: &ArchSpec,
    tokenizer: &[u8],
    bytes: &[u8],
    name: &Path,
) -> Result<()> {
    let name = name.display().to_string();
    let plan = gguf(&name, bytes, None, &Options::default())?.complete(&name)?;
    let found = plan.layout().manifest();
    let differs = |field: &str, found: String, expected: String| -> Result<()> {
        if found == expected {
            return Ok(());
        }
        let what = format!("{expected}, which would be read as {found},");
        Err(unsupported(header, field, what))
    };
    let plain = |config: ModelConfig| {
        let rope = |rope: RopeConfig, style| RopeConfig { base: f64::from(rope.base as f32), style, ..rope };
        let scaling = match (config.rope.divisors(config.head_dim), &config.rope.scaling) {
            (Some(factors), _) => RopeScaling::Factors { factors },
            (None, &RopeScaling::Linear { factor }) => {
                RopeScaling::Linear { factor: f64::from(factor as f32) }
            }
            (None, other) => other.clone(),
        };
        let global = rope(config.rope.clone(), arch.gguf_rope);
        let mut config = ModelConfig { rope: RopeConfig { scaling, ..global }, ..config };
        if let Some(gemma3) = &mut config.gemma3 {
            gemma3.local_rope = rope(gemma3.local_rope.clone(), arch.gguf_rope);
        }
        format!("{config:?}")
    };
    differs("config", plain(in_file(&name, ModelConfig::of(found))?), plain(config.clone()))?;
    let manifest = &header.manifest;
    differs("matrices", format!("{:?}", found.matrices), format!("{:?}", manifest.matrices))?;
    differs("chat_template", format!("{:?}", found.chat_template), format!("{:?}", manifest.chat_template))?;
    let [found, expected] = [found, manifest].map(|m| SamplingOptions::of_manifest(&m.sampling));
    differs(
        "sampling",
        format!("{:?}", in_file(&name, found)?),
        format!("{:?}", in_file(&header.file, expected)?),
    )?;
    tokenizer::compare(&header.file, tokenizer, plan.tokenizer())
}
