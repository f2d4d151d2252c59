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

/// A helper worker's place in the team, in a module with shared memory.
#[cfg(all(target_family = "wasm", target_feature = "atomics"))]
#[wasm_bindgen]
pub struct Helper(lowbit_core::parallel::Helper);

#[cfg(all(target_family = "wasm", target_feature = "atomics"))]
#[wasm_bindgen]
impl Helper {
    /// Takes the place: every model that is loaded from now on counts on it.
    #[wasm_bindgen(constructor)]
    pub fn join() -> Self {
        Self(lowbit_core::parallel::Helper::join())
    }

    /// Takes part in the engine's work for the rest of the worker's life.
    pub fn help(self) {
        self.0.help();
    }
}
