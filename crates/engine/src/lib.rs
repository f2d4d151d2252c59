#![forbid(unsafe_code)]
//! Language models over a lowbit backend.

pub mod arch;
pub mod error;
pub mod kv_cache;

pub use error::{Error, Result};
