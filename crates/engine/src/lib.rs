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
//!
//! ```no_run
//! use lowbit_core::{backend::CpuBackend, container::Artifact, parallel::cores, simd::Isa};
//! use lowbit_engine::{Event, GenerateOptions, Generation, LoadOptions, Message, Model};
//!
//! # fn main() -> lowbit_engine::Result<()> {
//! let artifact = Artifact::read("smollm2.lowbit".as_ref(), true)?;
//! let device = CpuBackend::new(Isa::best(), cores(), artifact.header().manifest.activations)?;
//! let mut model = Model::load(&artifact, device, LoadOptions::default())?;
//! let mut session = model.session()?;
//!
//! let question = [Message::new("user", "What is the capital of France?")];
//! let prompt = model.codec().encode_chat(&question)?;
//! let mut answer = Generation::new(&model, &mut session, prompt, GenerateOptions::default())?;
//! loop {
//!     match answer.step(&mut model, &mut session)? {
//!         Event::Prefill { .. } => {}
//!         Event::Token { text, .. } => print!("{text}"),
//!         Event::Done { text, .. } => break println!("{text}"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

pub mod arch;
#[cfg(not(target_family = "wasm"))]
pub mod calibrate;
pub mod codec;
pub mod convert;
pub mod error;
pub mod generate;
pub mod kv_cache;
pub mod log_probs;
pub mod model;
pub mod oracle;
pub mod probe;
pub mod sampler;
pub mod sampling;
pub mod selftest;
pub mod session;
pub mod stop;
pub mod synthetic;
pub mod template;
pub mod timed;
pub mod tokenizer;
pub mod upload;
pub mod utf8;

pub use codec::Codec;
pub use error::{Error, Result};
pub use generate::{Event, FinishReason, GenerateOptions, Generation, Stats, logits_sha256};
pub use model::{LoadOptions, Model};
pub use probe::{Probe, ProbeShape};
pub use sampling::SamplingOptions;
pub use selftest::{LayerTest, SelfTest};
pub use session::Session;
pub use template::Message;
pub use upload::Upload;
