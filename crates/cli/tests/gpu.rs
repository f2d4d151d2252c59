//! The commands on the GPU of this machine, or on Mesa's lavapipe.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use serde_json::Value;
use std::io::Write;
use std::process::Stdio;
use support::{failure, folder, json, lowbit, tiny_gguf};

#[test]
fn every_command_runs_on_the_gpu() {
    let model = tiny_gguf("gpu");
    let run = ["run", "-m", &model, "-p", "Hello", "--greedy", "-n", "6"];
    let answer = json(&[&run[..], &["--device", "gpu"]].concat());
    assert_eq!(answer["tokens"], json(&run)["tokens"]);
    assert!(!answer["gpu"].as_str().unwrap().is_empty(), "{answer}");

    let file = folder("gpu").join("text.txt");
    std::fs::write(&file, "The quick brown fox jumps over the lazy dog. ".repeat(20)).unwrap();
    let perplexity = ["perplexity", file.to_str().unwrap(), "-m", &model, "--chunk", "48", "--chunks", "2"];
    let on_gpu = json(&[&perplexity[..], &["--device", "gpu"]].concat())["perplexity"].as_f64().unwrap();
    let exact = json(&[&perplexity[..], &["--exact"]].concat())["perplexity"].as_f64().unwrap();
    assert!((on_gpu / exact - 1.0).abs() < 1e-4, "{on_gpu} against {exact}");
}

#[test]
fn a_bench_reports_the_same_on_the_gpu() {
    let model = tiny_gguf("gpu-bench");
    let bench = ["bench", "-m", &model, "--prefill", "8", "--decode", "4", "--repeat", "2"];
    let mut on_gpu = json(&[&bench[..], &["--device", "gpu"]].concat());
    let on_cpu = json(&bench);
    let keys = |report: &Value| report.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    for key in ["gpu", "kernels"] {
        assert!(on_gpu.as_object_mut().unwrap().remove(key).is_some_and(|name| name.is_string()));
    }
    let of_the_cpu = ["isa", "threads", "act"].map(str::to_owned);
    assert_eq!(
        keys(&on_gpu),
        keys(&on_cpu).into_iter().filter(|key| !of_the_cpu.contains(key)).collect::<Vec<_>>()
    );
    let results = on_gpu["results"].as_array().unwrap();
    assert_eq!([&results[0]["name"], &results[1]["name"]], ["pp8", "tg4"]);
    assert!(results[1]["weights_gb_s"].as_f64().unwrap() > 0.0);
    assert_eq!(on_gpu["weight_bytes"], on_cpu["weight_bytes"]);
}

#[test]
fn a_conversation_on_the_gpu_is_that_on_the_cpu() {
    let model = tiny_gguf("gpu-chat");
    let talk = |device: &str| {
        let mut child = lowbit(&["chat", "-m", &model, "--greedy", "-n", "4", "--json", "--device", device])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"Hello\nAnd then?\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let lines = String::from_utf8(output.stdout).unwrap();
        let tokens = |line: &str| serde_json::from_str::<Value>(line).unwrap()["tokens"].clone();
        lines.lines().map(tokens).collect::<Vec<_>>()
    };
    let answers = talk("gpu");
    assert_eq!(answers.len(), 2);
    assert_eq!(answers, talk("cpu"));
}

#[test]
fn parity_holds_the_gpu_to_a_bound() {
    let model = tiny_gguf("gpu-parity");
    let parity = ["parity", "-m", &model, "--backends", "scalar,gpu", "--chunks", "1,7"];
    let report = json(&parity);
    let results = report["results"].as_array().unwrap();
    let (gpu, scalar): (Vec<_>, Vec<_>) = results.iter().partition(|result| result["backend"] == "gpu");
    // Two chunks; on the CPU, with two precisions and one and two threads.
    assert_eq!((gpu.len(), scalar.len()), (2, 8));
    for result in gpu {
        assert!(result["kl"].as_f64().unwrap() < 1e-6 && result["agrees"] == true, "{result}");
        assert!(result["threads"].is_null() && result["act"].is_null(), "{result}");
        assert_eq!(result["logits_sha256"].as_str().unwrap().len(), 64);
    }
    for result in scalar {
        assert!(result["identical"] == true && result.get("kl").is_none(), "{result}");
    }
    for (arguments, word) in [
        (&["--backends", "gpu"][..], "before gpu"),
        (&["--backends", "scalar,gpu", "--act", "a8"], "a16"),
        (&["--backends", "abacus"], "abacus"),
    ] {
        let (status, line, error) = failure(&[&["parity", "-m", &model], arguments].concat());
        assert_eq!((status, error["code"].as_str()), (2, Some("usage")), "{line}");
        assert!(line.contains(word), "{line}");
    }
}

#[test]
fn variants_are_measured_when_asked_for_and_remembered() {
    let (model, cache) = (tiny_gguf("gpu-tuning"), folder("gpu-tuning").join("cache"));
    let run = |more: &[&str]| -> Value {
        let run = ["run", "-m", &model, "-p", "Hello", "--greedy", "-n", "4", "--json", "--device", "gpu"];
        let output = lowbit(&[&run[..], more].concat()).env("LOWBIT_CACHE", &cache).output().unwrap();
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let origin = |more: &[&str]| {
        let report = run(more);
        let kernels = report["kernels"].as_str().unwrap().to_owned();
        let (_, origin) = kernels.split_once('(').unwrap();
        (origin.trim_end_matches(')').to_owned(), report["tokens"].clone())
    };
    let (_, tokens) = origin(&["--retune"]);
    assert_eq!(origin(&[]), ("remembered".to_owned(), tokens.clone()));
    assert_eq!(origin(&["--retune"]), ("measured".to_owned(), tokens.clone()));
    for record in std::fs::read_dir(cache.join("tuning")).unwrap() {
        std::fs::write(record.unwrap().path(), "{").unwrap();
    }
    // Software is not measured unless it is asked for; a real GPU is.
    let (origin, same_tokens) = origin(&[]);
    assert!(["fixed", "measured"].contains(&origin.as_str()), "{origin}");
    assert_eq!(same_tokens, tokens);
}

#[cfg(target_os = "linux")]
#[test]
fn without_a_gpu_the_commands_say_so() {
    let model = tiny_gguf("no-gpu");
    let output = lowbit(&["run", "-m", &model, "-p", "Hi", "--device", "gpu", "--json"])
        .env("VK_DRIVER_FILES", "/nowhere")
        .env("VK_ICD_FILENAMES", "/nowhere")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert_eq!(error["error"]["code"], "device");
    assert!(message.contains("no GPU can be used") && message.contains("run on the CPU"), "{message}");
}
