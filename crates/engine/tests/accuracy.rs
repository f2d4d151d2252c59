//! How far the CPU backend is from exact arithmetic, on the real model.
//!
//! These tests need the default model, packed, at the path in `LOWBIT_TEST_MODEL`; `cargo xtask test` sees to it.

#![allow(clippy::unwrap_used)]

use lowbit_core::activation::Activations;
use lowbit_core::backend::{Backend, CpuBackend};
use lowbit_core::container::Artifact;
use lowbit_core::simd::Isa;
use lowbit_engine::log_probs::LogProbs;
use lowbit_engine::oracle::Oracle;
use lowbit_engine::{LoadOptions, Message, Model};
use std::path::Path;

const OPTIONS: LoadOptions = LoadOptions { context: Some(64) };

fn artifact() -> Artifact {
    let path =
        std::env::var("LOWBIT_TEST_MODEL").expect("LOWBIT_TEST_MODEL must name the packed default model");
    Artifact::read(Path::new(&path), true).unwrap()
}

/// The logits after the question.
fn logits<B: Backend>(model: &mut Model<B>) -> Vec<f32> {
    let question = [Message::new("user", "What is the capital of France?")];
    let ids = model.codec().encode_chat(&question).unwrap();
    let mut session = model.session().unwrap();
    let mut logits = Vec::new();
    model.run(&mut session, &ids, ids.len() - 1..ids.len(), &mut logits, None).unwrap();
    logits
}

/// Kullback-Leibler divergence, and the root mean square of the differences about their mean.
fn distance(expected: &[f32], found: &[f32]) -> (f64, f64) {
    let kl = LogProbs::new(expected).unwrap().kl_divergence(&LogProbs::new(found).unwrap()).unwrap();
    let differences: Vec<f64> = expected.iter().zip(found).map(|(e, f)| f64::from(f - e)).collect();
    let mean = differences.iter().sum::<f64>() / differences.len() as f64;
    let square = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / differences.len() as f64;
    (kl, square.sqrt())
}

#[test]
#[ignore = "needs LOWBIT_TEST_MODEL"]
fn a16_is_as_exact_as_f32_and_a8_is_near() {
    let artifact = artifact();
    let expected = logits(&mut Model::load(&artifact, Oracle, OPTIONS).unwrap());
    let found = |activations| {
        let backend = CpuBackend::new(Isa::best(), 2, activations).unwrap();
        distance(&expected, &logits(&mut Model::load(&artifact, backend, OPTIONS).unwrap()))
    };
    let (kl, rms) = found(Activations::A16);
    assert!(kl < 1e-5 && rms < 0.005, "a16: KL {kl:e}, centred RMS {rms}");
    let (kl, rms) = found(Activations::A8);
    assert!(kl < 0.05 && rms < 0.25, "a8: KL {kl:e}, centred RMS {rms}");
    assert!(rms > 0.01, "a8 cannot be this exact: is it a16?");
}
