//! `cargo xtask test`: every check of the repository, from a fresh clone to the browser.

use crate::runner::{self, Output, cargo, program};
use crate::{arm, demo, inlining, instructions, kernels, setup};
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The task.
pub fn run(args: &mut lexopt::Parser) -> Result<()> {
    let mut filters = Vec::new();
    while let Some(arg) = args.next()? {
        match arg {
            lexopt::Arg::Value(name) => filters.push(name.to_string_lossy().into_owned()),
            other => return Err(other.unexpected().into()),
        }
    }
    setup::everything()?;
    let mut report = Report { filters, rows: Vec::new() };
    rust_checks(&mut report);
    text_checks(&mut report);
    model_checks(&mut report);
    arm_checks(&mut report);
    web_checks(&mut report);
    report.finish()
}

/// `cargo test`. What only wasm needs has no tests of its own, and takes a minute to build for the machine itself.
fn tests<'a>(args: &[&'a str]) -> Vec<&'a str> {
    let packages = ["test", "--workspace", "--exclude", "xtask-wasm", "--exclude", "lowbit-wasm", "--locked"];
    [&packages, args].concat()
}

fn rust_checks(report: &mut Report) {
    report.command("format", || cargo(&["fmt", "--all", "--check"]));
    report.check("source rules", || {
        let breaches = crate::source_rules::breaches(&crate::root())?;
        if !breaches.is_empty() {
            bail!("{}", breaches.join("\n"));
        }
        Ok(())
    });
    report.command("clippy", || {
        cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])
    });
    report.command("unit tests", || cargo(&tests(&["--no-fail-fast"])));
    report.command("documentation", || {
        let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"]);
        doc.env("RUSTDOCFLAGS", "-D warnings");
        doc
    });
}

fn text_checks(report: &mut Report) {
    match setup::tool_path("typos") {
        Some(typos) => report.command("spelling", || program(&typos.to_string_lossy(), &[])),
        None => report.skip("spelling", "typos is not installed"),
    }
    match setup::tool_path("cargo-deny") {
        // The advisory database is a git repository of its own; a test must not depend on it.
        Some(deny) => report.command("licences and duplicates", || {
            program(&deny.to_string_lossy(), &["check", "bans", "licenses", "sources"])
        }),
        None => report.skip("licences and duplicates", "cargo-deny is not installed"),
    }
}

/// The real model on every ISA of this machine: the same bits.
fn model_checks(report: &mut Report) {
    report.check("pack the default model", || demo::model().map(drop));
    report.check("intrinsics are inlined", || inlining::check(Path::new(&demo::lowbit())));
    let model = crate::root().join(demo::MODEL).to_string_lossy().into_owned();
    report.command("tests on the default model", || {
        // Those of other models are for those who have them.
        let mut tests = cargo(&tests(&["--", "--ignored", "--skip", "gemma3_270m", "--skip", "llama_spm"]));
        tests.env("LOWBIT_TEST_MODEL", &model);
        tests
    });
    report.command("parity on the default model", || program(&demo::lowbit(), &["parity", "-m", &model]));
}

/// The kernels for Arm in an emulator, and the real model with them.
fn arm_checks(report: &mut Report) {
    if !setup::has_std("rustc", arm::TARGET) {
        report.skip("unit tests on Arm", "this toolchain has no std for it");
        report.skip("instructions on Arm", "this toolchain has no std for it");
        report.skip("every CPU on Arm", "this toolchain has no std for it");
        return report.skip("parity on Arm", "this toolchain has no std for it");
    }
    report.command("unit tests on Arm", arm::unit_tests);
    // Most of it is one more build of the command line.
    if report.filters.is_empty() {
        for name in ["instructions on Arm", "every CPU on Arm", "parity on Arm"] {
            report.skip(name, &format!("it takes minutes; `cargo xtask test \"{name}\"` runs it"));
        }
        return;
    }
    report.check("instructions on Arm", instructions::check);
    report.check("every CPU on Arm", arm::suites);
    report.check("parity on Arm", arm::parity);
}

fn web_checks(report: &mut Report) {
    if setup::has_wasm_std("rustc") {
        report.command("clippy for wasm", || {
            let package = ["clippy", "--package", "lowbit-wasm", "--target", setup::WASM_TARGET, "--locked"];
            let mut clippy = cargo(&package);
            let features = "-Ctarget-feature=+simd128,+relaxed-simd";
            clippy.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", features);
            clippy.args(["--", "-D", "warnings"]);
            clippy
        });
        report.check("kernels for wasm", kernels::build);
        report.command("kernels in Chromium", || kernels::run(&["--check"]));
    } else {
        report.skip("clippy for wasm", "this toolchain has no std for it");
        report.skip("kernels in Chromium", "this toolchain has no std for wasm");
    }
    report.check("wasm modules", demo::wasm);
    let npm = |script: &str| {
        let mut command = program("npm", &["run", "--silent", script]);
        command.current_dir(crate::root().join("web"));
        command
    };
    report.command("types of the npm package", || npm("check"));
    report.command("tests of the npm package", || npm("test"));
    report.check("site", demo::site);
    report.command("end to end in Chromium", || npm("e2e"));
}

/// What has been checked so far.
struct Report {
    /// Run only checks whose name contains one of these; all when empty.
    filters: Vec<String>,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    passed: usize,
    failed: usize,
    /// Why it did not run.
    skipped: Option<String>,
    time: Duration,
}

impl Report {
    fn wanted(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter))
    }

    /// Runs a program; the tests that it reports are counted, and itself if it reports none.
    fn command(&mut self, name: &str, command: impl FnOnce() -> Command) {
        if !self.wanted(name) {
            return;
        }
        let start = Instant::now();
        let mut command = command();
        let (passed, failed) = match runner::run(name, &mut command) {
            Ok(output) => {
                if !output.ok {
                    println!("{}\n`{}` failed", output.log.trim_end(), runner::show(&command));
                }
                count(&output)
            }
            Err(error) => {
                println!("{name}: {error:#}");
                (0, 1)
            }
        };
        self.rows.push(Row { name: name.to_owned(), passed, failed, skipped: None, time: start.elapsed() });
    }

    /// Runs a check of our own: one test.
    fn check(&mut self, name: &str, check: impl FnOnce() -> Result<()>) {
        if !self.wanted(name) {
            return;
        }
        let start = Instant::now();
        let result = check();
        let time = start.elapsed();
        eprintln!("{} {name} ({:.1} s)", if result.is_ok() { "ok " } else { "FAILED" }, time.as_secs_f64());
        if let Err(error) = &result {
            println!("{error:#}");
        }
        let failed = usize::from(result.is_err());
        self.rows.push(Row { name: name.to_owned(), passed: 1 - failed, failed, skipped: None, time });
    }

    fn skip(&mut self, name: &str, why: &str) {
        if self.wanted(name) {
            let (name, skipped) = (name.to_owned(), Some(why.to_owned()));
            self.rows.push(Row { name, passed: 0, failed: 0, skipped, time: Duration::ZERO });
        }
    }

    /// Prints the table and the closing line.
    fn finish(&self) -> Result<()> {
        println!("\n{:28} {:>7} {:>7} {:>9}", "check", "passed", "failed", "seconds");
        for row in &self.rows {
            match &row.skipped {
                Some(why) => println!("{:28} skipped: {why}", row.name),
                None => println!(
                    "{:28} {:>7} {:>7} {:>9.1}",
                    row.name,
                    row.passed,
                    row.failed,
                    row.time.as_secs_f64()
                ),
            }
        }
        let passed: usize = self.rows.iter().map(|row| row.passed).sum();
        let failed: usize = self.rows.iter().map(|row| row.failed).sum();
        let time: Duration = self.rows.iter().map(|row| row.time).sum();
        println!("{:28} {passed:>7} {failed:>7} {:>9.1}\n", "all", time.as_secs_f64());
        println!("{passed} passed, {failed} failed");
        if failed > 0 || passed == 0 {
            std::process::exit(1);
        }
        Ok(())
    }
}

/// `(passed, failed)`: the sum over the closing lines of the test runners in the output; a program that failed
/// without a failed test counts as one.
fn count(output: &Output) -> (usize, usize) {
    let (mut passed, mut failed) = (0, 0);
    for line in output.log.lines() {
        if let Some((p, f)) = closing_line(line) {
            passed += p;
            failed += f;
        }
    }
    if !output.ok && failed == 0 {
        failed = 1;
    }
    if passed + failed == 0 {
        passed = 1;
    }
    (passed, failed)
}

/// Reads the closing lines of cargo test (`test result: ok. 3 passed; 0 failed; ...`), vitest
/// (`Tests  1 failed | 3 passed (4)`) and node's runner (`# pass 3` or `ℹ pass 3`).
fn closing_line(line: &str) -> Option<(usize, usize)> {
    let line = strip_colour(line);
    let words: Vec<&str> = line.split_whitespace().collect();
    let before = |word: &str| {
        let at = words.iter().position(|w| w.trim_end_matches(';') == word)?;
        words.get(at.checked_sub(1)?)?.parse().ok()
    };
    match words.as_slice() {
        ["test", "result:", ..] => Some((before("passed")?, before("failed")?)),
        ["Tests", ..] => Some((before("passed").unwrap_or(0), before("failed").unwrap_or(0))),
        ["#" | "ℹ", "pass", n] => Some((n.parse().ok()?, 0)),
        ["#" | "ℹ", "fail", n] => Some((0, n.parse().ok()?)),
        _ => None,
    }
}

/// The line without the escape sequences that set colours.
fn strip_colour(line: &str) -> String {
    let mut plain = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_the_runners_are_read() {
        let cargo = "test result: FAILED. 12 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(closing_line(cargo), Some((12, 1)));
        assert_eq!(closing_line("      Tests  2 failed | 31 passed (33)"), Some((31, 2)));
        assert_eq!(
            closing_line("\u{1b}[2m      Tests \u{1b}[22m \u{1b}[32m4 passed\u{1b}[39m (4)"),
            Some((4, 0))
        );
        assert_eq!(closing_line("ℹ pass 7"), Some((7, 0)));
        assert_eq!(closing_line("# fail 2"), Some((0, 2)));
        assert_eq!(closing_line("Tests of the page"), Some((0, 0)));
        assert_eq!(closing_line("3 passed"), None);
    }

    #[test]
    fn a_failure_without_a_failed_test_counts() {
        let output =
            |ok, log: &str| Output { ok, stdout: String::new(), log: log.into(), time: Duration::ZERO };
        assert_eq!(count(&output(true, "")), (1, 0));
        assert_eq!(count(&output(false, "error: could not compile")), (0, 1));
        assert_eq!(count(&output(true, "# pass 3\n# fail 0\n# pass 4\n# fail 0")), (7, 0));
    }
}
