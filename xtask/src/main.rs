//! Development tasks: `cargo xtask help`.
#![forbid(unsafe_code)]

mod arm;
mod bench;
mod demo;
mod emulator;
mod inlining;
mod instructions;
mod kernels;
mod runner;
mod serve;
mod setup;
mod source_rules;
mod test;

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

const HELP: &str = "\
Development tasks of lowbit.

usage: cargo xtask <task> [options]

tasks:
  setup                install what is missing to build and test (idempotent; says what it does)
  demo [options]       build everything, pack the default model, serve the chat site
      --no-serve         stop before serving
      --port N           port on localhost (default 8080; the next free one if taken)
  build [options]      build the command line
      --target aarch64   static, for 64-bit Arm
  test [NAME...]       run every check, or only those whose name contains NAME
  gen [--check]        write the constants that TypeScript shares with Rust, or check that they are current
  bench [KIND] [options]
                       measure against llama.cpp and wllama, in turn; KIND is native, page, first-token (the last
                       part of page) or all (default), or, without peers, threads: all and one, kernels: those of the
                       page alone, gpu: models of made-up weights on the GPU of this machine, or arm: instructions a
                       multiplication, in an emulator, against docs/arm-instructions.md
      --runs N           medians of N (default 5)
      --threads N        default: the machine's cores
      --file PART        only files with this in their names: Q4_1 or Q4_0
      --without-amx      native: neither side uses AMX
      --shape NAME       gpu: one shape only (llama-1b, llama-8b, small)
      --small            gpu: the small shape only
      --update           arm: write the table
  wasm [ARG...]        build the modules of the page into web/wasm (`cargo run -p xtask-wasm` tells the arguments)
";

fn main() {
    let task = || -> Result<()> {
        let mut args = lexopt::Parser::from_env();
        match args.next()? {
            Some(lexopt::Arg::Value(task)) => match task.to_string_lossy().as_ref() {
                "setup" => setup::run(&mut args),
                "build" => arm::build(&mut args),
                "demo" => demo::run(&mut args),
                "test" => test::run(&mut args),
                "gen" => package("xtask-gen", &mut args),
                "wasm" => package("xtask-wasm", &mut args),
                "bench" => bench::run(&mut args),
                "help" => help(),
                other => bail!("no task is called {other:?}\n\n{HELP}"),
            },
            None | Some(lexopt::Arg::Long("help") | lexopt::Arg::Short('h')) => help(),
            Some(other) => Err(other.unexpected().into()),
        }
    };
    if let Err(error) = task() {
        eprintln!("error: {error:#}");
        std::process::exit(1);
    }
}

/// Runs a task that is a package of its own, with the rest of the arguments.
fn package(name: &str, args: &mut lexopt::Parser) -> Result<()> {
    let mut command = runner::cargo(&["run", "--quiet", "--package", name, "--"]);
    // Nobody follows cargo's bar here.
    command.env_remove("CARGO_TERM_PROGRESS_WHEN").env_remove("CARGO_TERM_PROGRESS_WIDTH");
    let status = command.args(args.raw_args()?).status()?;
    std::process::exit(status.code().unwrap_or(1));
}

fn help() -> Result<()> {
    print!("{HELP}");
    Ok(())
}

/// The root of the repository.
fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}
