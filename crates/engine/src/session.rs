//! A conversation: which tokens' keys and values are in the cache.

use crate::Result;
use crate::kv_cache::KvCache;
use lowbit_core::backend::Backend;

/// A KV cache and the tokens whose keys and values it holds.
///
/// A prompt that begins with the same tokens as the last one costs only the tokens after them. A token counts as cached
/// only when its forward pass has ended, so an answer may be given up at any moment and the session goes on.
pub struct Session<B: Backend> {
    pub(crate) cache: KvCache<B>,
    pub(crate) tokens: Vec<u32>,
    /// Submitted and not collected.
    pub(crate) running: Vec<u32>,
}

impl<B: Backend> Session<B> {
    /// An empty session.
    pub(crate) fn new(cache: KvCache<B>) -> Self {
        Self { cache, tokens: Vec::new(), running: Vec::new() }
    }

    /// What was submitted has ended: its tokens are in the cache, unless it failed.
    pub(crate) fn ran(&mut self, result: lowbit_core::Result<()>) -> Result<()> {
        let ran = std::mem::take(&mut self.running);
        result?;
        self.tokens.extend(ran);
        Ok(())
    }

    /// The tokens in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Positions there is room for.
    pub fn capacity(&self) -> usize {
        self.cache.capacity()
    }

    /// Positions that are free.
    pub fn free(&self) -> usize {
        self.capacity() - self.tokens.len()
    }

    /// Forgets everything; the memory is kept.
    pub fn clear(&mut self) {
        self.running.clear();
        self.tokens.clear();
    }

    /// Keeps what `prompt` and the cache have in common from the start, but not the prompt's last token (its logits are
    /// wanted), and forgets the rest. Returns the number of tokens kept.
    pub fn rewind_to(&mut self, prompt: &[u32]) -> usize {
        let wanted = &prompt[..prompt.len().saturating_sub(1)];
        self.running.clear();
        let common = wanted.iter().zip(&self.tokens).take_while(|(a, b)| a == b).count();
        self.tokens.truncate(common);
        common
    }
}
