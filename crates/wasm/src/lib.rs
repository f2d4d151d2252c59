#![forbid(unsafe_code)]
//! The wasm-bindgen surface of lowbit.
