//! The wasm-bindgen surface of lowbit: what the worker of the page calls. Nothing here computes.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod artifact;
mod engine;
mod error;
mod gpu;
mod runner;
mod tuner;

use wasm_bindgen::prelude::*;

/// Runs once per instance, helpers included: a panic's message is kept for [`last_panic`].
#[wasm_bindgen(start)]
pub fn start() {
    error::keep_panics();
}

/// The message of the panic that trapped this module; the module cannot be used afterwards.
#[wasm_bindgen(js_name = lastPanic)]
pub fn last_panic() -> Option<String> {
    error::last_panic()
}

/// What a helper worker does for the rest of its life: takes part in the engine's work. Does nothing in a module
/// without shared memory.
#[wasm_bindgen]
pub fn help() {
    #[cfg(all(target_family = "wasm", target_feature = "atomics"))]
    lowbit_core::parallel::help();
}
