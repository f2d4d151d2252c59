//! The maths of lowbit: packed low-bit weights, dynamic activation quantisation and the CPU kernels.
//!
//! # The way of the data
//!
//! ```text
//! GGUF / safetensors --import--> raw tensors --pack--> planes --container--> artifact (.lowbit)
//! artifact --container--> PackedMatrix --backend--> logits
//! ```
//!
//! # Glossary
//!
//! * **code**: the small integer that is stored for one weight. `w = scale * (code - offset)` or
//!   `w = scale * code + min`.
//! * **plane**: all codes (`W`, `X`), scales (`S`) or mins (`M`) of one matrix, contiguous in memory.
//! * **word**: a `u32` with 8 four-bit codes of one output column for 8 consecutive `k`. Byte `b` holds
//!   `k = b` in its low nibble and `k = b + 4` in its high nibble.
//! * **granule**: 16 columns x 8 `k` = 16 words = 64 bytes.
//! * **block**: 16 columns x 32 `k` = 4 granules = 256 bytes (4-bit); one scale a column.
//! * **tile**: 16 output columns with all their blocks: the unit in which work is split between threads.
//!
//! Names of dimensions: `n` counts output features (columns of the result), `k` input features, `m` rows (tokens).
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod activation;
pub mod backend;
pub mod buffer;
pub mod candidates;
pub mod codec;
pub mod container;
pub mod error;
pub mod format;
pub mod import;
pub mod kernels;
pub mod pack;
pub mod parallel;
pub mod simd;

pub use error::{Error, Result};
pub use format::{Format, PackedMatrix};
