//! 64-bit Arm: the static command line, and what is checked of it in an emulator.

use crate::emulator::Emulator;
use crate::runner::{cargo, program, step};
use crate::{demo, setup};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Command;

/// Static, so that it runs on every Linux.
pub const TARGET: &str = "aarch64-unknown-linux-musl";

/// The emulator's names for CPUs, and the ISAs whose logits are compared there.
const CPUS: [(&str, &str); 7] = [
    ("cortex-a53", "neon"),
    ("cortex-a76", "neon-dotprod"),
    ("neoverse-v1", "neon-i8mm"),
    ("max,sme=off", "scalar,neon,neon-dotprod,neon-i8mm"),
    ("max,sve=off,sme=on,sme_fa64=off,sme128=on", "sme,sme2"),
    ("max,sve=off,sme=on,sme_fa64=off,sme256=on", "sme,sme2"),
    ("max,sve=off,sme=on,sme_fa64=off,sme512=on", "sme,sme2"),
];

/// The task: builds the command line for this machine, or for Arm.
pub fn build(args: &mut lexopt::Parser) -> Result<()> {
    let mut target = None;
    while let Some(arg) = args.next()? {
        match arg {
            lexopt::Arg::Long("target") => target = Some(args.value()?.to_string_lossy().into_owned()),
            other => return Err(other.unexpected().into()),
        }
    }
    match target.as_deref() {
        None => {
            demo::command_line()?;
            println!("{}", demo::lowbit());
        }
        Some("aarch64" | TARGET) => {
            setup::for_arm()?;
            println!("{}", command_line()?.display());
        }
        Some(other) => bail!("no static build for {other:?}; the target may be aarch64"),
    }
    Ok(())
}

/// Builds the static command line; returns it.
fn command_line() -> Result<PathBuf> {
    let package = ["build", "--release", "--locked", "--package", "lowbit-cli", "--target", TARGET];
    step("build the command line for Arm", &mut cargo(&package))?;
    Ok(crate::root().join("target").join(TARGET).join("release/lowbit"))
}

const UNIT_TESTS: [&str; 7] = ["test", "--package", "lowbit-core", "--lib", "--target", TARGET, "--locked"];

/// The tests of the kernels, on a CPU that has all their instructions.
pub fn unit_tests() -> Command {
    let mut tests = cargo(&UNIT_TESTS);
    if let Some(emulator) = Emulator::find() {
        tests.env(RUNNER, format!("{} -cpu {}", emulator.program, emulator.best_cpu()));
    }
    tests
}

/// Cargo's variable for what runs programs of [`TARGET`].
const RUNNER: &str = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER";

/// The CPUs that an emulator computes rightly.
fn cpus(emulator: &Emulator) -> impl Iterator<Item = (&'static str, &'static str)> {
    CPUS.into_iter().filter(|(_, isas)| emulator.knows_sme() || !isas.contains("sme"))
}

/// The tests of the kernels and of the engine on every kind of CPU.
pub fn suites() -> Result<()> {
    let emulator = Emulator::find().context("there is no emulator of Arm here")?;
    for (cpu, _) in cpus(emulator) {
        let mut tests = cargo(&UNIT_TESTS);
        tests.args(["--package", "lowbit-engine"]).env(RUNNER, format!("{} -cpu {cpu}", emulator.program));
        step(&format!("unit tests on {cpu}"), &mut tests)?;
    }
    Ok(())
}

/// Builds the program of these tests, optimised as what ships; returns it.
pub fn built_unit_tests() -> Result<String> {
    let mut build = cargo(&UNIT_TESTS);
    build.arg("--release");
    let output = step("build the unit tests for Arm", build.args(["--no-run", "--message-format", "json"]))?;
    let mut programs =
        output.stdout.lines().filter_map(|line| line.split_once("\"executable\":\"")?.1.split('"').next());
    programs.next_back().map(str::to_owned).context("cargo names no program of unit tests")
}

/// The default model's logits on every kind of CPU: those of this machine, bit for bit.
pub fn parity() -> Result<()> {
    let lowbit = command_line()?;
    let emulator = Emulator::find().context("there is no emulator of Arm here")?;
    let model = crate::root().join(demo::MODEL);
    let parity = |mut command: Command, backends: &str| -> Result<Vec<String>> {
        command.args([
            "parity", "--json", "--act", "a16", "--prompt", "Hi", "--chunks", "7", "--team", "2", "--model",
        ]);
        let output = command.arg(&model).args(["--backends", backends]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!("parity of {backends} failed\n{text}{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(hashes(&text))
    };
    let expected = parity(program(&demo::lowbit(), &[]), "scalar")?;
    let [expected] = expected.as_slice() else {
        bail!("one hash was expected of this machine: {expected:?}")
    };
    for (cpu, backends) in cpus(emulator) {
        let mut emulated = program(&emulator.program, &["-cpu", cpu]);
        emulated.arg(&lowbit);
        let found = parity(emulated, backends)?;
        if found.len() != backends.split(',').count() || found.iter().any(|hash| hash != expected) {
            bail!("{cpu}: {backends} give the logits {found:?}, this machine gives {expected}");
        }
    }
    Ok(())
}

/// The values of `"logits_sha256"` in a report.
fn hashes(report: &str) -> Vec<String> {
    let values = report.split("\"logits_sha256\":").skip(1);
    values.filter_map(|rest| rest.split('"').nth(1)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_a_report_are_found() {
        let report = r#"{"results": [{"backend": "neon", "logits_sha256": "ab12"}, {"logits_sha256":"cd"}]}"#;
        assert_eq!(hashes(report), ["ab12", "cd"]);
        assert!(hashes("{}").is_empty());
    }
}
