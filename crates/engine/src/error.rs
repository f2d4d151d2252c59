//! What can go wrong in this crate: one variant per cause, each with the place, the value and what to do.

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of `lowbit-engine`. [`Error::code`] is stable and reaches TypeScript unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file, a tensor or the device.
    #[error(transparent)]
    Core(#[from] lowbit_core::Error),
    /// An error in what a file says.
    #[error("{file}: {error}")]
    File {
        /// The file's name as the caller gave it.
        file: String,
        /// What is wrong in it.
        error: Box<Self>,
    },
    /// The architecture is not one of [`crate::arch::ARCHS`].
    #[error("architecture {name} is not supported; supported: {known}")]
    Architecture {
        /// The name found.
        name: String,
        /// The names in the table, separated by commas.
        known: String,
    },
    /// A hyper-parameter that makes no sense or does not fit the others.
    #[error("configuration: {field}: {problem}")]
    Config {
        /// The hyper-parameter.
        field: &'static str,
        /// The value found and what was expected.
        problem: String,
    },
    /// A token that the model does not have.
    #[error(
        "token {id} lies outside the vocabulary of {vocab_size}; tokenizer and model do not belong together"
    )]
    Token {
        /// The token.
        id: u32,
        /// Tokens that the model has.
        vocab_size: usize,
    },
    /// More tokens than the KV cache has room for.
    #[error(
        "the prompt has {tokens} tokens and the context holds {context}; shorten the conversation or load the model with a larger context"
    )]
    ContextFull {
        /// Tokens of the whole prompt.
        tokens: usize,
        /// Positions in the KV cache.
        context: usize,
    },
    /// A prompt without a single token.
    #[error("the prompt is empty: it has no tokens; give it some text")]
    EmptyPrompt,
    /// An option of generation that has no meaning.
    #[error("{field}: {problem}")]
    Option {
        /// The option.
        field: &'static str,
        /// The value found and what was expected.
        problem: String,
    },
    /// A sampling parameter that has no meaning.
    #[error("sampling: {field} is {value}; expected {expected}")]
    Sampling {
        /// The parameter.
        field: &'static str,
        /// The value found.
        value: f64,
        /// The values that have a meaning.
        expected: &'static str,
    },
    /// Logits from which no token can be chosen.
    #[error("logits: {problem}; the model file or the device is defective")]
    Logits {
        /// What was found.
        problem: String,
    },
    /// A `tokenizer.json` that is defective or uses something that is not supported.
    #[error("tokenizer.json: {field}: {problem}")]
    Tokenizer {
        /// The path of the JSON field.
        field: String,
        /// The value found and what was expected.
        problem: String,
    },
    /// A chat template that does not parse, fails, or refuses the messages.
    #[error("chat template: {problem}")]
    Template {
        /// What happened, with the line of the template where it is known.
        problem: String,
    },
}

impl Error {
    /// Names the file whose contents are at fault, where the error does not name it yet.
    pub(crate) fn of(self, file: &str) -> Self {
        match self {
            Self::Config { field: "context", .. } | Self::File { .. } => self,
            Self::Core(lowbit_core::Error::Shape { ref what, .. }) if what.starts_with(file) => self,
            Self::Core(lowbit_core::Error::Shape { .. })
            | Self::Architecture { .. }
            | Self::Config { .. }
            | Self::Tokenizer { .. }
            | Self::Template { .. } => Self::File { file: file.to_owned(), error: Box::new(self) },
            _ => self,
        }
    }

    /// A short stable identifier of the cause.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Core(e) => e.code(),
            Self::File { error, .. } => error.code(),
            Self::Architecture { .. } => "unknown-architecture",
            Self::Config { .. } => "bad-config",
            Self::Token { .. } => "unknown-token",
            Self::ContextFull { .. } => "context-full",
            Self::EmptyPrompt => "empty-prompt",
            Self::Option { .. } => "bad-option",
            Self::Sampling { .. } => "bad-sampling",
            Self::Logits { .. } => "bad-logits",
            Self::Tokenizer { .. } => "bad-tokenizer",
            Self::Template { .. } => "bad-template",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Error;

    #[test]
    fn what_a_file_says_is_blamed_on_the_file() {
        let config = |field| Error::Config { field, problem: "is 0".to_owned() };
        let blamed = config("d_model").of("m.lowbit").of("m.lowbit");
        assert_eq!(blamed.to_string(), "m.lowbit: configuration: d_model: is 0");
        assert_eq!(blamed.code(), "bad-config");
        // This one is the user's.
        assert_eq!(config("context").of("m.lowbit").to_string(), "configuration: context: is 0");
    }
}
