//! Hugging Face folders: config.json, tokenizer.json, safetensors.

use super::plan::SourceTensor;
use super::{Description, Options, Plan, in_file, unsupported_architecture};
use crate::arch::{
    ARCHS, Gemma3Config, ModelConfig, RopeConfig, RopeScaling, SpecialTokens, TensorKind, TensorSpec,
};
use crate::{Result, SamplingOptions};
use lowbit_core::Error;
use lowbit_core::backend::RopeStyle;
use lowbit_core::import::safetensors::{Safetensors, Tensor};
use lowbit_core::pack::GgmlType;
use quantized::Quantization;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};

mod quantized;

/// The contents of a folder's documents, as far as they are there, and the headers of its weights.
#[derive(Clone, Debug, Default)]
pub struct HuggingFace {
    /// Name of the folder, for messages.
    pub folder: String,
    /// config.json
    pub config: Option<Vec<u8>>,
    /// generation_config.json
    pub generation_config: Option<Vec<u8>>,
    /// tokenizer.json
    pub tokenizer: Option<Vec<u8>>,
    /// tokenizer_config.json
    pub tokenizer_config: Option<Vec<u8>>,
    /// chat_template.jinja
    pub chat_template: Option<Vec<u8>>,
    /// README.md, which may state the licence.
    pub readme: Option<Vec<u8>>,
    /// model.safetensors.index.json
    pub index: Option<Vec<u8>>,
    /// The weights: all of [`HuggingFace::shard_names`].
    pub shards: Vec<Shard>,
}

/// A safetensors file of the folder.
#[derive(Clone, Debug)]
pub struct Shard {
    /// File name.
    pub name: String,
    /// Its header.
    pub header: Safetensors,
}

impl HuggingFace {
    /// Names of the files with weights: those of the index, or model.safetensors where there is none.
    ///
    /// # Errors
    /// When the folder holds no model, or its index is malformed or names a file outside the folder.
    pub fn shard_names(&self) -> Result<Vec<String>> {
        self.required("config.json", &self.config)?;
        let Some(index) = self.document("model.safetensors.index.json", &self.index)? else {
            return Ok(vec!["model.safetensors".to_owned()]);
        };
        let field = "weight_map";
        let Some(map) = index.value.get(field).and_then(Value::as_object) else {
            return index.fail(field, "is missing or no object; fetch the file again");
        };
        let mut names = BTreeSet::new();
        for (tensor, name) in map {
            match name.as_str() {
                Some(name) if is_plain_name(name) => names.insert(name.to_owned()),
                _ => {
                    let problem = format!("is {name}, expected the name of a file in the folder");
                    return index.fail(&format!("{field}.{tensor}"), &problem);
                }
            };
        }
        if names.is_empty() {
            return index.fail(field, "names no file");
        }
        Ok(names.into_iter().collect())
    }

    fn document(&self, name: &str, bytes: &Option<Vec<u8>>) -> Result<Option<Document>> {
        let Some(bytes) = bytes else {
            return Ok(None);
        };
        let file = format!("{}/{name}", self.folder);
        match serde_json::from_slice(bytes) {
            Ok(value) => Ok(Some(Document { file, value })),
            Err(e) => Err(Error::malformed(&file, "JSON", format!("{e}; fetch the file again")).into()),
        }
    }

    fn required(&self, name: &str, bytes: &Option<Vec<u8>>) -> Result<Document> {
        self.document(name, bytes)?.ok_or_else(|| {
            let problem = "the folder has no such file; fetch the model again";
            Error::malformed(&self.folder, name, problem).into()
        })
    }

    /// The `license` of the README's front matter.
    fn licence(&self) -> String {
        let text = self.readme.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        let mut lines = text.lines();
        if lines.next() != Some("---") {
            return String::new();
        }
        let mut matter = lines.take_while(|line| *line != "---");
        let licence = matter.find_map(|line| line.strip_prefix("license:"));
        licence.unwrap_or_default().trim().to_owned()
    }
}

/// Plans the conversion of a Hugging Face folder.
///
/// # Errors
/// When a document or a tensor is missing, malformed or unsupported, or they do not fit together; the message names file,
/// field or tensor, and value.
pub fn hugging_face(source: &HuggingFace, options: &Options) -> Result<Plan> {
    let config = source.required("config.json", &source.config)?;
    let generation = source.document("generation_config.json", &source.generation_config)?;
    let tokenizer = source.required("tokenizer.json", &source.tokenizer)?;
    let tokenizer_config = source.document("tokenizer_config.json", &source.tokenizer_config)?;

    let field = "architectures";
    let class = config.value[field][0].as_str().unwrap_or_default();
    let Some(arch) = ARCHS.iter().find(|arch| arch.hf_class == class) else {
        let known = ARCHS.iter().map(|arch| arch.hf_class).collect();
        return Err(unsupported_architecture(&config.file, field, class, known));
    };
    refuse_variants(&config)?;
    if options.reversible {
        let (what, hint) = ("a folder that can be made again", "pack a GGUF file, or without --reversible");
        return Err(Error::unsupported(&source.folder, "format", what, hint).into());
    }
    let tokens = special_tokens(&config, generation.as_ref(), &tokenizer, tokenizer_config.as_ref())?;
    let model = match arch.name {
        "gemma3" => gemma3_config(&config, tokens)?,
        _ => llama_config(&config, tokens)?,
    };
    in_file(&config.file, model.validate())?;

    let quantization = Quantization::of(&config, source)?;
    let tensors = find_tensors(source, &model, quantization.as_ref())?;
    let description = Description {
        config: model,
        chat_template: chat_template(source, tokenizer_config.as_ref())?,
        sampling: sampling(generation.as_ref())?,
        tokenizer: source.tokenizer.clone().unwrap_or_default(),
        licence: source.licence(),
        rest: Vec::new(),
    };
    let files = source.shards.iter().map(|shard| shard.header.file.clone()).collect();
    Plan::new(files, description, tensors, options, true)
}

/// What the model's makers recommend, as the transformers library reads it: nothing, unless they ask for sampling.
fn sampling(generation: Option<&Document>) -> Result<SamplingOptions> {
    let Some(generation) = generation.filter(|g| g.get("do_sample") == Some(&Value::Bool(true))) else {
        return Ok(SamplingOptions::default());
    };
    Ok(SamplingOptions {
        temperature: Some(generation.number("temperature")?.unwrap_or(1.0) as f32),
        top_k: Some(generation.size("top_k")?.unwrap_or(50)),
        top_p: Some(generation.number("top_p")?.unwrap_or(1.0) as f32),
        min_p: Some(generation.number("min_p")?.unwrap_or(0.0) as f32),
        repetition_penalty: generation.number("repetition_penalty")?.map(|penalty| penalty as f32),
        ..SamplingOptions::default()
    })
}

/// A JSON file; a field that is null counts as missing.
struct Document {
    file: String,
    value: Value,
}

impl Document {
    fn fail<T>(&self, field: &str, problem: &str) -> Result<T> {
        Err(Error::malformed(&self.file, field, problem).into())
    }

    fn unsupported<T>(&self, field: &str, what: String, hint: &str) -> Result<T> {
        Err(Error::unsupported(&self.file, field, what, hint).into())
    }

    fn get(&self, field: &str) -> Option<&Value> {
        self.value.get(field).filter(|value| !value.is_null())
    }

    fn size(&self, field: &str) -> Result<Option<usize>> {
        match self.get(field) {
            None => Ok(None),
            Some(value) => match value.as_u64().and_then(|size| usize::try_from(size).ok()) {
                Some(size) => Ok(Some(size)),
                None => self.fail(field, &format!("is {value}, expected a non-negative integer")),
            },
        }
    }

    fn required_size(&self, field: &str) -> Result<usize> {
        match self.size(field)? {
            Some(size) => Ok(size),
            None => self.fail(field, "is missing; the model needs it, fetch the file again"),
        }
    }

    fn number(&self, field: &str) -> Result<Option<f64>> {
        number(&self.file, field, self.get(field))
    }

    fn flag(&self, field: &str) -> Result<Option<bool>> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(value) => self.fail(field, &format!("is {value}, expected true or false")),
        }
    }
}

fn number(file: &str, field: &str, value: Option<&Value>) -> Result<Option<f64>> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(x) => Ok(Some(x)),
            None => Err(Error::malformed(file, field, format!("is {value}, expected a number")).into()),
        },
    }
}

/// Variants of the architecture that would need another forward pass.
fn refuse_variants(config: &Document) -> Result<()> {
    for field in ["attention_bias", "mlp_bias"] {
        if config.flag(field)? == Some(true) {
            return config.unsupported(field, "a model with biases".to_owned(), "use another model");
        }
    }
    match config.number("partial_rotary_factor")? {
        Some(x) if x != 1.0 => config.unsupported(
            "partial_rotary_factor",
            format!("{x}"),
            "use a model whose heads rotate whole",
        ),
        _ => Ok(()),
    }
}

fn refuse_activations_but(config: &Document, field: &str, known: &str) -> Result<()> {
    match config.get(field).filter(|act| *act != known) {
        Some(act) => {
            config.unsupported(field, format!("activation {act}"), &format!("use a model with {known}"))
        }
        None => Ok(()),
    }
}

fn llama_config(config: &Document, tokens: SpecialTokens) -> Result<ModelConfig> {
    refuse_activations_but(config, "hidden_act", "silu")?;
    let tied_embeddings = config.flag("tie_word_embeddings")?.unwrap_or(false);
    let rope = rope(config, config.get("rope_parameters"))?;
    Ok(ModelConfig { tied_embeddings, ..model_config(config, tokens, rope)? })
}

/// The fields that all architectures have; what is not theirs is `false` or `None`.
fn model_config(config: &Document, tokens: SpecialTokens, rope: RopeConfig) -> Result<ModelConfig> {
    let d_model = config.required_size("hidden_size")?;
    let n_heads = config.required_size("num_attention_heads")?;
    let head_dim = match config.size("head_dim")? {
        Some(head_dim) => head_dim,
        None if n_heads > 0 && d_model.is_multiple_of(n_heads) => d_model / n_heads,
        None => {
            return config
                .fail("num_attention_heads", &format!("{n_heads} does not divide hidden_size = {d_model}"));
        }
    };
    let Some(rms_eps) = config.number("rms_norm_eps")? else {
        return config.fail("rms_norm_eps", "is missing; the model needs it, fetch the file again");
    };
    Ok(ModelConfig {
        n_layers: config.required_size("num_hidden_layers")?,
        d_model,
        n_heads,
        n_kv_heads: config.size("num_key_value_heads")?.unwrap_or(n_heads),
        head_dim,
        ffn_dim: config.required_size("intermediate_size")?,
        vocab_size: config.required_size("vocab_size")?,
        context_length: config.required_size("max_position_embeddings")?,
        rms_eps: rms_eps as f32,
        rope,
        tied_embeddings: false,
        tokens,
        gemma3: None,
    })
}

fn gemma3_config(config: &Document, tokens: SpecialTokens) -> Result<ModelConfig> {
    refuse_activations_but(config, "hidden_activation", "gelu_pytorch_tanh")?;
    for field in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if config.number(field)?.is_some() {
            return config.unsupported(field, "a model that caps its scores".to_owned(), "use another model");
        }
    }
    if config.flag("use_bidirectional_attention")? == Some(true) {
        let what = "a model that looks ahead".to_owned();
        return config.unsupported("use_bidirectional_attention", what, "use a model that generates text");
    }
    let parameters = |kind: &str| config.get("rope_parameters").and_then(|parameters| parameters.get(kind));
    let local_base = match parameters("sliding_attention").and_then(|p| p.get("rope_theta")) {
        None => config.number("rope_local_base_freq")?,
        base => number(&config.file, "rope_parameters.sliding_attention.rope_theta", base)?,
    };
    let mut rope = rope(config, parameters("full_attention"))?;
    if config.get("rope_parameters").or(config.get("rope_theta")).is_none() {
        rope.base = 1e6;
    }
    let model = model_config(config, tokens, rope)?;
    Ok(ModelConfig {
        tied_embeddings: config.flag("tie_word_embeddings")?.unwrap_or(true),
        gemma3: Some(Gemma3Config {
            embedding_scale: (model.d_model as f32).sqrt(),
            window: config.required_size("sliding_window")?,
            global_every: global_every(config, model.n_layers)?,
            local_rope: RopeConfig {
                base: local_base.unwrap_or(10_000.0),
                style: RopeStyle::Half,
                scaling: RopeScaling::None,
            },
            query_scalar: config.number("query_pre_attn_scalar")?.unwrap_or(256.0) as f32,
        }),
        ..model
    })
}

/// From one global layer to the next: as a number, or as the kinds of all layers.
fn global_every(config: &Document, n_layers: usize) -> Result<usize> {
    let Some(kinds) = config.get("layer_types") else {
        let pattern = config.size("sliding_window_pattern")?.or(config.size("_sliding_window_pattern")?);
        return Ok(pattern.unwrap_or(6));
    };
    let is_global = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Some(true),
        Some("sliding_attention") => Some(false),
        _ => None,
    };
    let is_global: Option<Vec<bool>> =
        kinds.as_array().and_then(|kinds| kinds.iter().map(is_global).collect());
    let is_global = is_global.unwrap_or_default();
    let first = is_global.iter().position(|is_global| *is_global);
    let every = first.unwrap_or(is_global.len()) + 1;
    let is_regular = is_global.iter().enumerate().all(|(i, found)| *found == (i + 1).is_multiple_of(every));
    if is_regular && is_global.len() == n_layers {
        return Ok(every);
    }
    let hint = "use a model of sliding_attention, with full_attention at equal distances";
    config.unsupported("layer_types", format!("{kinds}"), hint)
}

/// `rope_theta` and `rope_scaling`, or both as `rope_parameters`.
fn rope(config: &Document, parameters: Option<&Value>) -> Result<RopeConfig> {
    let scaling = config.get("rope_scaling").or(parameters);
    let base = match number(
        &config.file,
        "rope_parameters.rope_theta",
        parameters.and_then(|p| p.get("rope_theta")),
    )? {
        Some(base) => base,
        None => config.number("rope_theta")?.unwrap_or(10_000.0),
    };
    let scaling = match scaling {
        Some(scaling) => rope_scaling(config, scaling)?,
        None => RopeScaling::None,
    };
    Ok(RopeConfig { base, style: RopeStyle::Half, scaling })
}

fn rope_scaling(config: &Document, scaling: &Value) -> Result<RopeScaling> {
    let required = |field: &str| -> Result<f64> {
        let shown = format!("rope_scaling.{field}");
        match number(&config.file, &shown, scaling.get(field))? {
            Some(x) => Ok(x),
            None => config.fail(&shown, "is missing; the model needs it, fetch the file again"),
        }
    };
    let kind = scaling.get("rope_type").or(scaling.get("type"));
    match kind.map(|kind| kind.as_str().unwrap_or_default()) {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: required("factor")? }),
        Some("llama3") => {
            let field = "original_max_position_embeddings";
            let original = required(field)?;
            if original.fract() != 0.0 || !(1.0..1e9).contains(&original) {
                return config.fail(
                    &format!("rope_scaling.{field}"),
                    &format!("is {original}, expected a positive integer"),
                );
            }
            Ok(RopeScaling::Llama3 {
                factor: required("factor")?,
                low_freq_factor: required("low_freq_factor")?,
                high_freq_factor: required("high_freq_factor")?,
                original_context_length: original as usize,
            })
        }
        Some(_) => config.unsupported(
            "rope_scaling",
            format!("rope scaling {}", kind.unwrap_or(&Value::Null)),
            "use a model with none, linear or llama3 scaling",
        ),
    }
}

fn special_tokens(
    config: &Document,
    generation: Option<&Document>,
    tokenizer: &Document,
    tokenizer_config: Option<&Document>,
) -> Result<SpecialTokens> {
    let ids = |field: &str| -> Result<Vec<u32>> {
        let documents = generation.into_iter().chain([config]);
        let Some((document, value)) = documents.filter_map(|d| Some((d, d.get(field)?))).next() else {
            return Ok(Vec::new());
        };
        let one = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = match value {
            Value::Array(values) => values.iter().map(one).collect(),
            value => one(value).map(|id| vec![id]),
        };
        match ids {
            Some(ids) => Ok(ids),
            None => document.fail(field, &format!("is {value}, expected a token id or a list of them")),
        }
    };
    let bos = ids("bos_token_id")?.first().copied();
    let stated = match tokenizer_config {
        Some(document) => document.flag("add_bos_token")?,
        None => None,
    };
    let add_bos = stated.unwrap_or_else(|| template_adds_token(&tokenizer.value["post_processor"]));
    Ok(SpecialTokens { bos, eos: ids("eos_token_id")?, add_bos: add_bos && bos.is_some() })
}

/// Whether the post-processor begins every text with a special token.
fn template_adds_token(post_processor: &Value) -> bool {
    let is_template =
        |p: &Value| p["type"] == "TemplateProcessing" && !p["single"][0]["SpecialToken"].is_null();
    match post_processor["processors"].as_array() {
        Some(processors) => processors.iter().any(is_template),
        None => is_template(post_processor),
    }
}

/// chat_template.jinja, or the template in tokenizer_config.json (of several, the one called `default`).
fn chat_template(source: &HuggingFace, tokenizer_config: Option<&Document>) -> Result<Option<String>> {
    if let Some(bytes) = &source.chat_template {
        let file = format!("{}/chat_template.jinja", source.folder);
        return match String::from_utf8(bytes.clone()) {
            Ok(text) => Ok(Some(text)),
            Err(e) => Err(Error::malformed(&file, "text", format!("is not UTF-8: {e}")).into()),
        };
    }
    let Some((document, value)) = tokenizer_config.and_then(|d| Some((d, d.get("chat_template")?))) else {
        return Ok(None);
    };
    let default = |templates: &Vec<Value>| {
        let template = templates.iter().find(|template| template["name"] == "default")?;
        Some(template["template"].as_str()?.to_owned())
    };
    match value {
        Value::String(text) => Ok(Some(text.clone())),
        Value::Array(templates) => Ok(default(templates)),
        _ => document.fail("chat_template", "is neither text nor a list of templates"),
    }
}

/// Finds every tensor that the architecture needs in the shards, and refuses those that it does not know.
fn find_tensors(
    source: &HuggingFace,
    config: &ModelConfig,
    quantization: Option<&Quantization>,
) -> Result<Vec<(TensorSpec, SourceTensor)>> {
    let mut by_name: Tensors<'_> = HashMap::new();
    for (file, shard) in source.shards.iter().enumerate() {
        for tensor in &shard.header.tensors {
            if by_name.insert(&tensor.name, (file, tensor)).is_some() {
                let problem = "another file of the model has this tensor too; fetch the model again";
                return Err(
                    Error::malformed(&shard.header.file, format!("tensor {}", tensor.name), problem).into()
                );
            }
        }
    }
    let specs = config.tensors();
    let mut found = Vec::with_capacity(specs.len());
    for spec in specs {
        let quantized = match quantization {
            Some(quantization) => quantization.take(source, &spec, &mut by_name)?,
            None => None,
        };
        if let Some(tensor) = quantized {
            found.push((spec, tensor));
            continue;
        }
        let Some((file, tensor)) = by_name.remove(spec.hf_name.as_str()) else {
            return Err(Error::missing_tensor(&source.folder, &spec.hf_name).into());
        };
        let source = source_tensor(&source.shards[file].header, file, &spec, tensor)?;
        found.push((spec, source));
    }
    let harmless = |name: &str| {
        name.ends_with(".rotary_emb.inv_freq")
            || quantization.is_some_and(|quantization| quantization.ignores(name))
            || (config.tied_embeddings && name == "lm_head.weight")
    };
    match by_name.iter().find(|(name, _)| !harmless(name)) {
        Some((name, (file, _))) => Err(Error::unsupported(
            &source.shards[*file].header.file,
            format!("tensor {name}"),
            format!("this tensor, which a plain {} model does not have,", config.architecture()),
            "use another model",
        )
        .into()),
        None => Ok(found),
    }
}

/// The tensors that nobody has asked for yet, and their files.
type Tensors<'a> = HashMap<&'a str, (usize, &'a Tensor)>;

fn source_tensor(
    header: &Safetensors,
    file: usize,
    spec: &TensorSpec,
    tensor: &Tensor,
) -> Result<SourceTensor> {
    let field = format!("tensor {}", tensor.name);
    let (expected, meaning) = match spec.kind {
        TensorKind::Matrix { n, k } => (vec![n as u64, k as u64], "[outputs, inputs]"),
        TensorKind::Vector { len } => (vec![len as u64], "[length]"),
    };
    if tensor.shape != expected {
        let problem = format!(
            "its shape is {:?}, expected {meaning} = {expected:?}; config.json and weights do not fit together",
            tensor.shape
        );
        return Err(Error::malformed(&header.file, field, problem).into());
    }
    let Some(ty) = GgmlType::from_name(&tensor.dtype).filter(|ty| ty.is_float()) else {
        let hint = "use weights in F32, F16 or BF16";
        return Err(Error::unsupported(&header.file, field, format!("dtype {}", tensor.dtype), hint).into());
    };
    let offset = header.data_start + tensor.range.start;
    let name = tensor.name.clone();
    Ok(SourceTensor { file, name, offset, ty, translation: None, add: spec.hf_offset })
}

/// A file name without a path.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\\', ':', '\0']) && name != "." && name != ".."
}
