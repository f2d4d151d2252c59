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
}

impl Error {
    /// A short stable identifier of the cause.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Core(e) => e.code(),
            Self::Architecture { .. } => "unknown-architecture",
            Self::Config { .. } => "bad-config",
            Self::Token { .. } => "unknown-token",
            Self::ContextFull { .. } => "context-full",
        }
    }
}
