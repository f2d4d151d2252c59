//! A model ready to talk: weights on a device, tokenizer and chat template.

use crate::Message;
use crate::arch::{ModelConfig, Observer, Transformer, Wanted, Weights};
use crate::codec::Codec;
use crate::kv_cache::{KvCache, bytes_per_position};
use crate::{Error, GenerateOptions, Generation, Result, Session};
use lowbit_core::backend::{Backend, at_once};
use lowbit_core::candidates::Candidate;
use lowbit_core::container::{Artifact, Header};
use std::ops::Range;
use std::task::Poll;

/// How a model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Positions of a session; `None`: what the model was trained for, but at most [`DEFAULT_CONTEXT`] and
    /// [`DEFAULT_KV_BYTES`].
    pub context: Option<usize>,
}

/// The longest context that is not asked for.
pub const DEFAULT_CONTEXT: usize = 2048;
/// The largest KV cache that is not asked for, in bytes.
pub const DEFAULT_KV_BYTES: u64 = 512 << 20;
/// The largest KV cache that can be asked for, in bytes.
const MAX_KV_BYTES: u64 = if cfg!(target_pointer_width = "32") { 2 << 30 } else { 1 << 40 };

/// What a model consists of.
pub struct Parts<'a, W> {
    /// The hyper-parameters.
    pub config: ModelConfig,
    /// The tensors.
    pub weights: &'a W,
    /// Tokenizer, chat template and special tokens.
    pub codec: Codec,
}

/// A model on a device.
pub struct Model<B: Backend> {
    backend: B,
    transformer: Transformer<B>,
    codec: Codec,
    context: usize,
}

impl<B: Backend> Model<B> {
    /// Moves the weights of an artifact to the device.
    ///
    /// # Errors
    /// When the manifest, a tensor, the tokenizer or the template is defective, or the context does not fit the model.
    pub fn load(artifact: &Artifact, backend: B, options: LoadOptions) -> Result<Self> {
        let header = artifact.header();
        let tokenizer = header.manifest.tokenizer.as_ref().map(|name| artifact.document(name)).transpose()?;
        Self::of_header(header, tokenizer, artifact, backend, options)
    }

    /// A model from the header of its artifact, its tokenizer and its tensors; errors as in [`Model::load`].
    pub fn of_header<W: Weights<B>>(
        header: &Header,
        tokenizer: Option<&[u8]>,
        weights: &W,
        backend: B,
        options: LoadOptions,
    ) -> Result<Self> {
        let parts = || {
            let config = ModelConfig::of(&header.manifest)?;
            Ok(Parts { codec: Codec::of_header(header, tokenizer)?, weights, config })
        };
        let model = parts().and_then(|parts| Self::assemble(parts, backend, options));
        model.map_err(|error| error.of(&header.file))
    }

    /// A model from its parts; errors as in [`Model::load`].
    pub fn assemble<W: Weights<B>>(parts: Parts<'_, W>, backend: B, options: LoadOptions) -> Result<Self> {
        let Parts { config, weights, codec } = parts;
        config.validate()?;
        let tokens = codec.tokenizer().vocab_size();
        if tokens > config.vocab_size {
            return Err(Error::Config {
                field: "vocab_size",
                problem: format!(
                    "is {}, but the tokenizer has {tokens} tokens; pack the model again",
                    config.vocab_size
                ),
            });
        }
        let context = choose_context(&config, options.context)?;
        let transformer = Transformer::load(config, weights, &backend, context)?;
        Ok(Self { backend, transformer, codec, context })
    }

    /// The hyper-parameters.
    pub fn config(&self) -> &ModelConfig {
        self.transformer.config()
    }

    /// Tokenizer, chat template and special tokens.
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// The device.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Positions of a session.
    pub fn context(&self) -> usize {
        self.context
    }

    /// An empty session with room for [`Model::context`] positions.
    pub fn session(&self) -> Result<Session<B>> {
        let config = self.config();
        let cache = KvCache::new(&self.backend, config.attention(), self.context)?;
        Ok(Session::new(cache))
    }

    /// Begins an answer to `messages`; see [`Generation::new`].
    pub fn chat(
        &self,
        session: &mut Session<B>,
        messages: &[Message],
        options: GenerateOptions,
    ) -> Result<Generation> {
        Generation::new(self, session, self.codec.encode_chat(messages)?, options)
    }

    /// Runs `ids` after the tokens of `session` and adds them to it. `logits` receives the logits of the tokens `wanted`
    /// (an index range into `ids`), `[wanted.len()][vocab_size]`; `observer` sees every layer's result.
    ///
    /// When this fails the session is as it was before.
    pub fn run(
        &mut self,
        session: &mut Session<B>,
        ids: &[u32],
        wanted: Range<usize>,
        logits: &mut Vec<f32>,
        observer: Option<Observer<'_>>,
    ) -> Result<()> {
        self.submit(session, ids, wanted.into(), observer)?;
        at_once(self.collect(session, logits))
    }

    /// What [`Self::run`] does, on a device that may work in the background: pending until that is done, and to be called
    /// again with the same operands. Until then the tokens are not part of the session.
    pub fn poll(
        &mut self,
        session: &mut Session<B>,
        ids: &[u32],
        wanted: Range<usize>,
        logits: &mut Vec<f32>,
    ) -> Poll<Result<()>> {
        if session.running.is_empty() {
            self.submit(session, ids, wanted.into(), None)?;
        }
        self.collect(session, logits)
    }

    /// As [`Self::poll`], for the `k` largest logits of the last of `ids`, in [`Candidate::order`]; at most
    /// [`MAX_TOP_K`](lowbit_core::backend::MAX_TOP_K). A device may leave the others where they are.
    pub fn poll_top_k(
        &mut self,
        session: &mut Session<B>,
        ids: &[u32],
        k: usize,
        top: &mut Vec<Candidate>,
    ) -> Poll<Result<()>> {
        if session.running.is_empty() {
            self.submit(session, ids, Wanted::TopK(k), None)?;
        }
        self.backend.take_top_k(k, top).map(|result| session.ran(result))
    }

    /// Asks the device for the residual stream of `ids` after some layers; see [`Transformer::residual`]. The session's tokens
    /// are forgotten.
    pub(crate) fn residual(&mut self, session: &mut Session<B>, ids: &[u32], layers: usize) -> Result<()> {
        session.clear();
        self.transformer.residual(&mut self.backend, &mut session.cache, ids, layers)
    }

    /// What [`Self::residual`] has asked for.
    pub(crate) fn take_residual(&mut self, values: &mut Vec<f32>) -> Poll<Result<()>> {
        self.backend.take(values).map_err(Error::from)
    }

    fn submit(
        &mut self,
        session: &mut Session<B>,
        ids: &[u32],
        wanted: Wanted,
        observer: Option<Observer<'_>>,
    ) -> Result<()> {
        let pos = session.tokens.len();
        session.running.clear();
        self.transformer.forward(&mut self.backend, &mut session.cache, ids, pos, wanted, observer)?;
        session.running.extend_from_slice(ids);
        Ok(())
    }

    fn collect(&mut self, session: &mut Session<B>, logits: &mut Vec<f32>) -> Poll<Result<()>> {
        self.backend.take(logits).map(|result| session.ran(result))
    }
}

fn choose_context(config: &ModelConfig, wanted: Option<usize>) -> Result<usize> {
    let error = |problem| Err(Error::Config { field: "context", problem });
    let per_position = bytes_per_position(config.attention());
    let most = |bytes: u64| usize::try_from(bytes / per_position).unwrap_or(usize::MAX);
    match wanted {
        None => Ok(config.context_length.min(DEFAULT_CONTEXT).min(most(DEFAULT_KV_BYTES)).max(1)),
        Some(0) => error("is 0, expected at least 1".to_owned()),
        Some(n) if n > config.context_length => {
            error(format!("is {n}, but the model was trained for {}", config.context_length))
        }
        Some(n) if n > most(MAX_KV_BYTES) => {
            error(format!("is {n}, which takes more than {MAX_KV_BYTES} bytes of memory"))
        }
        Some(n) => Ok(n),
    }
}
