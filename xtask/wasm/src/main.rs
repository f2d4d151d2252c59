//! Builds the wasm modules of the page into `web/wasm`: cargo, then wasm-bindgen, then wasm-opt.
//!
//! ```text
//! usage: cargo run -p xtask-wasm -- [base] [relaxed] [threads] [--no-opt] [--names]
//!   base       simd128, for every browser
//!   relaxed    relaxed-simd
//!   threads    relaxed-simd on shared memory, for pages that are cross-origin isolated
//!   --no-opt   skip wasm-opt (quicker; larger and slower modules)
//!   --names    keep the names of functions, for profilers
//! ```
//!
//! It is a package of its own because wasm-bindgen takes a minute to compile, which other tasks need not pay.
#![forbid(unsafe_code)]

mod toolchain;

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use toolchain::{TARGET, Toolchain};

/// One module: how it is built and which glue it goes with.
struct Variant {
    name: &'static str,
    /// Target features beyond [`BASE_FEATURES`].
    features: &'static [&'static str],
    threads: bool,
    /// Modules with the same glue share one JavaScript file.
    glue: &'static str,
}

const VARIANTS: [Variant; 3] = [
    Variant { name: "base", features: &[], threads: false, glue: "single" },
    Variant { name: "relaxed", features: &["+relaxed-simd"], threads: false, glue: "single" },
    Variant { name: "threads", features: &["+relaxed-simd", "+atomics"], threads: true, glue: "shared" },
];

/// What every browser with simd128 has had for years.
const BASE_FEATURES: &str = "+simd128,+bulk-memory,+mutable-globals,+sign-ext,+nontrapping-fptoint";

struct Options {
    optimise: bool,
    names: bool,
}

fn main() -> Result<()> {
    let mut options = Options { optimise: true, names: false };
    let mut chosen = Vec::new();
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "--no-opt" => options.optimise = false,
            "--names" => options.names = true,
            name => match VARIANTS.iter().find(|v| v.name == name) {
                Some(variant) => chosen.push(variant),
                None => {
                    bail!("unknown argument {name:?}; expected base, relaxed, threads, --no-opt or --names")
                }
            },
        }
    }
    if chosen.is_empty() {
        chosen.extend(&VARIANTS);
    }
    for variant in &chosen {
        build(variant, &options).with_context(|| format!("wasm module {}", variant.name))?;
    }
    check_glue(&root(), &chosen)
}

fn build(variant: &Variant, options: &Options) -> Result<()> {
    let root = root();
    let module = compile(variant, &root)?;
    let stage = root.join("target/wasm/pkg").join(variant.name);
    let out = root.join("web/wasm");
    fs::create_dir_all(&out)?;
    let done = out.join(format!("{}.wasm", variant.name));
    let stamp = stage.join("stamp");
    let key = format!("{:?} {} {}", fs::metadata(&module)?.modified()?, options.optimise, options.names);
    if done.exists() && fs::read_to_string(&stamp).is_ok_and(|old| old == key) {
        println!("{} is up to date", variant.name);
        return Ok(());
    }
    bind(variant, options, &module, &stage)?;
    let bound = stage.join(format!("{}_bg.wasm", variant.glue));
    if options.optimise {
        optimise(variant, options, &root, &bound)?;
    }
    copy_glue(variant, &stage, &out)?;
    fs::copy(&bound, &done)?;
    fs::write(stamp, key)?;
    println!("{}: {} bytes", variant.name, fs::metadata(&done)?.len());
    Ok(())
}

/// Runs cargo and returns the path of the module.
fn compile(variant: &Variant, root: &Path) -> Result<PathBuf> {
    let toolchain = Toolchain::find(variant.threads)?;
    // A folder per kind of std and per feature set, so that switching rebuilds nothing.
    let target_dir = root.join("target/wasm").join(variant.name);
    let mut cargo = toolchain.cargo();
    cargo.current_dir(root).args([
        "build",
        "--profile",
        "wasm",
        "--package",
        "lowbit-wasm",
        "--target",
        TARGET,
    ]);
    cargo.arg("--target-dir").arg(&target_dir);
    // Where a panic would be is a path of the machine that builds, and the paths outweigh a weight format.
    let mut flags = format!("-Zlocation-detail=none -Ctarget-feature={BASE_FEATURES}");
    for feature in variant.features {
        flags = flags + "," + feature;
    }
    // The variable of the target reaches neither build scripts nor proc macros, as RUSTFLAGS would.
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    cargo.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", flags);
    if !cargo.status().context("cannot start cargo")?.success() {
        bail!("cargo build failed");
    }
    Ok(target_dir.join(TARGET).join("wasm/lowbit_wasm.wasm"))
}

/// Writes `<glue>_bg.wasm`, `<glue>.js` and `<glue>.d.ts` into `stage`.
fn bind(variant: &Variant, options: &Options, module: &Path, stage: &Path) -> Result<()> {
    let mut bindgen = wasm_bindgen_cli_support::Bindgen::new();
    bindgen
        .input_path(module)
        .out_name(variant.glue)
        .typescript(true)
        // The package resolves the URL of the module itself: bundlers must not see a second one.
        .omit_default_module_path(true)
        .remove_name_section(!options.names)
        .remove_producers_section(true)
        .web(true)?;
    bindgen.generate(stage).context("wasm-bindgen")?;
    if variant.threads && !fs::read_to_string(stage.join("shared.js"))?.contains("shared:true") {
        bail!(
            "the module does not import a shared memory; crates/wasm/build.rs must pass the linker's arguments"
        );
    }
    Ok(())
}

fn optimise(variant: &Variant, options: &Options, root: &Path, module: &Path) -> Result<()> {
    let tool = root.join("web/node_modules/.bin/wasm-opt");
    if !tool.exists() {
        bail!("wasm-opt is missing; run `npm ci` in web, or pass --no-opt");
    }
    let mut command = Command::new(tool);
    command.arg("-O3").args([
        "--enable-simd",
        "--enable-bulk-memory",
        "--enable-bulk-memory-opt",
        "--enable-mutable-globals",
        "--enable-sign-ext",
        "--enable-nontrapping-float-to-int",
        "--enable-reference-types",
        "--enable-multivalue",
        // Kernels stay functions of their own though each has one caller: in a function that holds them all, the browser's
        // compiler keeps sums in memory.
        "--one-caller-inline-max-function-size=100",
    ]);
    if variant.features.contains(&"+relaxed-simd") {
        command.arg("--enable-relaxed-simd");
    }
    if variant.threads {
        command.arg("--enable-threads");
    }
    if options.names {
        command.arg("-g");
    }
    if !command.arg(module).arg("-o").arg(module).status().context("cannot start wasm-opt")?.success() {
        bail!("wasm-opt failed");
    }
    Ok(())
}

/// Puts the glue beside the modules.
fn copy_glue(variant: &Variant, stage: &Path, out: &Path) -> Result<()> {
    for extension in ["js", "d.ts"] {
        let name = format!("{}.{extension}", variant.glue);
        fs::copy(stage.join(&name), out.join(&name))?;
    }
    Ok(())
}

/// Modules that share one JavaScript file must have been given the same one.
fn check_glue(root: &Path, built: &[&Variant]) -> Result<()> {
    let glue =
        |v: &Variant| fs::read(root.join("target/wasm/pkg").join(v.name).join(format!("{}.js", v.glue)));
    for pair in built.windows(2).filter(|pair| pair[0].glue == pair[1].glue) {
        if glue(pair[0])? != glue(pair[1])? {
            bail!("{} and {} need different glue: give each its own file", pair[0].name, pair[1].name);
        }
    }
    Ok(())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
