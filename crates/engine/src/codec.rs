//! Text to tokens and back: the tokenizer, the chat template and the special tokens of a model.

use crate::arch::{ModelConfig, SpecialTokens};
use crate::sampler::Sampling;
use crate::template::{ChatTemplate, Message, RenderOptions};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result, SamplingOptions};
use lowbit_core::container::{Artifact, Header};

/// What a model needs to read and write text. It needs no device.
pub struct Codec {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    tokens: SpecialTokens,
    sampling: Sampling,
}

impl Codec {
    /// That of an artifact.
    ///
    /// # Errors
    /// When the configuration, the tokenizer or the template is defective.
    pub fn load(artifact: &Artifact) -> Result<Self> {
        let header = artifact.header();
        let tokenizer = header.manifest.tokenizer.as_ref().map(|name| artifact.document(name)).transpose()?;
        Self::of_header(header, tokenizer).map_err(|error| error.of(&header.file))
    }

    /// From the header of an artifact and the document that holds its tokenizer.
    pub(crate) fn of_header(header: &Header, tokenizer: Option<&[u8]>) -> Result<Self> {
        let manifest = &header.manifest;
        let tokens = ModelConfig::of(manifest)?.tokens;
        let tokenizer = tokenizer.ok_or_else(|| Error::Tokenizer {
            field: "manifest".to_owned(),
            problem: "the artifact holds no tokenizer; pack the model again".to_owned(),
        })?;
        let tokenizer = Tokenizer::from_json(tokenizer)?;
        let sampling = SamplingOptions::of_manifest(&manifest.sampling)?;
        Ok(Self { sampling, ..Self::new(tokenizer, manifest.chat_template.as_deref(), tokens)? })
    }

    /// From its parts; `template` is Jinja. Greedy unless a caller asks for something else.
    ///
    /// # Errors
    /// When the template does not parse.
    pub fn new(tokenizer: Tokenizer, template: Option<&str>, tokens: SpecialTokens) -> Result<Self> {
        let template = template.map(|source| ChatTemplate::new(source, &tokenizer, &tokens)).transpose()?;
        Ok(Self { tokenizer, template, tokens, sampling: Sampling::default() })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The tokens of plain text, after the begin-of-text token where the model wants one. Text that looks like a special
    /// token stays text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let bos = self.tokens.bos.filter(|_| self.tokens.add_bos);
        bos.into_iter().chain(self.tokenizer.encode(text, false)).collect()
    }

    /// Whether the model has a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// The tokens of a conversation that asks for the assistant's next message, by the model's chat template.
    ///
    /// # Errors
    /// When the model has no template or the template refuses the messages.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let template = self.template.as_ref().ok_or_else(|| Error::Template {
            problem: "the model has none; give it plain text to continue".to_owned(),
        })?;
        template.encode(&self.tokenizer, messages, RenderOptions::default())
    }

    /// How tokens are chosen when nothing is said: what the model's makers recommend, or greedy.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Whether `id` ends an answer.
    pub fn is_end(&self, id: u32) -> bool {
        self.tokens.eos.contains(&id)
    }
}
