#![forbid(unsafe_code)]
#![allow(clippy::panic, reason = "a test that asks for nonsense fails")]
//! Tiny synthetic models and hostile files for the tests of the other crates.
//!
//! It depends on none of them: what it writes, it writes from the file formats' definitions, so that a reader's mistake
//! is not repeated here.

mod blocks;
mod gguf;
mod model;
mod mutate;
mod rng;
mod tokenizer;

pub use blocks::{encode, type_id};
pub use gguf::{GgufBuilder, Meta};
pub use model::TinyModel;
pub use mutate::mutate;
pub use rng::Rng;
pub use tokenizer::Vocabulary;
