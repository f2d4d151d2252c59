#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]
//! Language models over a lowbit backend.

pub mod arch;
pub mod convert;
pub mod error;
pub mod kv_cache;
pub mod log_probs;
pub mod oracle;
pub mod sampler;
pub mod stop;
pub mod tokenizer;
pub mod utf8;

pub use error::{Error, Result};
