//! A model and its session, whatever the device.

use lowbit_core::backend::Backend;
use lowbit_engine::kv_cache::bytes_per_position;
use lowbit_engine::{Codec, Event, GenerateOptions, Generation, LayerTest, Model, Result, Session};
use std::task::Poll;

/// What the page asks of a model. What is pending is asked for again when the device has more.
pub trait Runner {
    /// Tokenizer, chat template and special tokens.
    fn codec(&self) -> &Codec;
    /// Positions of the session.
    fn context(&self) -> usize;
    /// Bytes of the KV cache.
    fn kv_bytes(&self) -> u64;
    /// The tokens whose keys and values are in the cache.
    fn tokens(&self) -> &[u32];
    /// Forgets the session's tokens, and what is pending.
    fn clear(&mut self);
    /// Begins an answer.
    fn begin(&mut self, prompt: Vec<u32>, options: GenerateOptions) -> Result<Generation>;
    /// One step of an answer.
    fn step(&mut self, generation: &mut Generation) -> Poll<Result<Event>>;
    /// Runs tokens after those of the session; `logits` receives those of the last one.
    fn forward(&mut self, ids: &[u32], logits: &mut Vec<f32>) -> Poll<Result<()>>;
    /// Goes on with a test of the device, in the empty session.
    fn check(&mut self, test: &mut LayerTest) -> Poll<Result<()>>;
}

/// A model on the device of `B`.
pub struct On<B: Backend> {
    model: Model<B>,
    session: Session<B>,
}

impl<B: Backend> On<B> {
    /// The model with an empty session.
    pub fn new(model: Model<B>) -> Result<Self> {
        let session = model.session()?;
        Ok(Self { model, session })
    }
}

impl<B: Backend> Runner for On<B> {
    fn codec(&self) -> &Codec {
        self.model.codec()
    }

    fn context(&self) -> usize {
        self.model.context()
    }

    fn kv_bytes(&self) -> u64 {
        bytes_per_position(self.model.config().attention()) * self.session.capacity() as u64
    }

    fn tokens(&self) -> &[u32] {
        self.session.tokens()
    }

    fn clear(&mut self) {
        self.session.clear();
    }

    fn begin(&mut self, prompt: Vec<u32>, options: GenerateOptions) -> Result<Generation> {
        Generation::new(&self.model, &mut self.session, prompt, options)
    }

    fn step(&mut self, generation: &mut Generation) -> Poll<Result<Event>> {
        generation.poll(&mut self.model, &mut self.session)
    }

    fn forward(&mut self, ids: &[u32], logits: &mut Vec<f32>) -> Poll<Result<()>> {
        let last = ids.len().saturating_sub(1);
        self.model.poll(&mut self.session, ids, last..ids.len(), logits)
    }

    fn check(&mut self, test: &mut LayerTest) -> Poll<Result<()>> {
        test.poll(&mut self.model, &mut self.session)
    }
}
