//! The real model says what exact arithmetic says, token for token.
//!
//! These tests need the default model, packed, at the path in `LOWBIT_TEST_MODEL`; `cargo xtask test` sees to it.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::process::Command;

fn lowbit(arguments: &[&str]) -> Value {
    let model =
        std::env::var("LOWBIT_TEST_MODEL").expect("LOWBIT_TEST_MODEL must name the packed default model");
    let mut command = Command::new(env!("CARGO_BIN_EXE_lowbit"));
    let output = command.args(arguments).args(["-m", &model, "--json"]).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn golden() -> Value {
    serde_json::from_str(include_str!("../../../tests/golden/smollm2-greedy.json")).unwrap()
}

/// The end-of-answer token of the model.
const EOS: u64 = 2;

#[test]
#[ignore = "needs LOWBIT_TEST_MODEL"]
fn prompts_become_the_reference_tokens() {
    for prompt in golden()["prompts"].as_array().unwrap() {
        let user = prompt["user"].as_str().unwrap();
        assert_eq!(lowbit(&["tokenize", "--chat", user])["tokens"], prompt["prompt_ids"], "{user}");
    }
}

#[test]
#[ignore = "needs LOWBIT_TEST_MODEL"]
fn a16_gives_the_exact_tokens_of_every_step() {
    for prompt in golden()["prompts"].as_array().unwrap() {
        let user = prompt["user"].as_str().unwrap();
        let mut expected = prompt["ids"].as_array().unwrap().clone();
        let n = expected.len().to_string();
        let answer = lowbit(&["run", "-p", user, "--greedy", "--act", "a16", "-n", &n]);
        let ended = expected.pop_if(|id| *id == EOS).is_some();
        assert_eq!(answer["tokens"].as_array().unwrap(), &expected, "{user}");
        assert_eq!(answer["finish_reason"], if ended { "stop" } else { "length" }, "{user}");
    }
}

#[test]
#[ignore = "needs LOWBIT_TEST_MODEL"]
fn a8_gives_the_exact_tokens_where_the_margin_is_large() {
    let golden = golden();
    let prompts = golden["prompts"].as_array().unwrap();
    let large =
        |prompt: &&Value| prompt["margins"].as_array().unwrap().iter().all(|m| m.as_f64() > Some(0.5));
    let prompt = prompts.iter().find(large).unwrap();
    let mut expected = prompt["ids"].as_array().unwrap().clone();
    expected.pop_if(|id| *id == EOS);
    let answer = lowbit(&["run", "-p", prompt["user"].as_str().unwrap(), "--greedy", "--act", "a8"]);
    assert_eq!(answer["tokens"].as_array().unwrap(), &expected);
}
