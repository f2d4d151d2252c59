//! Runs the program as a user does, on a tiny model with random weights.

#![allow(dead_code, reason = "no test file uses all")]

use lowbit_testing::TinyModel;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The program, without input.
pub fn lowbit(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lowbit"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// What a command leaves behind.
pub fn output(arguments: &[&str]) -> Output {
    lowbit(arguments).output().unwrap()
}

/// What a successful command writes.
pub fn text(arguments: &[&str]) -> String {
    let output = output(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?} ended with {}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// The JSON document that a successful command writes.
pub fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&text(&[arguments, &["--json"]].concat())).unwrap()
}

/// A folder of its own for a test.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The tiny model as a GGUF file.
pub fn tiny_gguf(test: &str) -> String {
    let path = folder(test).join("tiny.gguf");
    std::fs::write(&path, TinyModel::default().gguf()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The exit status, the single line on stderr, and the error object of the same command with `--json`.
pub fn failure(arguments: &[&str]) -> (i32, String, Value) {
    let plain = output(arguments);
    let line = String::from_utf8(plain.stderr).unwrap();
    let report = output(&[arguments, &["--json"]].concat());
    assert_eq!(report.status.code(), plain.status.code());
    let object: Value = serde_json::from_slice(&report.stdout).unwrap();
    (plain.status.code().unwrap(), line, object["error"].clone())
}
