//! Runs other programs, shows how far they are, and keeps what they say for the case that they fail.

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// What a finished program left behind.
pub struct Output {
    /// Its exit status was zero.
    pub ok: bool,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard output and standard error, as it came, without progress bars.
    pub log: String,
    /// Wall time.
    pub time: Duration,
}

/// `cargo` as the one that runs this task, in the root of the repository.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // With these, cargo reports "[==>  ] 12/57" on a pipe too, and the bar below can follow it.
    command.env("CARGO_TERM_PROGRESS_WHEN", "always").env("CARGO_TERM_PROGRESS_WIDTH", "100");
    command.args(args).current_dir(crate::root());
    command
}

/// A program with its arguments, in the root of the repository.
pub fn program(name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(args).current_dir(crate::root());
    command
}

/// Runs a step to its end with a progress bar; a failure is an error that shows everything the program said.
pub fn step(title: &str, command: &mut Command) -> Result<Output> {
    let output = run(title, command)?;
    if !output.ok {
        eprintln!("{}", output.log.trim_end());
        bail!("{title}: `{}` failed", show(command));
    }
    Ok(output)
}

/// Runs a program to its end with a progress bar.
pub fn run(title: &str, command: &mut Command) -> Result<Output> {
    let start = Instant::now();
    let bar = Bar::new(title);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{}`", show(command)))?;

    let (send, lines) = mpsc::channel();
    let out = child.stdout.take().map(|pipe| follow(pipe, true, send.clone()));
    let err = child.stderr.take().map(|pipe| follow(pipe, false, send));
    let mut output = Output { ok: false, stdout: String::new(), log: String::new(), time: Duration::ZERO };
    for (is_stdout, line) in lines {
        if bar.advance(&line) {
            continue;
        }
        bar.say(&line);
        output.log.push_str(&line);
        output.log.push('\n');
        if is_stdout {
            output.stdout.push_str(&line);
            output.stdout.push('\n');
        }
    }
    for reader in [out, err].into_iter().flatten() {
        reader.join().ok();
    }
    output.ok = child.wait()?.success();
    output.time = start.elapsed();
    bar.finish(output.ok, output.time);
    Ok(output)
}

/// The standard output of a program, or `None` when it is missing or fails. For short questions: no bar.
pub fn ask(name: &str, args: &[&str]) -> Option<String> {
    let output = program(name, args).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The program and its arguments as one would type them.
pub fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Reads a pipe to its end and sends every piece between line feeds or carriage returns.
fn follow(
    pipe: impl Read + Send + 'static,
    is_stdout: bool,
    send: mpsc::Sender<(bool, String)>,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut line = Vec::new();
        for byte in std::io::BufReader::new(pipe).bytes().map_while(|byte| byte.ok()) {
            if byte != b'\n' && byte != b'\r' {
                line.push(byte);
                continue;
            }
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if (byte == b'\n' || !text.is_empty()) && send.send((is_stdout, text)).is_err() {
                return;
            }
        }
        if !line.is_empty() {
            send.send((is_stdout, String::from_utf8_lossy(&line).into_owned())).ok();
        }
    })
}

/// A progress bar on a terminal; one line at the start and one at the end elsewhere.
struct Bar {
    title: String,
    bar: ProgressBar,
}

impl Bar {
    fn new(title: &str) -> Self {
        let bar =
            if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        bar.set_style(style("{spinner} {prefix} {elapsed} {wide_msg:.dim}"));
        bar.set_prefix(title.to_owned());
        bar.enable_steady_tick(Duration::from_millis(100));
        if bar.is_hidden() {
            eprintln!("... {title}");
        }
        Self { title: title.to_owned(), bar }
    }

    /// Takes cargo's "Building [==>  ] 12/57: name" and returns true; returns false for any other line.
    fn advance(&self, line: &str) -> bool {
        let Some((done, total)) = cargo_progress(line) else { return false };
        if self.bar.length() != Some(total) {
            self.bar.set_length(total);
            self.bar.set_style(style("{spinner} {prefix} [{bar:30}] {pos}/{len} {elapsed}"));
        }
        self.bar.set_position(done);
        true
    }

    fn say(&self, line: &str) {
        if !line.is_empty() {
            self.bar.set_message(line.to_owned());
        }
    }

    fn finish(self, ok: bool, time: Duration) {
        self.bar.finish_and_clear();
        let mark = if ok { "ok " } else { "FAILED" };
        eprintln!("{mark} {} ({:.1} s)", self.title, time.as_secs_f64());
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// `(12, 57)` of cargo's `Building [==>  ] 12/57: name`.
fn cargo_progress(line: &str) -> Option<(u64, u64)> {
    let line = line.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{1b}');
    let bar = line.contains("Building").then(|| line.split_once("] ")).flatten()?.1;
    let (done, rest) = bar.split_once('/')?;
    let total = rest.split(':').next()?;
    Some((done.trim().parse().ok()?, total.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_of_cargo_is_read() {
        assert_eq!(cargo_progress("    Building [=====>       ] 12/57: serde, libm"), Some((12, 57)));
        assert_eq!(cargo_progress("   Compiling serde v1.0.229"), None);
        assert_eq!(cargo_progress("Building the site [fast] a/b: c"), None);
    }

    #[test]
    fn output_of_a_program_is_kept_apart() {
        let output = run("sh", &mut program("sh", &["-c", "echo one; echo two >&2; printf 'a\\rb'; exit 3"]))
            .expect("sh");
        assert!(!output.ok);
        assert_eq!(output.stdout, "one\na\nb\n");
        assert!(output.log.contains("two\n"));
    }
}
