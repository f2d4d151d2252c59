//! A model that answers.

use crate::artifact::Artifact;
use crate::error::Failure;
use crate::gpu::Page;
use crate::runner::{On, Runner};
use lowbit_core::activation::Activations;
use lowbit_core::backend::CpuBackend;
use lowbit_core::container::Header;
use lowbit_core::simd::Isa;
use lowbit_engine::generate::DEFAULT_CHUNK;
use lowbit_engine::sampler::Sampling;
use lowbit_engine::{
    GenerateOptions, Generation, LayerTest, LoadOptions, Message, Model, Upload, logits_sha256,
};
use lowbit_gpu::{Choice, GpuBackend};
use serde::{Deserialize, Serialize};
use std::task::Poll;
use wasm_bindgen::prelude::*;

/// A model, its one session, and the answer in the making.
#[wasm_bindgen]
pub struct Engine {
    runner: Box<dyn Runner>,
    generation: Option<Generation>,
    parity: Option<Parity>,
    /// Tokens of a session on another device, which are still to be run here.
    replay: Vec<u32>,
    /// What is left of the test of the device.
    test: Option<LayerTest>,
    info: Info,
    memory: Memory,
}

/// How a model is started.
#[derive(Deserialize)]
pub struct StartOptions {
    pub threads: usize,
    /// Instead of what the model asks for.
    pub activations: Option<Activations>,
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
    #[serde(flatten)]
    how: How,
    fingerprint: String,
    licence: String,
}

/// What a model runs on.
#[derive(Serialize)]
struct How {
    device: &'static str,
    isa: &'static str,
    /// The variants of the shaders.
    kernels: String,
    threads: usize,
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
    chunk: usize,
}

#[wasm_bindgen]
impl Engine {
    /// Builds the model of a whole artifact on the CPU. `options` is JSON: `{threads, activations?, context?}`.
    pub fn start(artifact: Artifact, options: &str) -> Result<Engine, JsValue> {
        Ok(Self::on_cpu(artifact, &parse(options)?)?)
    }

    /// Takes over the answer in the making and the session of an engine whose device was lost: its tokens are run again
    /// before the next step.
    pub fn adopt(&mut self, mut other: Engine) {
        self.replay = if other.replay.is_empty() { other.runner.tokens().to_vec() } else { other.replay };
        self.runner.clear();
        self.generation = other.generation.take();
        self.parity = other.parity.take();
    }

    /// Compares the first layer with the CPU. Returns whether that is done; if not, it goes on when the device has what it
    /// was asked for.
    pub fn check(&mut self) -> Result<bool, JsValue> {
        if let Some(test) = &mut self.test {
            match self.runner.check(test) {
                Poll::Ready(result) => result.map_err(Failure::from)?,
                Poll::Pending => return Ok(false),
            }
        }
        self.test = None;
        Ok(true)
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
        self.runner.codec().tokenizer().encode(text, false)
    }

    /// Begins an answer. `prompt` is JSON: `{messages}`, `{text}` or `{ids}`; `options` is that of [`GenerateOptions`].
    pub fn begin(&mut self, prompt: &str, options: &str) -> Result<(), JsValue> {
        let ids = self.ids(prompt)?;
        let options: GenerateOptions = parse(options)?;
        // Another prompt: what it shares with the last one is run as a part of it.
        self.replay.clear();
        self.generation = Some(self.runner.begin(ids, options).map_err(Failure::from)?);
        Ok(())
    }

    /// Runs one step of the answer and returns what it did as `{type, ...}`, in JSON; nothing while the device works.
    pub fn step(&mut self) -> Result<Option<String>, JsValue> {
        if self.replay_step()?.is_pending() {
            return Ok(None);
        }
        let generation = self.generation.as_mut().ok_or_else(no_answer)?;
        match self.runner.step(generation).map_err(Failure::from)? {
            Poll::Ready(event) => Ok(Some(json(&event)?)),
            Poll::Pending => Ok(None),
        }
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
        if ids.is_empty() || positions > self.runner.context() {
            let problem = format!("{positions} positions, expected 1 to {}", self.runner.context());
            return Err(Failure::new("bad-argument", problem).into());
        }
        self.runner.clear();
        self.replay.clear();
        let ids = ids.iter().copied().cycle().take(positions).collect();
        self.parity = Some(Parity { ids, chunk: chunk.max(1) });
        Ok(positions)
    }

    /// Computes the next chunk; after the last one, returns SHA-256 of the logits. Nothing before, or while the device
    /// works.
    #[wasm_bindgen(js_name = parityStep)]
    pub fn parity_step(&mut self) -> Result<Option<String>, JsValue> {
        if self.replay_step()?.is_pending() {
            return Ok(None);
        }
        let Parity { ids, chunk } = self.parity.as_ref().ok_or_else(no_answer)?;
        let done = self.runner.tokens().len();
        let end = ids.len().min(done + chunk);
        let mut logits = Vec::new();
        if self.runner.forward(&ids[done..end], &mut logits).map_err(Failure::from)?.is_pending()
            || end < ids.len()
        {
            return Ok(None);
        }
        self.parity = None;
        Ok(Some(logits_sha256(&logits)))
    }
}

impl Engine {
    fn on_cpu(artifact: Artifact, options: &StartOptions) -> Result<Self, Failure> {
        let artifact = artifact.whole()?;
        let header = artifact.header();
        let activations = options.activations.unwrap_or(header.manifest.activations);
        let isa = Isa::best();
        let backend = CpuBackend::new(isa, options.threads, activations)?;
        let how = How { device: "cpu", isa: isa.name(), kernels: String::new(), threads: backend.threads() };
        let model = Model::load(&artifact, backend, LoadOptions { context: options.context })?;
        Ok(Self::new(Box::new(On::new(model)?), header, activations, how))
    }

    /// The model of what has been uploaded. `reference` are the activations with which the CPU computes as the GPU does.
    pub(crate) fn on_gpu(
        mut upload: Upload<GpuBackend<Page>>,
        options: &StartOptions,
        reference: Activations,
        choice: &Choice,
    ) -> Result<Self, Failure> {
        let header = upload.header().clone();
        let activations = options.activations.unwrap_or(header.manifest.activations);
        let how = How { device: "webgpu", isa: "wgsl", kernels: choice.to_string(), threads: 1 };
        let test = upload.layer_test(reference);
        let model = upload.finish(LoadOptions { context: options.context })?;
        let engine = Self::new(Box::new(On::new(model)?), &header, activations, how);
        Ok(Self { test: Some(test), ..engine })
    }

    fn new(runner: Box<dyn Runner>, header: &Header, activations: Activations, how: How) -> Self {
        let info = Info {
            name: match header.manifest.source.file.as_str() {
                "" => header.file.clone(),
                name => name.to_owned(),
            },
            architecture: header.manifest.architecture.clone(),
            context: runner.context(),
            activations,
            sampling: runner.codec().sampling().clone(),
            how,
            fingerprint: header.fingerprint.clone(),
            licence: header.manifest.source.licence.clone(),
        };
        let memory = Memory { weights: header.data_len, kv_cache: runner.kv_bytes() };
        Self { runner, generation: None, parity: None, replay: Vec::new(), test: None, info, memory }
    }

    /// Runs some of the tokens that are still to be run again; pending while there are more.
    fn replay_step(&mut self) -> Result<Poll<()>, Failure> {
        let done = self.runner.tokens().len();
        if done >= self.replay.len() {
            self.replay.clear();
            return Ok(Poll::Ready(()));
        }
        let end = self.replay.len().min(done + DEFAULT_CHUNK);
        let _ = self.runner.forward(&self.replay[done..end], &mut Vec::new())?;
        Ok(Poll::Pending)
    }

    fn ids(&self, prompt: &str) -> Result<Vec<u32>, Failure> {
        let codec = self.runner.codec();
        Ok(match parse(prompt)? {
            Prompt::Messages { messages } => codec.encode_chat(&messages)?,
            Prompt::Text { text } => codec.encode(&text),
            Prompt::Ids { ids } => ids,
        })
    }
}

/// Reads JSON.
pub fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Failure> {
    serde_json::from_str(text).map_err(|error| Failure::new("bad-argument", error.to_string()))
}

fn json(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::new("bad-argument", error.to_string()))
}

fn no_answer() -> Failure {
    Failure::new("bad-argument", "no answer has been begun")
}
