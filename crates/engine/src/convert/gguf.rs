//! GGUF files.

use super::plan::SourceTensor;
use super::{Description, Options, Plan, in_file, tokenizer, unsupported_architecture};
use crate::arch::{
    ARCHS, ArchSpec, Gemma3Config, ModelConfig, RopeConfig, RopeScaling, SpecialTokens, TensorKind,
    TensorSpec,
};
use crate::{Result, SamplingOptions};
use lowbit_core::Error;
use lowbit_core::import::Parsed;
use lowbit_core::import::gguf::{self, Gguf, TensorInfo};

/// Rotary frequency divisors, part of the configuration and hence needed with the header.
const ROPE_FREQS: &str = "rope_freqs.weight";
/// Writers put [`ROPE_FREQS`] first; a file where it lies deeper than this is refused.
const MAX_ROPE_FREQS_END: u64 = 64 << 20;

/// Tokens that end an answer, whatever the metadata say, where they are control tokens.
const END_TOKENS: [&str; 7] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
];

/// Plans the conversion of a GGUF file. `prefix` holds its first bytes, `file_len` its length where that is known.
///
/// # Errors
/// When the file is malformed, of an unsupported kind, or its metadata and tensors do not fit together; the message names
/// file, key or tensor, and value.
pub fn gguf(file: &str, prefix: &[u8], file_len: Option<u64>, options: &Options) -> Result<Parsed<Plan>> {
    let header = match gguf::parse(file, prefix, file_len)? {
        Parsed::NeedMore { at_least } => return Ok(Parsed::NeedMore { at_least }),
        Parsed::Complete(header) => header,
    };
    let factors = match rope_factors(&header, prefix)? {
        Parsed::NeedMore { at_least } => return Ok(Parsed::NeedMore { at_least }),
        Parsed::Complete(factors) => factors,
    };
    let mut description = describe(&header, factors)?;
    let tensors = find_tensors(&header, &description.config)?;
    if options.reversible {
        description.rest = rest(&header, &tensors, file_len);
    }
    Plan::new(vec![file.to_owned()], description, tensors, options, false).map(Parsed::Complete)
}

fn describe(header: &Gguf, factors: Option<Vec<f32>>) -> Result<Description> {
    let key = "general.architecture";
    header.required(key)?;
    let name = header.text(key)?.unwrap_or_default();
    let Some(arch) = ARCHS.iter().find(|arch| arch.name == name) else {
        let known = ARCHS.iter().map(|arch| arch.name).collect();
        return Err(unsupported_architecture(&header.file, key, name, known));
    };
    let keys = Keys { header, arch };
    let vocabulary = tokenizer::Vocabulary::new(header)?;
    let config = config(&keys, &vocabulary, factors)?;
    in_file(&header.file, config.validate())?;
    Ok(Description {
        config,
        chat_template: header.text("tokenizer.chat_template")?.map(str::to_owned),
        sampling: sampling(header)?,
        tokenizer: vocabulary.tokenizer_json()?,
        licence: header.text("general.license")?.unwrap_or_default().to_owned(),
        rest: Vec::new(),
    })
}

/// What is no tensor of the model: the header, what lies between tensors, and what follows them.
fn rest(
    header: &Gguf,
    tensors: &[(TensorSpec, SourceTensor)],
    file_len: Option<u64>,
) -> Vec<std::ops::Range<u64>> {
    let packed: std::collections::HashSet<&str> =
        tensors.iter().map(|(_, tensor)| tensor.name.as_str()).collect();
    let mut packed: Vec<&TensorInfo> =
        header.tensors.iter().filter(|tensor| packed.contains(tensor.name.as_str())).collect();
    packed.sort_by_key(|tensor| tensor.offset);
    let mut at = 0;
    let mut rest: Vec<_> = (packed.iter())
        .map(|tensor| std::mem::replace(&mut at, tensor.offset + tensor.size)..tensor.offset)
        .collect();
    rest.push(at..file_len.unwrap_or(at));
    rest.retain(|range| !range.is_empty());
    rest
}

/// What the model's makers recommend.
fn sampling(header: &Gguf) -> Result<SamplingOptions> {
    let float = |name: &str| -> Result<Option<f32>> {
        Ok(header.float(&format!("general.sampling.{name}"))?.map(|value| value as f32))
    };
    let top_k = header.unsigned("general.sampling.top_k")?;
    Ok(SamplingOptions {
        temperature: float("temp")?,
        top_k: top_k.map(|k| usize::try_from(k).unwrap_or(0)),
        top_p: float("top_p")?,
        min_p: float("min_p")?,
        repetition_penalty: float("penalty_repeat")?,
        ..SamplingOptions::default()
    })
}

/// Metadata under the architecture's name.
struct Keys<'a> {
    header: &'a Gguf,
    arch: &'static ArchSpec,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch.name)
    }

    fn float(&self, name: &str) -> Result<Option<f64>> {
        Ok(self.header.float(&self.key(name))?)
    }

    fn size(&self, name: &str) -> Result<Option<usize>> {
        let key = self.key(name);
        match self.header.unsigned(&key)?.map(usize::try_from) {
            None => Ok(None),
            Some(Ok(size)) => Ok(Some(size)),
            Some(Err(_)) => Err(Error::malformed(&self.header.file, key, "is too large").into()),
        }
    }

    fn required_size(&self, name: &str) -> Result<usize> {
        self.header.required(&self.key(name))?;
        Ok(self.size(name)?.unwrap_or_default())
    }

    fn fail<T>(&self, name: &str, problem: String) -> Result<T> {
        Err(Error::malformed(&self.header.file, self.key(name), problem).into())
    }
}

fn config(
    keys: &Keys<'_>,
    vocabulary: &tokenizer::Vocabulary<'_>,
    factors: Option<Vec<f32>>,
) -> Result<ModelConfig> {
    let header = keys.header;
    let d_model = keys.required_size("embedding_length")?;
    let n_heads = keys.required_size("attention.head_count")?;
    let head_dim = match keys.size("attention.key_length")? {
        Some(length) => length,
        None if n_heads > 0 && d_model.is_multiple_of(n_heads) => d_model / n_heads,
        None => return keys.fail("attention.head_count", format!("{n_heads} does not divide {d_model}")),
    };
    for name in ["attention.value_length", "rope.dimension_count"] {
        match keys.size(name)? {
            Some(length) if length != head_dim => {
                return keys.fail(name, format!("is {length}, expected the head's {head_dim}"));
            }
            _ => {}
        }
    }
    let eps = "attention.layer_norm_rms_epsilon";
    header.required(&keys.key(eps))?;
    let tied_embeddings = header.tensor("output.weight").is_none();
    Ok(ModelConfig {
        n_layers: keys.required_size("block_count")?,
        d_model,
        n_heads,
        n_kv_heads: keys.size("attention.head_count_kv")?.unwrap_or(n_heads),
        head_dim,
        ffn_dim: keys.required_size("feed_forward_length")?,
        vocab_size: vocabulary.len(),
        context_length: keys.required_size("context_length")?,
        rms_eps: keys.float(eps)?.unwrap_or_default() as f32,
        rope: RopeConfig {
            base: keys.float("rope.freq_base")?.unwrap_or(10_000.0),
            style: keys.arch.gguf_rope,
            scaling: scaling(keys, factors)?,
        },
        tied_embeddings,
        tokens: special_tokens(header, vocabulary)?,
        gemma3: match keys.arch.name {
            "gemma3" => Some(gemma3(keys, d_model, n_heads, head_dim)?),
            _ => None,
        },
    })
}

/// What files of Gemma 3 do not say is what llama.cpp takes it for.
fn gemma3(keys: &Keys<'_>, d_model: usize, n_heads: usize, head_dim: usize) -> Result<Gemma3Config> {
    /// The layers of Gemma 3 27B, the one whose scores are divided by the root of `d_model / n_heads`.
    const LAYERS_OF_27B: usize = 62;

    let window = "attention.sliding_window";
    keys.header.required(&keys.key(window))?;
    let capping = "final_logit_softcapping";
    if keys.float(capping)?.is_some_and(|capping| capping != 0.0) {
        let (file, key) = (&keys.header.file, keys.key(capping));
        return Err(Error::unsupported(file, key, "capped logits", "use another model").into());
    }
    let is_27b = keys.size("block_count")? == Some(LAYERS_OF_27B);
    Ok(Gemma3Config {
        embedding_scale: (d_model as f32).sqrt(),
        window: keys.required_size(window)?,
        global_every: keys.size("attention.sliding_window_pattern")?.unwrap_or(6),
        local_rope: RopeConfig {
            base: keys.float("rope.freq_base_swa")?.unwrap_or(10_000.0),
            style: keys.arch.gguf_rope,
            scaling: RopeScaling::None,
        },
        query_scalar: if is_27b { d_model as f32 / n_heads.max(1) as f32 } else { head_dim as f32 },
    })
}

fn scaling(keys: &Keys<'_>, factors: Option<Vec<f32>>) -> Result<RopeScaling> {
    if let Some(factors) = factors {
        return Ok(RopeScaling::Factors { factors });
    }
    let key = keys.key("rope.scaling.type");
    let factor = |name: &str| keys.float(name);
    match keys.header.text(&key)? {
        Some("linear") => {
            keys.header.required(&keys.key("rope.scaling.factor"))?;
            Ok(RopeScaling::Linear { factor: factor("rope.scaling.factor")?.unwrap_or_default() })
        }
        // Older files have only the factor.
        None => Ok(match factor("rope.scale_linear")? {
            Some(factor) if factor != 1.0 => RopeScaling::Linear { factor },
            _ => RopeScaling::None,
        }),
        Some("none") => Ok(RopeScaling::None),
        Some(other) => Err(Error::unsupported(
            &keys.header.file,
            key,
            format!("rope scaling {other:?}"),
            "use a model with none, linear or Llama 3 scaling",
        )
        .into()),
    }
}

/// The divisors of the rotary frequencies, where the file has them.
fn rope_factors(header: &Gguf, prefix: &[u8]) -> Result<Parsed<Option<Vec<f32>>>> {
    let Some(tensor) = header.tensor(ROPE_FREQS) else {
        return Ok(Parsed::Complete(None));
    };
    let end = tensor.offset + tensor.size;
    if end > MAX_ROPE_FREQS_END {
        let what = format!("this tensor at byte {}", tensor.offset);
        return Err(Error::unsupported(
            &header.file,
            format!("tensor {ROPE_FREQS}"),
            what,
            "convert the model again: current converters write it first",
        )
        .into());
    }
    let Some(bytes) = prefix.get(tensor.offset as usize..end as usize) else {
        return Ok(Parsed::NeedMore { at_least: end });
    };
    let mut factors = Vec::new();
    tensor.ty.floats(bytes, &mut factors, header.origin(ROPE_FREQS))?;
    Ok(Parsed::Complete(Some(factors)))
}

fn special_tokens(header: &Gguf, vocabulary: &tokenizer::Vocabulary<'_>) -> Result<SpecialTokens> {
    let id = |name: &str| -> Result<Option<u32>> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        match header.unsigned(&key)? {
            None => Ok(None),
            Some(id) if id < vocabulary.len() as u64 => Ok(Some(id as u32)),
            Some(id) => {
                let problem = format!("is {id}, the vocabulary has {} tokens", vocabulary.len());
                Err(Error::malformed(&header.file, key, problem).into())
            }
        }
    };
    let mut eos = Vec::new();
    let named = [id("eos")?, id("eot")?, id("eom")?];
    let known = END_TOKENS.iter().filter_map(|token| vocabulary.control_token(token));
    for id in named.into_iter().flatten().chain(known) {
        if !eos.contains(&id) {
            eos.push(id);
        }
    }
    let bos = id("bos")?;
    let add_bos = header.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(vocabulary.adds_bos_by_default());
    Ok(SpecialTokens { bos, eos, add_bos: add_bos && bos.is_some() })
}

/// Finds every tensor that the architecture needs, and refuses those that it does not know: a model without its biases
/// would talk nonsense.
fn find_tensors(header: &Gguf, config: &ModelConfig) -> Result<Vec<(TensorSpec, SourceTensor)>> {
    let specs = config.tensors();
    let known = |tensor: &TensorInfo| {
        tensor.name == ROPE_FREQS
            || tensor.name.ends_with(".attn_rot_embd")
            || tensor.name.ends_with(".rotary_emb.inv_freq")
            || specs.iter().any(|spec| spec.name == tensor.name)
    };
    if let Some(tensor) = header.tensors.iter().find(|tensor| !known(tensor)) {
        let (what, hint) = match tensor.name.ends_with("scale") {
            true => ("a scale of a whole matrix".to_owned(), "use a file with Q4_K or Q8_0"),
            false => {
                let architecture = config.architecture();
                let what = format!("this tensor, which a plain {architecture} model does not have,");
                (what, "use another model")
            }
        };
        let field = format!("tensor {}", tensor.name);
        return Err(Error::unsupported(&header.file, field, what, hint).into());
    }
    let by_name: std::collections::HashMap<&str, &TensorInfo> =
        header.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    specs
        .into_iter()
        .map(|spec| {
            let tensor = by_name.get(spec.name.as_str()).ok_or_else(|| Error::MissingTensor {
                file: header.file.clone(),
                tensor: spec.name.clone(),
            })?;
            check_shape(header, &spec, tensor)?;
            let (name, ty) = (tensor.name.clone(), tensor.ty);
            Ok((
                spec,
                SourceTensor { file: 0, name, offset: tensor.offset, ty, translation: None, add: -0.0 },
            ))
        })
        .collect()
}

fn check_shape(header: &Gguf, spec: &TensorSpec, tensor: &TensorInfo) -> Result<()> {
    let (expected, meaning) = match spec.kind {
        TensorKind::Matrix { n, k } => (vec![k, n], "[inputs, outputs]"),
        TensorKind::Vector { len } => (vec![len], "[length]"),
    };
    if tensor.dims == expected {
        return Ok(());
    }
    let hint = match spec.name.as_str() {
        "token_embd.weight" | "output.weight" => "; vocabulary and embedding table do not fit together",
        _ => "; the metadata and the tensors do not fit together",
    };
    let problem = format!("its shape is {:?}, expected {meaning} = {expected:?}{hint}", tensor.dims);
    Err(Error::malformed(&header.file, format!("tensor {}", tensor.name), problem).into())
}
