//! The vocabulary of Llama 2, SentencePiece with a space before every text, against llama.cpp's own cases.
//!
//! This test needs `ggml-vocab-llama-spm.gguf` of llama.cpp's `models` (the sdist of PyPI llama-cpp-python 0.3.36 has it in
//! `vendor/llama.cpp/models`), at the path in `LOWBIT_TEST_LLAMA_SPM` and its `.inp` and `.out` beside it.

#![allow(clippy::unwrap_used)]

use lowbit_core::import::gguf;
use lowbit_engine::convert::tokenizer_json;
use lowbit_engine::tokenizer::Tokenizer;

#[test]
#[ignore = "needs LOWBIT_TEST_LLAMA_SPM"]
fn llama_spm_gives_the_tokens_of_llama_cpp() {
    let path = std::env::var("LOWBIT_TEST_LLAMA_SPM").expect("LOWBIT_TEST_LLAMA_SPM must name the file");
    let bytes = std::fs::read(&path).unwrap();
    let header = gguf::parse(&path, &bytes, Some(bytes.len() as u64)).unwrap().complete(&path).unwrap();
    let tokenizer = Tokenizer::from_json(&tokenizer_json(&header).unwrap()).unwrap();
    let [input, output] = ["inp", "out"].map(|ext| std::fs::read_to_string(format!("{path}.{ext}")).unwrap());
    let texts: Vec<&str> = input.split_terminator("\n__ggml_vocab_test__\n").collect();
    let expected: Vec<Vec<u32>> =
        output.lines().map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect()).collect();
    assert!(
        texts.len() > 40 && texts.len() == expected.len(),
        "{} texts, {} lists",
        texts.len(),
        expected.len()
    );
    let differing: Vec<_> = texts
        .iter()
        .zip(&expected)
        .map(|(text, expected)| (text, expected, tokenizer.encode(text, false)))
        .filter(|(_, expected, found)| *expected != found)
        .collect();
    assert!(differing.is_empty(), "{} differ: {differing:?}", differing.len());
}
