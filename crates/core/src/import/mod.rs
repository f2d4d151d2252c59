//! Readers of other people's files.
//!
//! Headers are parsed from a growing prefix of the file, so that a file can arrive over a network: a parser either
//! completes, says how many bytes it needs at least, or fails. Nothing is allocated for a count that the bytes at hand
//! do not bear out.

pub mod gguf;
pub mod safetensors;

#[cfg(not(target_family = "wasm"))]
mod file;

#[cfg(not(target_family = "wasm"))]
pub use file::{MAX_DOCUMENT, open};

/// The outcome of parsing the first bytes of a file.
#[derive(Clone, Debug)]
pub enum Parsed<T> {
    /// The header is whole and sound.
    Complete(T),
    /// The header is longer than the prefix. Callers may well read twice as much as this.
    NeedMore {
        /// Bytes, from the start of the file, that the next attempt needs at least.
        at_least: u64,
    },
}

impl<T> Parsed<T> {
    /// The same outcome with another content.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Parsed<U> {
        match self {
            Self::Complete(content) => Parsed::Complete(f(content)),
            Self::NeedMore { at_least } => Parsed::NeedMore { at_least },
        }
    }

    /// The content, where the prefix was the whole file: asking for more is an error then.
    pub fn complete(self, file: &str) -> crate::Result<T> {
        match self {
            Self::Complete(content) => Ok(content),
            Self::NeedMore { at_least } => Err(crate::Error::malformed(
                file,
                "header",
                format!("at least {at_least} bytes are needed; the file is truncated, fetch it again"),
            )),
        }
    }
}
