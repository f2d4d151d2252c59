//! `cargo xtask bench`: lowbit and its peers on the same machine and the same file, in turn.

use crate::runner::{cargo, program, step};
use crate::{demo, instructions, kernels, setup};
use anyhow::{Result, bail};
use std::path::Path;

/// The peers: llama.cpp for node, and the last release of wllama whose module has SIMD kernels.
const LLAMA_CPP: &str = "3.22.1";
const WLLAMA: &str = "2.3.1";
/// Reads and writes GGUF; makes the Q4_0 file.
const GGUF: &str = "gguf==0.19.0";

const Q4_1: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const Q4_0: &str = "SmolLM2-135M-Instruct.Q4_0.gguf";

/// The task.
pub fn run(args: &mut lexopt::Parser) -> Result<()> {
    let mut kind = "all".to_owned();
    let mut runs = 5_usize;
    let mut threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut files = vec![Q4_1.to_owned(), Q4_0.to_owned()];
    let mut without_amx = false;
    let mut of_gpu = Vec::new();
    let mut update = false;
    while let Some(arg) = args.next()? {
        match arg {
            lexopt::Arg::Value(value) => kind = value.to_string_lossy().into_owned(),
            lexopt::Arg::Long("runs") => runs = args.value()?.to_string_lossy().parse()?,
            lexopt::Arg::Long("threads") => threads = args.value()?.to_string_lossy().parse()?,
            lexopt::Arg::Long("without-amx") => without_amx = true,
            lexopt::Arg::Long("update") => update = true,
            lexopt::Arg::Long("small") => of_gpu.push("--small".to_owned()),
            lexopt::Arg::Long("shape") => {
                of_gpu.extend(["--shape".to_owned(), args.value()?.to_string_lossy().into_owned()])
            }
            lexopt::Arg::Long("file") => {
                let part = args.value()?.to_string_lossy().into_owned();
                files.retain(|file| file.contains(&part));
                if files.is_empty() {
                    bail!("--file {part:?} is no part of {Q4_1} or {Q4_0}");
                }
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if !["native", "page", "first-token", "threads", "all", "kernels", "gpu", "arm"].contains(&kind.as_str())
    {
        bail!("expected native, page, first-token, threads, all, kernels, gpu or arm, found {kind:?}");
    }
    if kind == "gpu" {
        return gpu(&of_gpu);
    }
    if !of_gpu.is_empty() {
        bail!("--small and --shape are for gpu only");
    }
    if update && kind != "arm" {
        bail!("--update is for arm only");
    }
    if without_amx && kind != "native" {
        bail!("--without-amx is for native only: no page has AMX");
    }

    if kind == "arm" {
        setup::for_arm()?;
        return instructions::bench(update);
    }
    setup::for_the_bench()?;
    if kind == "kernels" {
        kernels::build()?;
        if !kernels::run(&[]).status()?.success() {
            bail!("the kernels do not compute what they should");
        }
        return Ok(());
    }
    let dir = crate::root().join("target/bench");
    models(&dir)?;
    packages(&dir)?;
    if kind != "native" {
        demo::wasm()?;
        demo::package()?;
    }
    let mut node = program("node", &["xtask/bench/main.mjs", "--kind", &kind]);
    node.args(["--threads", &threads.to_string(), "--runs", &runs.to_string()]);
    node.arg("--lowbit").arg(demo::lowbit()).arg("--packages").arg(&dir);
    node.arg("--models").arg(dir.join("models")).args(without_amx.then_some("--without-amx")).args(files);
    if !node.status()?.success() {
        bail!("the benchmark failed");
    }
    Ok(())
}

/// The GPU of this machine, with made-up weights: needs nothing but the build.
fn gpu(options: &[String]) -> Result<()> {
    const EXAMPLE: [&str; 6] = ["--release", "--locked", "--package", "lowbit-gpu", "--example", "speed"];
    step("build the measurement", cargo(&["build"]).args(EXAMPLE))?;
    let dir = crate::root().join("target/bench");
    std::fs::create_dir_all(&dir)?;
    let mut speed = cargo(&["run", "--quiet"]);
    speed.args(EXAMPLE).arg("--").args(options).arg("--json").arg(dir.join("gpu.json"));
    if !speed.status()?.success() {
        bail!("the GPU cannot be measured");
    }
    Ok(())
}

/// The model as GGUF with Q4_1, the same with Q4_0, and the artifact of the former.
fn models(dir: &Path) -> Result<()> {
    step(
        "build the command line",
        &mut cargo(&["build", "--release", "--locked", "--package", "lowbit-cli"]),
    )?;
    let models = dir.join("models");
    std::fs::create_dir_all(&models)?;
    let artifact = models.join("smollm2.lowbit");
    if !artifact.exists() || !models.join(Q4_1).exists() {
        let mut pack = program(&demo::lowbit(), &["pack", "smollm2", "-o"]);
        step("fetch and pack the model", pack.arg(&artifact).env("LOWBIT_CACHE", &models))?;
    }
    if !models.join(Q4_0).exists() {
        let python = dir.join("python");
        let mut pip = program("python3", &["-m", "pip", "install", "--quiet", "--upgrade", "--target"]);
        step("pip install gguf", pip.arg(&python).arg(GGUF))?;
        let mut requantise = program("python3", &["xtask/bench/requantise.py"]);
        requantise.arg(models.join(Q4_1)).arg(models.join(Q4_0)).env("PYTHONPATH", python);
        step("requantise to Q4_0", &mut requantise)?;
    }
    Ok(())
}

/// The peers' npm packages, without the optional ones: those are builds for GPUs, of several hundred megabytes.
fn packages(dir: &Path) -> Result<()> {
    if dir.join("node_modules/.package-lock.json").exists() {
        return Ok(());
    }
    let mut npm = program(
        "npm",
        &["install", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional", "--prefix"],
    );
    npm.arg(dir).arg(format!("node-llama-cpp@{LLAMA_CPP}")).arg(format!("@wllama/wllama@{WLLAMA}"));
    npm.arg(format!("@node-llama-cpp/{}@{LLAMA_CPP}", platform()?));
    step("npm install llama.cpp and wllama", &mut npm).map(drop)
}

/// How node-llama-cpp calls this platform.
fn platform() -> Result<&'static str> {
    Ok(match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => "linux-x64",
        ("linux", "aarch64") => "linux-arm64",
        ("macos", "aarch64") => "mac-arm64-metal",
        ("macos", "x86_64") => "mac-x64",
        (os, arch) => bail!("llama.cpp has no prebuilt package for {os} on {arch}"),
    })
}
