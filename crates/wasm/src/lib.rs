#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]
//! The wasm-bindgen surface of lowbit.
