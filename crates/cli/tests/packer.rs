//! `lowbit pack` with few bits, `lowbit compare`, and what they refuse.

#![allow(clippy::unwrap_used)]

mod support;

use lowbit_testing::{GgufBuilder, Meta, TinyModel, Vocabulary, encode, type_id};
use serde_json::Value;
use std::path::Path;
use support::{failure, folder, json, text, tiny_gguf};

/// A text that the tiny model can read.
const TEXT: &str = "Hello world, this is a text. The cat sat on the mat and looked at the moon. ";

fn text_file(test: &str) -> String {
    let path = folder(test).join("text.txt");
    std::fs::write(&path, TEXT.repeat(30)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The tiny model with float weights, as a GGUF file.
fn float_gguf(test: &str) -> String {
    let path = folder(test).join("float.gguf");
    let model = TinyModel { matrix_type: "F16", embedding_type: "F16", ..TinyModel::default() };
    std::fs::write(&path, model.gguf()).unwrap();
    path.to_str().unwrap().to_owned()
}

fn out(test: &str, name: &str) -> String {
    folder(test).join(name).to_str().unwrap().to_owned()
}

/// The tiny model with one more token.
fn with_another_token() -> GgufBuilder {
    let mut tokens = Vocabulary::default().tokens;
    tokens.push("another".to_owned());
    let (n, types) = (tokens.len(), (0..tokens.len()).map(|id| if id < 3 { 3 } else { 1 }).collect());
    let mut model = TinyModel::default().builder();
    model.meta("tokenizer.ggml.tokens", Meta::Texts(tokens));
    model.meta("tokenizer.ggml.token_type", Meta::I32s(types));
    model.meta("llama.vocab_size", Meta::U32(n as u32));
    let table = encode("F32", &vec![0.5; n * TinyModel::default().d_model]);
    model.tensor(
        "token_embd.weight",
        &[TinyModel::default().d_model as u64, n as u64],
        type_id("F32"),
        table,
    );
    model
}

/// The mean KL of `model` from `reference`.
fn kl(reference: &str, model: &str, file: &str) -> f64 {
    let report = json(&["compare", reference, model, "--file", file, "--chunk", "64", "--chunks", "2"]);
    assert_eq!(report["positions"], 126);
    report["kl"]["mean"].as_f64().unwrap()
}

#[test]
fn more_bits_are_nearer_to_the_floats() {
    let test = "packer-bits";
    let (source, file) = (float_gguf(test), text_file(test));
    let mut last = f64::INFINITY;
    for (bits, format) in [("2", "q2m"), ("3", "q3"), ("4", "q4"), ("5", "q5"), ("6", "q6"), ("8", "q8")] {
        let packed = out(test, &format!("{bits}.lowbit"));
        let report = json(&["pack", &source, "-o", &packed, "--bits", bits]);
        let formats: Vec<&Value> =
            report["matrices"].as_array().unwrap().iter().map(|matrix| &matrix["to"]).collect();
        assert!(formats.contains(&&Value::from(format)), "{formats:?}");
        let found = kl(&source, &packed, &file);
        assert!(found > 0.0 && found < last, "{bits} bits: {found} after {last}");
        last = found;
    }
    assert!(last < 1e-3, "8 bits: {last}");
}

#[test]
fn a_model_is_no_distance_from_itself() {
    let test = "packer-itself";
    let (model, file) = (tiny_gguf(test), text_file(test));
    let arguments = ["compare", &model, &model, "--file", &file, "--chunk", "64"];
    let report = json(&arguments);
    assert_eq!((&report["kl"]["max"], &report["same_top"]), (&Value::from(0.0), &Value::from(1.0)));
    assert_eq!(
        (&report["centred_rms"], &report["perplexity"]),
        (&0.0.into(), &report["perplexity_of_reference"])
    );
    let exact = json(&[&arguments[..], &["--exact"]].concat());
    let max = exact["kl"]["max"].as_f64().unwrap();
    assert!(max > 0.0 && max < 1e-3, "{max}");
    assert!(text(&arguments).contains("likeliest token at 100.00 %"));
}

#[test]
fn quantised_matrices_are_requantised_only_when_asked() {
    let test = "packer-requantize";
    let (source, packed) = (tiny_gguf(test), out(test, "out.lowbit"));
    let plain = text(&["pack", &source, "-o", &packed, "--bits", "3"]);
    assert!(plain.contains("--bits has changed nothing") && plain.contains("kept as q4m"), "{plain}");
    let again = text(&["pack", &source, "-o", &packed, "--bits", "3", "--requantize"]);
    assert!(again.contains("of Q4_1: packed to q3") && !again.contains("nothing"), "{again}");
    let artifact = std::fs::read(&packed).unwrap();
    let marked = b"(requantized with loss)";
    assert!(artifact.windows(marked.len()).any(|bytes| bytes == marked));
}

#[test]
fn a_text_makes_packing_better() {
    let test = "packer-calibrate";
    let (source, file) = (float_gguf(test), text_file(test));
    let distance = |name: &str, more: &[&str]| {
        let packed = out(test, name);
        text(&[&["pack", &source, "-o", &packed, "--bits", "3"], more].concat());
        kl(&source, &packed, &file)
    };
    let plain = distance("plain.lowbit", &["--scales", "absmax"]);
    let calibrated = distance("calibrated.lowbit", &["--calibrate", &file]);
    assert!(calibrated < 0.6 * plain, "{calibrated} after {plain}");
}

#[test]
fn mixed_precision_keeps_its_budget_and_reports() {
    let test = "packer-mixed";
    let (source, file, packed) = (float_gguf(test), text_file(test), out(test, "out.lowbit"));
    let (table, picture) = (out(test, "report.json"), out(test, "report.svg"));
    let arguments = ["pack", &source, "-o", &packed, "--target-bpw", "5", "--calibrate", &file];
    let report = json(&[&arguments[..], &["--report", &table]].concat());
    let bits = report["bits_per_weight"].as_f64().unwrap();
    assert!(bits > 4.0 && bits <= 5.0, "{bits}");
    assert!(report["matrices"].as_array().unwrap().len() > 1, "one format for all: {report}");
    let tensors: Value = serde_json::from_slice(&std::fs::read(&table).unwrap()).unwrap();
    let tensors = tensors["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 15);
    assert!(tensors.iter().all(|tensor| (0.0..0.5).contains(&tensor["error"].as_f64().unwrap())));
    text(&[&arguments[..], &["--report", &picture]].concat());
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg") && picture.matches("<rect").count() == 16, "{picture}");
}

#[test]
fn what_cannot_be_is_refused() {
    let test = "packer-refused";
    let (source, file) = (float_gguf(test), text_file(test));
    let packed = out(test, "out.lowbit");
    let refused = |arguments: &[&str], what: &str| {
        let (status, line, object) = failure(&[&["pack", &source, "-o", &packed], arguments].concat());
        assert_eq!(status, 2, "{arguments:?}: {line}");
        let message = object["message"].as_str().unwrap();
        assert!(message.contains(what), "{arguments:?}: {message}");
        assert!(!Path::new(&packed).exists(), "{arguments:?}");
    };
    refused(&["--bits", "7"], "7");
    refused(&["--requantize"], "required");
    refused(&["--calibrate", &file], "required");
    refused(&["--bits", "4", "--target-bpw", "5"], "cannot be used");
    refused(&["--target-bpw", "nought"], "expected a number");
    refused(&["--target-bpw", "99"], "expected 1 to 16");
    refused(&["--target-bpw", "2.5"], "is too low");
    refused(&["--bits", "4", "--report", "report.txt"], ".json or .svg");
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let test = "packer-vocabularies";
    let (model, file) = (tiny_gguf(test), text_file(test));
    let short = folder(test).join("short.txt");
    std::fs::write(&short, "Hi").unwrap();
    // The same tokens, but for two that have changed places.
    let mut tokens = Vocabulary::default().tokens;
    tokens.swap(3 + usize::from(b'e'), 3 + usize::from(b'o'));
    let mut other = TinyModel::default().builder();
    other.remove_meta("tokenizer.ggml.tokens").meta("tokenizer.ggml.tokens", Meta::Texts(tokens));
    let path = out(test, "other.gguf");
    std::fs::write(&path, other.build()).unwrap();
    let refused = |model: &str, other: &str, file: &str, what: &str| {
        let (_, line, object) = failure(&["compare", model, other, "--file", file, "--chunk", "64"]);
        assert!(object["message"].as_str().unwrap().contains(what), "{line}");
    };
    refused(&model, &path, &file, "different tokenizers, which give the text different tokens");
    let len = Vocabulary::default().tokens.len();
    let larger = out(test, "larger.gguf");
    std::fs::write(&larger, with_another_token().build()).unwrap();
    refused(&model, &larger, &file, &format!("vocabularies of {len} and {} tokens", len + 1));
    refused(&model, &model, short.to_str().unwrap(), "fewer than one window");
    refused(&model, "missing.lowbit", &file, "missing.lowbit");
}

#[test]
fn outputs_without_a_folder_are_refused_before_anything_is_packed() {
    let test = "packer-no-folder";
    let (source, packed) = (float_gguf(test), out(test, "out.lowbit"));
    let refused = |packed: &str, report: &str, missing: &str| {
        let (status, line, _) = failure(&["pack", &source, "-o", packed, "--bits", "4", "--report", report]);
        assert_eq!(status, 1, "{line}");
        assert!(line.contains(missing) && line.contains("there is no folder"), "{line}");
        assert!(!Path::new(packed).exists(), "{line}");
    };
    refused(&packed, &out(test, "none/report.json"), "none/report.json");
    refused(&out(test, "none/out.lowbit"), &out(test, "report.json"), "none/out.lowbit");
    assert!(!Path::new(&out(test, "report.json")).exists());
}

#[test]
fn what_would_have_no_effect_is_refused() {
    let test = "packer-no-effect";
    let (source, file, packed) = (tiny_gguf(test), text_file(test), out(test, "out.lowbit"));
    let refused = |arguments: &[&str], what: &str| {
        let (status, line, object) = failure(&[&["pack", &source, "-o", &packed], arguments].concat());
        assert_eq!(status, 2, "{arguments:?}: {line}");
        assert!(object["message"].as_str().unwrap().contains(what), "{arguments:?}: {line}");
        assert!(!Path::new(&packed).exists(), "{arguments:?}");
    };
    refused(&["--bits", "keep", "--requantize"], "give a number of bits");
    refused(&["--bits", "keep", "--calibrate", &file], "give a number of bits");
    refused(&["--bits", "4", "--calibrate", &file], "every matrix was quantised already");
    refused(&["--target-bpw", "3"], "every matrix was quantised already");
    refused(&["--scheme", "s2", "--scales", "absmax"], "--scheme s1 only");
    refused(&["--reversible", "--scales", "absmax"], "cannot be used");
}

#[test]
fn what_is_kept_counts_for_the_budget() {
    let test = "packer-kept-budget";
    let (source, packed) = (out(test, "half.gguf"), out(test, "out.lowbit"));
    folder(test);
    let model = TinyModel { matrix_type: "F16", embedding_type: "Q8_0", ..TinyModel::default() };
    std::fs::write(&source, model.gguf()).unwrap();
    let arguments = ["pack", &source, "-o", &packed, "--target-bpw"];
    let (_, line, _) = failure(&[&arguments[..], &["4"]].concat());
    assert!(line.contains("is too low") && line.contains("quantised already as it is"), "{line}");
    let report = json(&[&arguments[..], &["6.5"]].concat());
    let bits = report["bits_per_weight"].as_f64().unwrap();
    assert!(bits > 5.5 && bits <= 6.5, "{bits}");
}

#[test]
fn outputs_replace_nothing_that_is_read() {
    let test = "packer-replaces";
    let (source, file) = (float_gguf(test), text_file(test));
    let model = folder(test).join("model");
    let floats = TinyModel { matrix_type: "F16", embedding_type: "F16", ..TinyModel::default() };
    floats.write_hugging_face(&model, 1).unwrap();
    let [shard, config] = ["model.safetensors", "config.json"].map(|name| model.join(name));
    let [model, shard, config] = [&model, &shard, &config].map(|path| path.to_str().unwrap());
    let (packed, both) = (out(test, "out.lowbit"), out(test, "both.json"));
    let refused = |arguments: &[&str], kept: &str| {
        let before = std::fs::read(kept).ok();
        let (status, line, _) = failure(&[&["pack"], arguments].concat());
        assert!(status == 2 && line.contains("would replace its source"), "{arguments:?}: {line}");
        assert!(std::fs::read(kept).ok() == before, "{arguments:?}");
    };
    refused(&[&source, "-o", &file, "--bits", "4", "--calibrate", &file], &file);
    refused(&[&source, "-o", &both, "--bits", "4", "--report", &both], &both);
    refused(&[model, "-o", shard], shard);
    refused(&[model, "-o", config], config);
    refused(&[model, "-o", &packed, "--report", config], config);
}
