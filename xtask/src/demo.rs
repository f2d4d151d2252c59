//! `cargo xtask demo`: from a bare checkout to the chat site in a browser.

use crate::runner::{cargo, program, step};
use crate::setup;
use anyhow::{Result, bail};
use std::path::PathBuf;

/// The packed default model, from the root of the repository.
pub const MODEL: &str = "target/models/smollm2.lowbit";

/// The task.
pub fn run(args: &mut lexopt::Parser) -> Result<()> {
    let (mut serve, mut port) = (true, 8080);
    while let Some(arg) = args.next()? {
        match arg {
            lexopt::Arg::Long("no-serve") => serve = false,
            lexopt::Arg::Long("port") => port = args.value()?.to_string_lossy().parse()?,
            other => return Err(other.unexpected().into()),
        }
    }
    setup::for_the_site()?;
    let model = model()?;
    wasm()?;
    site()?;
    let Some(models) = model.parent() else { bail!("{} has no folder", model.display()) };
    if !serve {
        println!("the site is in web/demo/dist, its model is {}", model.display());
        return Ok(());
    }
    let site = crate::root().join("web/demo/dist");
    crate::serve::run(vec![("/models/", models.to_path_buf()), ("/", site)], port)
}

/// Builds the command line and packs the default model with it; returns the artifact.
pub fn model() -> Result<PathBuf> {
    command_line()?;
    let artifact = crate::root().join(MODEL);
    if !artifact.exists() {
        std::fs::create_dir_all(crate::root().join("target/models"))?;
        let mut pack = program(&lowbit(), &["pack", "smollm2", "-o"]);
        // It has a progress bar of its own.
        let status = pack.arg(&artifact).status()?;
        if !status.success() {
            bail!("`lowbit pack smollm2` failed");
        }
    }
    Ok(artifact)
}

/// Builds the command line.
pub fn command_line() -> Result<()> {
    let mut build = cargo(&["build", "--release", "--locked", "--package", "lowbit-cli"]);
    step("build the command line", &mut build).map(drop)
}

/// The path of what [`command_line`] built.
pub fn lowbit() -> String {
    crate::root().join("target/release/lowbit").to_string_lossy().into_owned()
}

/// Builds the modules of the page into `web/wasm`.
pub fn wasm() -> Result<()> {
    step("build wasm-bindgen and the task", &mut cargo(&["build", "--locked", "--package", "xtask-wasm"]))?;
    step("build the wasm modules", &mut cargo(&["run", "--locked", "--package", "xtask-wasm"])).map(drop)
}

/// Builds the npm package.
pub fn package() -> Result<()> {
    npm("build the npm package", "build")
}

/// Builds the npm package and the site.
pub fn site() -> Result<()> {
    package()?;
    npm("build the site", "demo:build")
}

fn npm(title: &str, script: &str) -> Result<()> {
    let mut npm = program("npm", &["run", "--silent", script]);
    step(title, npm.current_dir(crate::root().join("web"))).map(drop)
}
