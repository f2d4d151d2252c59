#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]
//! Language models over a lowbit backend.
//!
//! ```text
//! artifact --Model::load--> Model        weights on a device, tokenizer, chat template
//!                             |
//! messages --template, tokenizer--> prompt --Generation::step--> events: prefill, token, done
//!                                                |
//!                                             Session        KV cache and the tokens in it
//! ```

pub mod arch;
pub mod codec;
pub mod convert;
pub mod error;
pub mod generate;
pub mod kv_cache;
pub mod log_probs;
pub mod model;
pub mod oracle;
pub mod sampler;
pub mod sampling;
pub mod session;
pub mod stop;
pub mod template;
pub mod timed;
pub mod tokenizer;
pub mod utf8;

pub use codec::Codec;
pub use error::{Error, Result};
pub use generate::{Event, FinishReason, GenerateOptions, Generation, Stats, logits_sha256};
pub use model::{LoadOptions, Model};
pub use sampling::SamplingOptions;
pub use session::Session;
pub use template::Message;
