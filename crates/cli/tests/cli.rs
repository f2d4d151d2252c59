//! The program as a user meets it, on a tiny model with random weights.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use lowbit_testing::TinyModel;
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use support::{failure, folder, json, lowbit, output, text, tiny_gguf};

#[test]
fn run_answers_and_reports() {
    let model = tiny_gguf("run");
    let arguments = ["run", "-m", &model, "-p", "Hello", "--greedy", "-n", "12", "--threads", "1"];
    let report = json(&arguments);
    let tokens = report["tokens"].as_array().unwrap();
    assert!(!tokens.is_empty() && tokens.len() <= 12);
    assert!(["length", "stop"].contains(&report["finish_reason"].as_str().unwrap()), "{report}");
    for number in ["prefill_tok_s", "decode_tok_s", "load_s"] {
        assert!(report[number].as_f64().unwrap() > 0.0, "{number}: {report}");
    }
    assert_eq!(report["threads"], 1);
    assert!(report["isa"].is_string());
    assert_eq!(report["act"], "a16");
    let streamed = text(&arguments);
    assert_eq!(streamed.trim_end_matches('\n'), report["text"].as_str().unwrap().trim_end_matches('\n'));
}

#[test]
fn who_says_nothing_gets_the_likeliest_tokens() {
    let model = tiny_gguf("default");
    let tokens = |more: &[&str]| {
        let base = ["run", "-m", &model, "-p", "Hello", "-n", "20"];
        json(&[&base, more].concat())["tokens"].clone()
    };
    assert_eq!(tokens(&[]), tokens(&["--greedy"]));
    assert_eq!(tokens(&[]), tokens(&["--seed", "5"]));
    assert_eq!(tokens(&["--temperature", "2"]), tokens(&["--temperature", "2", "--seed", "0"]));
}

#[test]
fn seeds_repeat_an_answer_and_sampling_follows_its_options() {
    let model = tiny_gguf("seed");
    let tokens = |more: &[&str]| {
        let base = ["run", "-m", &model, "-p", "Hello", "-n", "20", "--temperature", "2"];
        json(&[&base, more].concat())["tokens"].clone()
    };
    assert_eq!(tokens(&["--seed", "7"]), tokens(&["--seed", "7"]));
    assert_ne!(tokens(&["--seed", "7"]), tokens(&["--seed", "8"]));
    assert_eq!(tokens(&["--seed", "7", "--top-k", "1"]), tokens(&["--seed", "8", "--top-k", "1"]));
}

#[test]
fn an_artifact_answers_like_the_gguf_file_it_was_packed_from() {
    let model = tiny_gguf("pack");
    let artifact = folder("pack").join("tiny.lowbit");
    let artifact = artifact.to_str().unwrap();
    let packed = json(&["pack", &model, "-o", artifact]);
    assert!(packed["bytes"].as_u64().unwrap() > 1000, "{packed}");
    let answer =
        |model: &str| json(&["run", "-m", model, "-p", "Hi", "--greedy", "-n", "10"])["tokens"].clone();
    assert_eq!(answer(&model), answer(artifact));

    for model in [&model, artifact] {
        let inspected = json(&["inspect", model]);
        assert_eq!(inspected["architecture"], "llama");
        assert_eq!(inspected["config"]["n_layers"], 2);
        assert_eq!(inspected["matrices"]["blk.0.attn_q.weight"]["format"], "q4m", "{inspected}");
    }
    assert!(text(&["inspect", artifact]).contains("blk.1.ffn_down.weight"));
}

#[test]
fn an_artifact_becomes_the_file_that_was_packed() {
    let model = tiny_gguf("export");
    let folder = folder("export");
    let [artifact, out] = ["tiny.lowbit", "again.gguf"].map(|name| folder.join(name));
    let (artifact, out) = (artifact.to_str().unwrap(), out.to_str().unwrap());
    let export = ["export", artifact, "-o", out];
    let same = || std::fs::read(&model).unwrap() == std::fs::read(out).unwrap();

    json(&["pack", &model, "-o", artifact, "--reversible"]);
    let report = json(&export);
    assert!(same() && report["identical"] == true, "{report}");
    assert_eq!(report["matrices"][1], serde_json::json!({ "type": "Q4_1", "count": 14 }), "{report}");
    assert!(text(&export).contains("byte for byte\n"));
    let answer = |model: &str| json(&["run", "-m", model, "-p", "Hi", "-n", "5"])["tokens"].clone();
    assert_eq!(answer(artifact), answer(&model));

    json(&["pack", &model, "-o", artifact]);
    let report = json(&export);
    assert!(!same() && report["identical"] == false, "{report}");
    assert!(text(&export).contains("packed without --reversible"));
    assert_eq!(answer(out), answer(&model));

    assert_eq!(failure(&["export", artifact, "-o", artifact]).0, 2);
    assert!(failure(&["export", &model, "-o", out]).1.contains("is no artifact; pack it first"));
    assert_eq!(failure(&["pack", &model, "--reversible", "--bits", "4"]).0, 2);
}

#[test]
fn pack_says_what_becomes_of_the_matrices() {
    let folder = folder("pack-bits");
    let model = folder.join("mixed.gguf");
    let out = folder.join("mixed.lowbit");
    let pack = ["pack", model.to_str().unwrap(), "-o", out.to_str().unwrap()];
    let nothing = "--bits has changed nothing";

    std::fs::write(&model, TinyModel { embedding_type: "BF16", ..TinyModel::default() }.gguf()).unwrap();
    let said = text(&[&pack[..], &["--bits", "8"]].concat());
    assert!(said.contains("14 matrices of Q4_1: kept as q4m\n"), "{said}");
    assert!(said.contains("1 matrix of BF16: packed to q8\n") && !said.contains(nothing), "{said}");
    let matrices = json(&pack)["matrices"].clone();
    let bf16 = matrices.as_array().unwrap().iter().find(|m| m["from"] == "BF16").unwrap();
    assert_eq!(*bf16, serde_json::json!({ "from": "BF16", "to": "bf16", "kept": true, "count": 1 }));

    std::fs::write(&model, TinyModel::default().gguf()).unwrap();
    assert!(text(&[&pack[..], &["--bits", "4"]].concat()).contains(nothing));
    assert!(!text(&pack).contains(nothing));
}

#[test]
fn layers_are_listed_in_the_order_of_their_numbers() {
    let path = folder("inspect-order").join("deep.gguf");
    std::fs::write(&path, TinyModel { n_layers: 11, ..TinyModel::default() }.gguf()).unwrap();
    let listed = text(&["inspect", path.to_str().unwrap()]);
    for kind in ["attn_q", "attn_norm"] {
        let numbers: Vec<usize> = (listed.lines().filter(|line| line.contains(kind)))
            .map(|line| line.split('.').nth(1).unwrap().parse().unwrap())
            .collect();
        assert_eq!(numbers, (0..11).collect::<Vec<_>>());
    }
}

#[test]
fn a_plan_needs_no_gpu_and_reads_every_weight_once() {
    let model = tiny_gguf("inspect-plan");
    let matrices = json(&["inspect", &model])["matrices"].clone();
    let weights: u64 =
        matrices.as_object().unwrap().values().map(|matrix| matrix["bytes"].as_u64().unwrap()).sum();
    let plan = ["inspect", &model, "--plan"];
    // One row is rotated where it is made.
    let of_one = ("1", 7, "qkv_rope interleaved q4m q4m q4m floatx1", 1);
    for (rows, of_layer, qkv, times) in [of_one, ("5", 8, "qkv q4m q4m q4m floatx4", 2)] {
        let report = json(&[&plan[..], &["--rows", rows]].concat());
        let dispatches = report["dispatches"].as_array().unwrap();
        // Embedding, two layers, the last norm, the logits and the largest of them.
        let all = 1 + 2 * of_layer + 3;
        assert_eq!((dispatches.len(), &report["totals"]["dispatches"]), (all, &all.into()));
        assert_eq!(report["totals"]["weights"], weights, "{report}");
        assert_eq!(dispatches[0]["shader"], "embed q8");
        assert_eq!(dispatches[all - 1]["shader"], "top_k 1 of logits");
        let sum = |field: &str| dispatches.iter().map(|run| run[field].as_u64().unwrap()).sum::<u64>();
        for field in ["weights", "others", "macs"] {
            assert_eq!(report["totals"][field], sum(field), "{field}");
        }
        assert_eq!(dispatches[2]["shader"], qkv);
        assert_eq!(dispatches[2]["workgroups"][1], times);
    }
    let text = text(&plan);
    assert_eq!(text.lines().count(), 20);
    let kernels = text.lines().next().unwrap();
    assert!(kernels.starts_with("float products, ") && json(&plan)["kernels"] == kernels, "{text}");
    assert!(text.lines().last().unwrap().starts_with("18 dispatches, "), "{text}");
    assert_eq!(failure(&["inspect", &model, "--rows", "2"]).0, 2);
    assert_eq!(failure(&[&plan[..], &["--rows", "100000"]].concat()).2["code"], "context-full");
}

#[test]
fn a_file_that_is_no_model_is_told_what_one_is() {
    let folder = folder("no-model");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let notes = file("notes.txt", b"Dear diary,");
    let empty = file("empty.gguf", b"");
    let header = br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let weights =
        file("model.safetensors", &[&(header.len() as u64).to_le_bytes(), &header[..], &[0; 4]].concat());
    let known = "expected an artifact, a GGUF file or a Hugging Face folder";
    for (arguments, problem) in [
        (["inspect", &notes], format!("notes.txt: format: begins with \"Dear diar\", {known}")),
        (["pack", &notes], format!("notes.txt: format: begins with \"Dear diar\", {known}")),
        (["inspect", &empty], format!("empty.gguf: format: is empty, {known}")),
        (["inspect", &weights], "no lowbit artifact, pack the model first".to_owned()),
        (["pack", &weights], "give a GGUF file or the folder".to_owned()),
    ] {
        let (status, line, error) = failure(&arguments);
        assert_eq!((status, error["code"].as_str()), (1, Some("malformed-file")), "{line}");
        assert!(line.contains(&problem), "{line}");
    }
}

#[test]
fn a_hugging_face_folder_is_packed_in_the_bits_asked_for() {
    let folder = folder("hugging-face");
    let model = TinyModel { matrix_type: "BF16", embedding_type: "BF16", ..TinyModel::default() };
    model.write_hugging_face(&folder.join("model"), 2).unwrap();
    let source = folder.join("model");
    let artifact = folder.join("tiny.lowbit");
    let (source, artifact) = (source.to_str().unwrap(), artifact.to_str().unwrap());
    for (bits, format) in [("4", "q4"), ("8", "q8")] {
        json(&["pack", source, "--bits", bits, "-o", artifact]);
        let inspected = json(&["inspect", artifact]);
        assert_eq!(inspected["matrices"]["blk.0.attn_q.weight"]["format"], format, "{inspected}");
        let answer = json(&["run", "-m", artifact, "-p", "Hi", "--greedy", "-n", "3"]);
        assert!(!answer["tokens"].as_array().unwrap().is_empty());
    }
}

#[test]
fn every_instruction_set_thread_and_chunk_gives_the_same_bits() {
    let model = tiny_gguf("parity");
    let report = json(&["parity", "-m", &model, "--layers", "--length", "70"]);
    let results = report["results"].as_array().unwrap();
    // Two precisions, one and two threads, four chunks, on every instruction set.
    assert_eq!(results.len() % 16, 0);
    for result in results {
        assert_eq!(result["identical"], true, "{result}");
        assert_eq!(result["first_difference"], Value::Null);
        assert_eq!(result["logits_sha256"].as_str().unwrap().len(), 64);
    }
    let hash = |act: &str| &results.iter().find(|r| r["act"] == act).unwrap()["logits_sha256"];
    assert_ne!(hash("a8"), hash("a16"), "the precisions differ");
}

#[test]
fn a_model_without_a_chat_template_is_compared_on_plain_text() {
    let path = folder("parity-base").join("base.gguf");
    std::fs::write(&path, TinyModel { chat_template: None, ..TinyModel::default() }.gguf()).unwrap();
    let parity = ["parity", "-m", path.to_str().unwrap(), "--team", "1", "--chunks", "1,7"];
    let report = json(&parity);
    let identical = |result: &Value| result["identical"] == true;
    assert!(report["results"].as_array().unwrap().iter().all(identical), "{report}");
}

#[test]
fn a_conversation_reuses_the_cache() {
    let model = tiny_gguf("chat");
    let mut child = lowbit(&["chat", "-m", &model, "--greedy", "-n", "5", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"Hello\n\nAnd then?\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let answers: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(answers.len(), 2);
    assert_eq!(answers[0]["stats"]["reused_tokens"], 0);
    let first_prompt = &answers[0]["stats"]["prompt_tokens"];
    assert!(answers[1]["stats"]["reused_tokens"].as_u64() >= first_prompt.as_u64(), "{answers:?}");
}

#[test]
fn a_question_that_is_too_long_does_not_end_the_conversation() {
    let model = tiny_gguf("chat-long");
    let mut child = lowbit(&["chat", "-m", &model, "-n", "2", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let questions = format!("Hello\n{}\nAnd then?\n", "word ".repeat(500));
    child.stdin.take().unwrap().write_all(questions.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), output.status.code()), (3, Some(1)), "{lines:?}");
    assert_eq!(lines[1]["error"]["code"], "context-full");
    assert!(
        lines[2]["stats"]["reused_tokens"].as_u64().unwrap() > 0,
        "the first turn is still there: {lines:?}"
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("without an answer: 1"));
}

#[test]
fn text_becomes_tokens_and_text_again() {
    let model = tiny_gguf("tokenize");
    let tokens = json(&["tokenize", "-m", &model, "Grüße, 12!"]);
    assert_eq!(tokens["text"], "Grüße, 12!");
    let ids: Vec<String> = tokens["tokens"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(text(&["tokenize", "-m", &model, "--decode", &ids.join(",")]), "Grüße, 12!\n");
    assert_eq!(text(&["tokenize", "-m", &model, "Hi"]).lines().next().unwrap().split('\t').count(), 2);
}

#[test]
fn perplexity_and_bench_give_numbers() {
    let model = tiny_gguf("numbers");
    let file = folder("numbers").join("text.txt");
    std::fs::write(&file, "The quick brown fox jumps over the lazy dog. ".repeat(20)).unwrap();
    let arguments = ["perplexity", file.to_str().unwrap(), "-m", &model, "--chunk", "64", "--chunks", "2"];
    let report = json(&arguments);
    let exact = json(&[&arguments[..], &["--exact"]].concat());
    let (found, exact) = (report["perplexity"].as_f64().unwrap(), exact["perplexity"].as_f64().unwrap());
    assert!(exact > 1.0 && (found / exact - 1.0).abs() < 1e-3, "{found} against {exact}");
    assert_eq!(report["tokens"], 126);

    let arguments = ["bench", "-m", &model, "--prefill", "16", "--decode", "4", "--repeat", "3"];
    let report = json(&arguments);
    assert_eq!(report["results"][0]["name"], "pp16");
    assert_eq!(report["results"][1]["runs"].as_array().unwrap().len(), 3);
    assert!(report["results"][1]["weights_gb_s"].as_f64().unwrap() > 0.0);
    assert_eq!(report["results"][1]["ops"], Value::Null);

    let report = json(&[&arguments[..], &["--ops"]].concat());
    for result in report["results"].as_array().unwrap() {
        let ops = result["ops"].as_array().unwrap();
        let names: Vec<_> = ops.iter().map(|op| op["op"].as_str().unwrap()).collect();
        let expected = ["embed", "qkv", "attention", "attention_output", "gate_up", "down", "head", "other"];
        assert_eq!(names, expected);
        let shares: Vec<f64> = ops.iter().map(|op| op["share"].as_f64().unwrap()).collect();
        assert!(shares[..7].iter().all(|share| *share > 0.0), "{ops:?}");
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{ops:?}");
    }
}

#[test]
fn errors_are_one_line_and_an_object() {
    let model = tiny_gguf("errors");
    let broken = folder("errors").join("broken.gguf");
    std::fs::write(&broken, &TinyModel::default().gguf()[..300]).unwrap();
    let broken = broken.to_str().unwrap();
    let steering = folder("errors").join("steering.gguf");
    let mut gguf = TinyModel::default().builder();
    std::fs::write(&steering, gguf.tensor("\u{1b}[2J\r\n", &[1], 0, vec![0; 4]).build()).unwrap();
    let steering = steering.to_str().unwrap();
    let long = "word ".repeat(400);
    for (arguments, code, word) in [
        (&["run", "-m", "missing.gguf", "-p", "Hi"][..], "io", "missing.gguf"),
        (&["run", "-m", broken, "-p", "Hi"], "malformed-file", "broken.gguf"),
        (&["inspect", steering], "unsupported", "tensor "),
        (&["run", "-m", &model, "-p", &long], "context-full", "context"),
        (&["run", "-m", &model, "-p", "", "--raw"], "empty-prompt", "the prompt is empty"),
        (&["run", "-m", &model, "-p", "Hi", "--temperature", "NaN"], "bad-sampling", "temperature"),
        (&["run", "-m", &model, "-p", "Hi", "--context", "100000"], "bad-config", "context"),
        (&["tokenize", "-m", &model, "--decode", "999999"], "unknown-token", "999999"),
        (&["parity", "-m", &model, "--length", "99999999999999"], "context-full", "99999999999999"),
        (&["run", "-m", &model, "-p", "Hi", "--temperature", "-1"], "bad-sampling", "temperature is -1"),
    ] {
        let (status, line, error) = failure(arguments);
        assert_eq!((status, error["code"].as_str()), (1, Some(code)), "{line}");
        assert!(!line.trim_end().contains(char::is_control), "{line:?}");
        assert!(line.contains(word) && error["message"].as_str().unwrap().contains(word), "{line}");
    }
}

#[test]
fn a_damaged_artifact_in_the_cache_is_packed_again() {
    // An earlier version's artifact may lie there.
    std::fs::remove_dir_all(folder("cache")).unwrap();
    let cache = folder("cache");
    std::fs::write(cache.join("SmolLM2-135M-Instruct.Q4_1.gguf"), TinyModel::default().gguf()).unwrap();
    let run = || {
        let mut command = lowbit(&["run", "-p", "Hi", "-n", "3", "--json"]);
        let output = command.env("LOWBIT_CACHE", &cache).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["tokens"].clone()
    };
    let tokens = run();
    let artifact = names(&cache).into_iter().find(|name| name.ends_with(".lowbit")).unwrap();
    let mut bytes = std::fs::read(cache.join(&artifact)).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    for damaged in [&bytes[..], &bytes[..last], b""] {
        std::fs::write(cache.join(&artifact), damaged).unwrap();
        assert_eq!(run(), tokens);
        assert_eq!(std::fs::read(cache.join(&artifact)).unwrap().len(), bytes.len());
    }
}

/// What is in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn packing_to_one_output_at_once_gives_one_whole_artifact() {
    let model = tiny_gguf("pack-twice");
    let folder = folder("pack-twice");
    let artifact = folder.join("tiny.lowbit");
    let pack = || lowbit(&["pack", &model]).stdout(Stdio::null()).spawn().unwrap();
    for mut child in [(); 4].map(|()| pack()) {
        assert!(child.wait().unwrap().success());
    }
    json(&["inspect", artifact.to_str().unwrap()]);
    assert_eq!(names(&folder), ["tiny.gguf", "tiny.lowbit"]);
}

#[test]
fn packing_replaces_neither_its_source_nor_a_folder() {
    let model = tiny_gguf("pack-over");
    let (status, line, _) = failure(&["pack", &model, "-o", &model]);
    assert!(status == 2 && line.contains("would replace its source"), "{line}");
    json(&["inspect", &model]);
    let folder = folder("pack-over");
    let (status, line, error) = failure(&["pack", &model, "-o", folder.to_str().unwrap()]);
    assert!(status == 1 && error["code"] == "io" && line.contains("is no regular file"), "{line}");
    assert_eq!(names(&folder), ["tiny.gguf"]);
}

#[cfg(unix)]
#[test]
fn an_interrupted_pack_leaves_nothing() {
    let folder = folder("interrupt");
    let _ = std::fs::remove_file(folder.join("big.lowbit"));
    let model = folder.join("big.gguf");
    let big = TinyModel { d_model: 1024, ffn_dim: 4096, ..TinyModel::default() };
    std::fs::write(&model, big.gguf()).unwrap();
    for _ in 0..20 {
        let mut child = lowbit(&["pack", model.to_str().unwrap()]).stdout(Stdio::null()).spawn().unwrap();
        while names(&folder).len() == 1 && child.try_wait().unwrap().is_none() {}
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().is_ok());
        let status = child.wait().unwrap().code();
        if status == Some(130) {
            return assert_eq!(names(&folder), ["big.gguf"]);
        }
        // It was too quick.
        assert_eq!((status, names(&folder)), (Some(0), vec!["big.gguf".to_owned(), "big.lowbit".to_owned()]));
        std::fs::remove_file(folder.join("big.lowbit")).unwrap();
    }
    panic!("it always ended before it was interrupted");
}

#[test]
fn wrong_usage_exits_with_2() {
    for arguments in [
        &["run"][..],
        &["run", "-p", "Hi", "--isa", "abacus"],
        &["run", "-p", "Hi", "--threads", "0"],
        &["run", "-p", "Hi", "--threads", "256"],
        &["parity", "--team", "0"],
        &["bench", "--decode", "0"],
        &["dance"],
    ] {
        let report = output(&[arguments, &["--json"]].concat());
        assert_eq!(report.status.code(), Some(2), "{arguments:?}");
        let object: Value = serde_json::from_slice(&report.stdout).unwrap();
        assert_eq!(object["error"]["code"], "usage");
        assert_eq!(output(arguments).status.code(), Some(2));
    }
}

#[test]
fn a_closed_pipe_is_quiet() {
    let model = tiny_gguf("pipe");
    let mut child = lowbit(&["run", "-m", &model, "-p", "Hello", "--greedy", "-n", "200"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success());
}
