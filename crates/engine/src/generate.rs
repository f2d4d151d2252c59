//! One answer as a step machine: every step is short, and between two steps the caller may do anything, also stop.

use crate::sampler::Sampler;
use crate::stop::StopStrings;
use crate::utf8::Utf8Gate;
use crate::{Error, Model, Result, SamplingOptions, Session};
use lowbit_core::backend::{Backend, MAX_TOP_K, at_once};
use lowbit_core::candidates::Candidate;
use std::task::{Poll, ready};
use web_time::{Duration, Instant};

/// How an answer is made.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct GenerateOptions {
    /// The answer ends after this many tokens; `None`: when the model ends it or the context is full.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen; what is left out is the model's default.
    pub sampling: SamplingOptions,
    /// The answer ends before any of these.
    pub stop: Vec<String>,
    /// Prompt tokens that are run in one step, at least 1. Smaller: an abort is quicker. It does not change the answer.
    pub chunk: usize,
    /// Goes on after the model's end-of-answer token, which then appears as a token like any other.
    pub ignore_eos: bool,
}

/// A chunk large enough for the matrix kernels and small enough for a quick abort.
pub const DEFAULT_CHUNK: usize = 128;

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_tokens: None,
            sampling: SamplingOptions::default(),
            stop: Vec::new(),
            chunk: DEFAULT_CHUNK,
            ignore_eos: false,
        }
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FinishReason {
    /// The model ended it.
    Stop,
    /// A stop string appeared.
    StopString,
    /// The number of tokens asked for was reached.
    Length,
    /// The KV cache is full.
    Context,
    /// The caller ended it.
    Aborted,
}

/// What a step did.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Event {
    /// A chunk of the prompt was run.
    Prefill {
        /// Prompt tokens in the cache, those reused included.
        done: usize,
        /// Prompt tokens.
        total: usize,
    },
    /// A token was chosen.
    Token {
        /// The token.
        id: u32,
        /// The text that is now certain: whole characters, and no beginning of a stop string. May be empty.
        text: String,
    },
    /// The answer has ended.
    Done {
        /// Why.
        reason: FinishReason,
        /// Text that had been held back.
        text: String,
    },
}

/// What an answer cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were in the cache already.
    pub reused_tokens: usize,
    /// Tokens of the answer.
    pub generated_tokens: usize,
    /// Seconds spent on the prompt.
    pub prefill_s: f64,
    /// Seconds spent on the answer.
    pub decode_s: f64,
    /// Prompt tokens run per second; 0 when there were none.
    pub prefill_tok_s: f64,
    /// Forward passes of the answer per second (the first token comes from the prompt's pass); 0 when there was none.
    pub decode_tok_s: f64,
}

/// What the next token is chosen from.
enum Scores {
    /// `[vocab_size]`
    Logits(Vec<f32>),
    /// So many of the largest, which are all that the choice depends on.
    TopK(usize, Vec<Candidate>),
}

impl Scores {
    /// Nothing yet, of what the sampler needs.
    fn new(sampler: &Sampler, vocab_size: usize) -> Self {
        match sampler.needs(vocab_size) {
            Some(k) if k <= MAX_TOP_K => Self::TopK(k, Vec::new()),
            _ => Self::Logits(Vec::new()),
        }
    }
}

/// An answer in the making. Holds neither model nor session: both are lent to every step, always the same ones.
pub struct Generation {
    prompt: Vec<u32>,
    reused: usize,
    options: GenerateOptions,
    sampler: Sampler,
    stop: StopStrings,
    utf8: Utf8Gate,
    scores: Scores,
    /// Chosen, but not yet run.
    pending: Option<u32>,
    generated: Vec<u32>,
    /// Forward passes after the prompt's.
    passes: usize,
    finished: Option<FinishReason>,
    /// When the step began that is not over.
    step_start: Option<Instant>,
    prefill: Duration,
    decode: Duration,
}

impl Generation {
    /// Begins an answer to `prompt` in `session`, which keeps what it has in common with it.
    ///
    /// # Errors
    /// When the prompt is empty or longer than the context, holds a token that the model does not have, or an option
    /// has no meaning. A prompt that fills the context gets one token.
    pub fn new<B: Backend>(
        model: &Model<B>,
        session: &mut Session<B>,
        prompt: Vec<u32>,
        options: GenerateOptions,
    ) -> Result<Self> {
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if prompt.len() > session.capacity() {
            return Err(Error::ContextFull { tokens: prompt.len(), context: session.capacity() });
        }
        let vocab_size = model.config().vocab_size;
        if let Some(&id) = prompt.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(Error::Token { id, vocab_size });
        }
        if options.chunk == 0 {
            return Err(Error::Option { field: "chunk", problem: "is 0, expected at least 1".to_owned() });
        }
        let mut sampler = Sampler::new(options.sampling.or(model.codec().sampling()))?;
        for &id in &prompt {
            sampler.accept(id);
        }
        Ok(Self {
            reused: session.rewind_to(&prompt),
            stop: StopStrings::new(options.stop.clone())?,
            prompt,
            options,
            scores: Scores::new(&sampler, vocab_size),
            sampler,
            utf8: Utf8Gate::default(),
            pending: None,
            generated: Vec::new(),
            passes: 0,
            finished: None,
            step_start: None,
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
        })
    }

    /// Runs one chunk of the prompt or chooses one token. After [`Event::Done`] every step gives the same reason again.
    /// For devices that do not work in the background; see [`Self::poll`].
    pub fn step<B: Backend>(&mut self, model: &mut Model<B>, session: &mut Session<B>) -> Result<Event> {
        at_once(self.poll(model, session))
    }

    /// A step as in [`Self::step`]; pending while the device works, and then to be called again. A step that fails may
    /// be tried again, also with the session's tokens on another device.
    pub fn poll<B: Backend>(
        &mut self,
        model: &mut Model<B>,
        session: &mut Session<B>,
    ) -> Poll<Result<Event>> {
        if let Some(reason) = self.finished {
            return Poll::Ready(Ok(Event::Done { reason, text: String::new() }));
        }
        let start = *self.step_start.get_or_insert_with(Instant::now);
        let is_prefill = session.tokens().len() < self.prompt.len();
        let event =
            if is_prefill { self.run_chunk(model, session) } else { self.choose_token(model, session) };
        if event.is_ready() {
            let time = if is_prefill { &mut self.prefill } else { &mut self.decode };
            *time += start.elapsed();
            self.step_start = None;
        }
        event
    }

    /// Ends the answer now. The session keeps what has been run.
    pub fn abort(&mut self) -> Event {
        let reason = *self.finished.get_or_insert(FinishReason::Aborted);
        Event::Done { reason, text: self.rest() }
    }

    /// The tokens of the answer so far.
    pub fn tokens(&self) -> &[u32] {
        &self.generated
    }

    /// Why the answer ended, once it has.
    pub fn finished(&self) -> Option<FinishReason> {
        self.finished
    }

    /// What the answer has cost so far.
    pub fn stats(&self) -> Stats {
        let rate = |tokens: usize, time: Duration| match time.as_secs_f64() {
            s if s > 0.0 => tokens as f64 / s,
            _ => 0.0,
        };
        let generated = self.generated.len();
        Stats {
            prompt_tokens: self.prompt.len(),
            reused_tokens: self.reused,
            generated_tokens: generated,
            prefill_s: self.prefill.as_secs_f64(),
            decode_s: self.decode.as_secs_f64(),
            prefill_tok_s: rate(self.prompt.len() - self.reused, self.prefill),
            decode_tok_s: rate(self.passes, self.decode),
        }
    }

    /// One forward pass, with what the sampler needs of the logits of the last token, if that is `wanted`.
    fn pass<B: Backend>(
        &mut self,
        model: &mut Model<B>,
        session: &mut Session<B>,
        ids: &[u32],
        wanted: bool,
    ) -> Poll<Result<()>> {
        match &mut self.scores {
            _ if !wanted => model.poll(session, ids, 0..0, &mut Vec::new()),
            Scores::Logits(logits) => model.poll(session, ids, ids.len() - 1..ids.len(), logits),
            Scores::TopK(k, top) => model.poll_top_k(session, ids, *k, top),
        }
    }

    fn run_chunk<B: Backend>(
        &mut self,
        model: &mut Model<B>,
        session: &mut Session<B>,
    ) -> Poll<Result<Event>> {
        let total = self.prompt.len();
        let start = session.tokens().len();
        let end = total.min(start + self.options.chunk);
        let ids = self.prompt[start..end].to_vec();
        ready!(self.pass(model, session, &ids, end == total))?;
        Poll::Ready(Ok(Event::Prefill { done: end, total }))
    }

    fn choose_token<B: Backend>(
        &mut self,
        model: &mut Model<B>,
        session: &mut Session<B>,
    ) -> Poll<Result<Event>> {
        if self.options.max_tokens.is_some_and(|max| self.generated.len() >= max) {
            return Poll::Ready(Ok(self.finish(FinishReason::Length)));
        }
        if let Some(id) = self.pending {
            if session.free() == 0 {
                return Poll::Ready(Ok(self.finish(FinishReason::Context)));
            }
            ready!(self.pass(model, session, &[id], true))?;
            self.pending = None;
            self.passes += 1;
        }
        Poll::Ready(self.choose(model))
    }

    /// Chooses a token.
    fn choose<B: Backend>(&mut self, model: &Model<B>) -> Result<Event> {
        let id = match &self.scores {
            Scores::Logits(logits) => self.sampler.sample(logits)?,
            Scores::TopK(_, top) => self.sampler.sample_top(top)?,
        };
        self.sampler.accept(id);
        if !self.options.ignore_eos && model.codec().is_end(id) {
            return Ok(self.finish(FinishReason::Stop));
        }
        self.generated.push(id);
        self.pending = Some(id);
        let text = self.utf8.push(model.codec().tokenizer().token_bytes(id));
        let (text, stopped) = self.stop.push(&text);
        if stopped {
            self.finished = Some(FinishReason::StopString);
            return Ok(Event::Done { reason: FinishReason::StopString, text });
        }
        Ok(Event::Token { id, text })
    }

    fn finish(&mut self, reason: FinishReason) -> Event {
        self.finished = Some(reason);
        Event::Done { reason, text: self.rest() }
    }

    /// Text held back, at the end of the answer.
    fn rest(&mut self) -> String {
        let rest = self.utf8.finish();
        let (mut text, stopped) = self.stop.push(&rest);
        if !stopped {
            text.push_str(&self.stop.finish());
        }
        text
    }
}

/// SHA-256, in hexadecimal, of logits: each f32 as four little-endian bytes, in the order of the vocabulary.
/// Equal hashes on two machines mean equal bits.
pub fn logits_sha256(logits: &[f32]) -> String {
    let bytes: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
    lowbit_core::container::sha256_hex(&bytes)
}
