//! What the command line reports: one line on stderr, and with `--json` an object on stdout.

use std::path::Path;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Engine(#[from] lowbit_engine::Error),
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    /// The reader of our output is gone: not worth a word.
    #[error("the output was closed")]
    BrokenPipe,
    #[error("{0}")]
    Usage(String),
    #[error("{model} cannot be fetched: {problem}")]
    Fetch { model: &'static str, problem: String },
    #[error("{path}: {problem}")]
    Reference { path: String, problem: String },
    /// Each has been shown when it was asked.
    #[error("without an answer: {0} questions")]
    Unanswered(usize),
    /// A comparison ran well and found a difference.
    #[error("{0}")]
    Differs(String),
}

impl Error {
    pub fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.display().to_string(), source }
    }

    /// A stable identifier of the cause.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Engine(e) => e.code(),
            Self::Io { .. } => "io",
            Self::BrokenPipe => "broken-pipe",
            Self::Usage(_) => "usage",
            Self::Fetch { .. } => "fetch",
            Self::Reference { .. } => "bad-reference",
            Self::Unanswered(_) => "unanswered",
            Self::Differs(_) => "differs",
        }
    }

    pub fn exit_code(&self) -> u8 {
        if matches!(self, Self::Usage(_)) { 2 } else { 1 }
    }
}

impl From<lowbit_core::Error> for Error {
    fn from(e: lowbit_core::Error) -> Self {
        Self::Engine(e.into())
    }
}
