#![forbid(unsafe_code)]
//! The `lowbit` command line: language models in a few bits a weight.

mod answer;
mod args;
mod cache;
mod commands;
mod compare;
mod error;
mod fetch;
mod input;
mod interrupt;
mod model;
mod npy;
mod output;
mod progress;
mod report;
mod tuning;
mod whole_file;

use clap::Parser;
use error::Error;
use std::process::ExitCode;

/// Language models in a few bits a weight, the same answer on every machine.
#[derive(Parser)]
#[command(name = "lowbit", version, propagate_version = true)]
enum Cli {
    /// Convert a GGUF file, a Hugging Face folder or `smollm2` to an artifact
    Pack(commands::pack::Pack),
    /// Make a GGUF file of an artifact
    Export(commands::export::Export),
    /// Show what is in an artifact or a GGUF file
    Inspect(commands::inspect::Inspect),
    /// Answer one prompt
    Run(commands::run::Run),
    /// Talk; Ctrl-C ends an answer, twice the program
    Chat(commands::chat::Chat),
    /// Measure the speed of prefill and decode
    Bench(commands::bench::Bench),
    /// Compare the results of every instruction set, number of threads and prefill chunk, bit by bit
    Parity(commands::parity::Parity),
    /// Measure how surprised the model is by a text
    Perplexity(commands::perplexity::Perplexity),
    /// Measure how far a model is from a reference
    Compare(commands::compare::Compare),
    /// Turn text into tokens and back
    Tokenize(commands::tokenize::Tokenize),
    /// Measure how far the logits after a prompt are from a reference
    #[command(hide = true)]
    CompareLogits(commands::compare_logits::CompareLogits),
}

impl Cli {
    fn run(&self) -> error::Result<()> {
        match self {
            Self::Pack(command) => command.run(),
            Self::Export(command) => command.run(),
            Self::Inspect(command) => command.run(),
            Self::Run(command) => command.run(),
            Self::Chat(command) => command.run(),
            Self::Bench(command) => command.run(),
            Self::Parity(command) => command.run(),
            Self::Perplexity(command) => command.run(),
            Self::Compare(command) => command.run(),
            Self::Tokenize(command) => command.run(),
            Self::CompareLogits(command) => command.run(),
        }
    }
}

fn main() -> ExitCode {
    let json = std::env::args_os().any(|argument| argument == "--json");
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) if e.use_stderr() && json => return report(&Error::Usage(first_line(&e)), json),
        Err(e) => e.exit(),
    };
    match interrupt::install().and_then(|()| cli.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => report(&e, json),
    }
}

/// What is wrong with the arguments, without clap's advice.
fn first_line(e: &clap::Error) -> String {
    let message = e.to_string();
    let line = message.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}

/// Shows why the program ends.
fn report(e: &Error, json: bool) -> ExitCode {
    match e {
        Error::BrokenPipe => return ExitCode::SUCCESS,
        // What was wrong is on stdout already.
        Error::Differs(_) | Error::Unanswered(_) => show_error(e, false),
        _ => show_error(e, json),
    }
    ExitCode::from(e.exit_code())
}

/// One line on stderr; with `json` an object on stdout instead.
#[expect(clippy::print_stderr, reason = "the one place where errors are shown")]
fn show_error(e: &Error, json: bool) {
    let message = output::one_line(&e.to_string());
    let object = serde_json::json!({ "error": { "code": e.code(), "message": message } });
    if !(json && output::json(&object).is_ok()) {
        eprintln!("lowbit: {message}");
    }
}
