//! The kernels as a WebAssembly module of their own, which `cargo xtask test` checks and `cargo xtask bench kernels`
//! measures.

use crate::runner::{cargo, program, step};
use crate::setup;
use anyhow::Result;
use std::process::Command;

/// As `xtask/wasm` builds the modules of the page; of the ISAs, both are compiled in.
const FLAGS: &str =
    "-Ctarget-feature=+simd128,+bulk-memory,+mutable-globals,+sign-ext,+nontrapping-fptoint,+relaxed-simd";

/// Builds the module.
pub fn build() -> Result<()> {
    let mut cargo = cargo(&["build", "--profile", "wasm", "--locked", "--package", "lowbit-core"]);
    cargo.args(["--example", "kernels", "--target", setup::WASM_TARGET]);
    step("build the kernels for wasm", cargo.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", FLAGS))
        .map(drop)
}

/// Runs the built module in Chromium: checks it, and measures it unless told to `--check` only.
pub fn run(args: &[&str]) -> Command {
    let module = format!("target/{}/wasm/examples/kernels.wasm", setup::WASM_TARGET);
    let mut node = program("node", &["crates/core/examples/kernels/run.mjs", &module, "--chromium"]);
    node.args(args);
    node
}
