//! Chat templates: Jinja programs that turn a conversation into the text of a prompt.

use crate::arch::SpecialTokens;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use minijinja::{Environment, context};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// A compiled template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

impl ChatTemplate {
    /// # Errors
    /// When the source is no Jinja.
    pub fn new(source: &str, tokenizer: &Tokenizer, tokens: &SpecialTokens) -> Result<Self> {
        let mut environment = Environment::new();
        environment.add_template_owned("chat", source.to_owned()).map_err(error)?;
        let spelling =
            |id: Option<u32>| id.and_then(|id| tokenizer.id_to_token(id)).unwrap_or_default().to_owned();
        Ok(Self {
            environment,
            bos_token: spelling(tokens.bos),
            eos_token: spelling(tokens.eos.first().copied()),
        })
    }

    /// The prompt that asks for the assistant's next message.
    ///
    /// # Errors
    /// When the template fails or refuses the messages.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let template = self.environment.get_template("chat").map_err(error)?;
        let message = |m: &Message| context! { role => m.role.as_str(), content => m.content.as_str() };
        let values = context! {
            messages => messages.iter().map(message).collect::<Vec<_>>(),
            add_generation_prompt => true,
            bos_token => self.bos_token.as_str(),
            eos_token => self.eos_token.as_str(),
        };
        template.render(values).map_err(error)
    }
}

fn error(e: minijinja::Error) -> Error {
    Error::Template { problem: format!("{e:#}") }
}
