//! A model that answers.

use crate::artifact::Artifact;
use crate::error::Failure;
use lowbit_core::activation::Activations;
use lowbit_core::backend::CpuBackend;
use lowbit_core::simd::Isa;
use lowbit_engine::kv_cache::bytes_per_position;
use lowbit_engine::sampler::Sampling;
use lowbit_engine::{
    Event, GenerateOptions, Generation, LoadOptions, Message, Model, Session, logits_sha256,
};
use serde::{Deserialize, Serialize};
use wasm_bindgen::prelude::*;

/// A model, its one session, and the answer in the making.
#[wasm_bindgen]
pub struct Engine {
    model: Model<CpuBackend>,
    session: Session<CpuBackend>,
    generation: Option<Generation>,
    parity: Option<Parity>,
    info: Info,
    memory: Memory,
}

/// How a model is started.
#[derive(Deserialize)]
struct StartOptions {
    threads: usize,
    activations: Option<Activations>,
    context: Option<usize>,
}

/// What the page shows of a model.
#[derive(Serialize)]
struct Info {
    name: String,
    architecture: String,
    context: usize,
    activations: Activations,
    sampling: Sampling,
    isa: &'static str,
    threads: usize,
    fingerprint: String,
    licence: String,
}

/// Bytes of the parts of memory that are of interest.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Memory {
    weights: usize,
    kv_cache: u64,
}

/// A prompt: messages for the chat template, plain text, or ids.
#[derive(Deserialize)]
#[serde(untagged)]
enum Prompt {
    Messages { messages: Vec<Message> },
    Text { text: String },
    Ids { ids: Vec<u32> },
}

/// The end of an answer, as the page wants it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    tokens: &'a [u32],
    prompt_tokens: usize,
    cached_tokens: usize,
    prefill_tokens_per_second: f64,
    decode_tokens_per_second: f64,
}

/// A prompt whose last logits are wanted.
struct Parity {
    ids: Vec<u32>,
    done: usize,
    chunk: usize,
}

#[wasm_bindgen]
impl Engine {
    /// Builds the model of a whole artifact. `options` is JSON: `{threads, activations?, context?}`.
    pub fn start(artifact: Artifact, options: &str) -> Result<Engine, JsValue> {
        Ok(Self::build(artifact, &parse(options)?)?)
    }

    /// What the model is and how it runs, as JSON.
    pub fn info(&self) -> Result<String, JsValue> {
        Ok(json(&self.info)?)
    }

    /// Bytes of weights and KV cache, as JSON.
    pub fn memory(&self) -> Result<String, JsValue> {
        Ok(json(&self.memory)?)
    }

    /// The tokens of plain text.
    pub fn tokenize(&self, text: &str) -> Vec<u32> {
        self.model.codec().tokenizer().encode(text, false)
    }

    /// Begins an answer. `prompt` is JSON: `{messages}`, `{text}` or `{ids}`; `options` is that of [`GenerateOptions`].
    pub fn begin(&mut self, prompt: &str, options: &str) -> Result<(), JsValue> {
        let ids = self.ids(prompt)?;
        let options: GenerateOptions = parse(options)?;
        let generation =
            Generation::new(&self.model, &mut self.session, ids, options).map_err(Failure::from)?;
        self.generation = Some(generation);
        Ok(())
    }

    /// Runs one step of the answer and returns what it did as `{type, ...}`, in JSON.
    pub fn step(&mut self) -> Result<String, JsValue> {
        let generation = self.generation.as_mut().ok_or_else(no_answer)?;
        let event: Event = generation.step(&mut self.model, &mut self.session).map_err(Failure::from)?;
        Ok(json(&event)?)
    }

    /// Ends the answer and returns its tokens and what they cost, as JSON.
    pub fn end(&mut self) -> Result<String, JsValue> {
        let generation = self.generation.take().ok_or_else(no_answer)?;
        let stats = generation.stats();
        Ok(json(&Answer {
            tokens: generation.tokens(),
            prompt_tokens: stats.prompt_tokens,
            cached_tokens: stats.reused_tokens,
            prefill_tokens_per_second: stats.prefill_tok_s,
            decode_tokens_per_second: stats.decode_tok_s,
        })?)
    }

    /// Gives the answer up. What has been run stays in the session.
    pub fn abort(&mut self) {
        self.generation = None;
    }

    /// Begins to compute the logits of a prompt's last position, `chunk` positions at a time, in an empty session. The
    /// prompt's ids are repeated up to `length`, if that is not 0. Returns the number of positions.
    #[wasm_bindgen(js_name = parityBegin)]
    pub fn parity_begin(&mut self, prompt: &str, chunk: usize, length: usize) -> Result<usize, JsValue> {
        let ids = self.ids(prompt)?;
        let positions = if length == 0 { ids.len() } else { length };
        if ids.is_empty() || positions > self.session.capacity() {
            let problem = format!("{positions} positions, expected 1 to {}", self.session.capacity());
            return Err(Failure::new("bad-argument", problem).into());
        }
        self.session.clear();
        let ids = ids.iter().copied().cycle().take(positions).collect();
        self.parity = Some(Parity { ids, done: 0, chunk: chunk.max(1) });
        Ok(positions)
    }

    /// Computes the next chunk; after the last one, returns SHA-256 of the logits.
    #[wasm_bindgen(js_name = parityStep)]
    pub fn parity_step(&mut self) -> Result<Option<String>, JsValue> {
        let parity = self.parity.as_mut().ok_or_else(no_answer)?;
        let end = parity.ids.len().min(parity.done + parity.chunk);
        let ids = &parity.ids[parity.done..end];
        let mut logits = Vec::new();
        let wanted = ids.len() - 1..ids.len();
        self.model.run(&mut self.session, ids, wanted, &mut logits, None).map_err(Failure::from)?;
        parity.done = end;
        if end < parity.ids.len() {
            return Ok(None);
        }
        self.parity = None;
        Ok(Some(logits_sha256(&logits)))
    }
}

impl Engine {
    fn build(artifact: Artifact, options: &StartOptions) -> Result<Self, Failure> {
        let artifact = artifact.whole()?;
        let header = artifact.header();
        let activations = options.activations.unwrap_or(header.manifest.activations);
        let isa = Isa::best();
        let backend = CpuBackend::new(isa, options.threads, activations)?;
        let threads = backend.threads();
        let model = Model::load(&artifact, backend, LoadOptions { context: options.context })?;
        let session = model.session()?;
        let info = Info {
            name: match header.manifest.source.file.as_str() {
                "" => header.file.clone(),
                name => name.to_owned(),
            },
            architecture: header.manifest.architecture.clone(),
            context: model.context(),
            activations,
            sampling: model.codec().sampling().clone(),
            isa: isa.name(),
            threads,
            fingerprint: header.fingerprint.clone(),
            licence: header.manifest.source.licence.clone(),
        };
        let config = model.config();
        let kv_cache = bytes_per_position(config.n_layers, config.attention()) * session.capacity() as u64;
        let memory = Memory { weights: artifact.data().as_slice().len(), kv_cache };
        Ok(Self { model, session, generation: None, parity: None, info, memory })
    }

    fn ids(&self, prompt: &str) -> Result<Vec<u32>, Failure> {
        Ok(match parse(prompt)? {
            Prompt::Messages { messages } => self.model.codec().encode_chat(&messages)?,
            Prompt::Text { text } => self.model.codec().encode(&text),
            Prompt::Ids { ids } => ids,
        })
    }
}

fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Failure> {
    serde_json::from_str(text).map_err(|error| Failure::new("bad-argument", error.to_string()))
}

fn json(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::new("bad-argument", error.to_string()))
}

fn no_answer() -> Failure {
    Failure::new("bad-argument", "no answer has been begun")
}
