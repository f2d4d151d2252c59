//! Chat templates: Jinja programs that turn a conversation into the text of a prompt.
//!
//! They run as in Hugging Face's `transformers`: blocks take their line break and indentation with them, strings have
//! Python's methods, `raise_exception`, `strftime_now` and `tojson` exist. A template is a program of unknown origin: it
//! can reach nothing but its arguments, and its work is bounded, with one exception: the interpreter counts no steps for the
//! items of lists that are added with `+`, so a source made for it can double a list until the memory is full.

mod date;
mod guard;
mod python;

use crate::arch::SpecialTokens;
use crate::tokenizer::{Tokenizer, unused_mark};
use crate::{Error, Result};
use date::Date;
use minijinja::{Environment, ErrorKind, Value, context, syntax::SyntaxConfig};
use std::borrow::Cow;
use std::time::Duration;

/// Steps of one rendering at most, besides those for the messages; a step is an operation or 64 bytes of text.
///
/// They also bound how deeply a template can nest values, and with it the stack.
const STEPS: u64 = 10_000;
/// Further steps for each message.
const STEPS_PER_MESSAGE: u64 = 500;
/// Further steps for each byte of a message, as one in so many bytes.
const BYTES_PER_STEP: usize = 8;
/// Calls of macros within macros at most.
const MAX_RECURSION: usize = 64;
/// Bytes of a template's source at most.
const MAX_SOURCE: usize = 1 << 20;
/// The name of the one template.
const NAME: &str = "chat template";
/// How the message of `raise_exception` begins.
const REFUSED: &str = "the template refuses the messages: ";

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

/// What a template is told besides the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenderOptions {
    /// Whether the prompt ends where the assistant's next message begins.
    pub add_generation_prompt: bool,
    /// The time since 1970 for templates that tell the model the date; UTC. `None`: there is no `strftime_now`, which
    /// most of them take into account.
    pub now: Option<Duration>,
}

impl Default for RenderOptions {
    /// Asks for the assistant's next message, without a date.
    fn default() -> Self {
        Self { add_generation_prompt: true, now: None }
    }
}

/// A compiled template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

impl ChatTemplate {
    /// `tokens` gives the template its `bos_token` and `eos_token`, as `tokenizer` spells them.
    ///
    /// # Errors
    /// When the source is no Jinja or longer than 1 MiB.
    pub fn new(source: &str, tokenizer: &Tokenizer, tokens: &SpecialTokens) -> Result<Self> {
        if source.len() > MAX_SOURCE {
            let problem = format!("it has {} bytes, expected at most {MAX_SOURCE}", source.len());
            return Err(Error::Template { problem });
        }
        let source = guard::prepare(source).map_err(|problem| Error::Template { problem })?;
        let mut environment = environment();
        environment.add_template_owned(NAME, source).map_err(error)?;
        let spelling =
            |id: Option<u32>| id.and_then(|id| tokenizer.id_to_token(id)).unwrap_or_default().to_owned();
        Ok(Self {
            environment,
            bos_token: spelling(tokens.bos),
            eos_token: spelling(tokens.eos.first().copied()),
        })
    }

    /// The text of the prompt. What the messages spell stands in it as it is: to make tokens of it use
    /// [`ChatTemplate::encode`].
    ///
    /// # Errors
    /// When the template fails, refuses the messages, or does not end.
    pub fn render(&self, messages: &[Message], options: RenderOptions) -> Result<String> {
        let bytes: usize = messages.iter().map(|m| m.role.len() + m.content.len()).sum();
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(
            STEPS + STEPS_PER_MESSAGE * messages.len() as u64 + (bytes / BYTES_PER_STEP) as u64,
        ));
        let template = environment.get_template(NAME).map_err(error)?;
        let message = |m: &Message| context! { role => m.role.as_str(), content => m.content.as_str() };
        let values = context! {
            messages => messages.iter().map(message).collect::<Vec<Value>>(),
            add_generation_prompt => options.add_generation_prompt,
            bos_token => self.bos_token.as_str(),
            eos_token => self.eos_token.as_str(),
            strftime_now => options.now.map_or(Value::UNDEFINED, strftime_now),
        };
        template.render(values).map_err(error)
    }

    /// The tokens of the prompt. Only the template writes special tokens: one that a message spells is text.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: RenderOptions,
    ) -> Result<Vec<u32>> {
        let source = self.environment.get_template(NAME).map_err(error)?;
        let texts = messages.iter().flat_map(|m| [&m.role[..], &m.content[..]]).chain([source.source()]);
        let mark = unused_mark(texts).ok_or_else(|| Error::Template {
            problem: "the messages hold every character from U+FDD0 to U+FDEF, expected at most 31 of them"
                .to_owned(),
        })?;
        let guard = |text| tokenizer.guard(text, mark).into_owned();
        let guarded: Vec<Message> =
            messages.iter().map(|m| Message::new(guard(&m.role), guard(&m.content))).collect();
        Ok(tokenizer.encode_guarded(&self.render(&guarded, options)?, mark))
    }
}

/// Jinja as templates expect it.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_recursion_limit(MAX_RECURSION);
    environment.set_formatter(python::format);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", python::to_json);
    environment.add_function("raise_exception", |message: Cow<'_, str>| -> std::result::Result<Value, _> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, format!("{REFUSED}{message}")))
    });
    environment
}

fn strftime_now(now: Duration) -> Value {
    let date = Date::at(now);
    Value::from_function(move |format: Cow<'_, str>| {
        date.format(&format).map_err(|problem| minijinja::Error::new(ErrorKind::InvalidOperation, problem))
    })
}

fn error(e: minijinja::Error) -> Error {
    let detail = e.detail().unwrap_or_default();
    let place = e.line().map(|line| format!("line {line}: ")).unwrap_or_default();
    let problem = match e.kind() {
        ErrorKind::OutOfFuel => {
            "it did not end after the steps that a conversation of this length may take".to_owned()
        }
        ErrorKind::InvalidOperation if detail.starts_with(REFUSED) => detail.to_owned(),
        kind if detail.is_empty() => format!("{place}{kind}"),
        kind => format!("{place}{kind}: {detail}"),
    };
    Error::Template { problem }
}

#[cfg(test)]
mod tests;
