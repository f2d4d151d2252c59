//! Whole models on the GPU of this machine, and what a token costs, which needs no GPU.

#![allow(clippy::unwrap_used)]

use lowbit_core::activation::Activations;
use lowbit_core::backend::{Backend, CpuBackend};
use lowbit_core::container::Artifact;
use lowbit_core::simd::Isa;
use lowbit_engine::log_probs::LogProbs;
use lowbit_engine::oracle::Oracle;
use lowbit_engine::{GenerateOptions, Generation, LoadOptions, Model, SamplingOptions, convert};
use lowbit_gpu::{Dry, GpuBackend, Native};
use lowbit_testing::TinyModel;
use std::path::Path;

fn gpu() -> GpuBackend<Native> {
    GpuBackend::new(Native::new().expect("a GPU, or Mesa's lavapipe, which `cargo xtask setup` installs"))
}

fn artifact(model: &TinyModel) -> Artifact {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    std::fs::write(&path, model.gguf()).unwrap();
    convert::in_memory(&path, &convert::Options::default(), &mut |_| ()).unwrap()
}

/// The logits of all `ids`, run `chunk` at a time.
fn logits<B: Backend>(artifact: &Artifact, device: B, ids: &[u32], chunk: usize) -> Vec<f32> {
    let mut model = Model::load(artifact, device, LoadOptions::default()).unwrap();
    let mut session = model.session().unwrap();
    let (mut all, mut some) = (Vec::new(), Vec::new());
    for ids in ids.chunks(chunk) {
        model.run(&mut session, ids, 0..ids.len(), &mut some, None).unwrap();
        all.extend_from_slice(&some);
    }
    all
}

/// The largest KL divergence of all positions.
fn worst_kl(expected: &[f32], found: &[f32], vocab_size: usize) -> f64 {
    assert_eq!(expected.len(), found.len());
    let kl = |(p, q): (&[f32], &[f32])| {
        LogProbs::new(p).unwrap().kl_divergence(&LogProbs::new(q).unwrap()).unwrap()
    };
    expected.chunks(vocab_size).zip(found.chunks(vocab_size)).map(kl).fold(0.0, f64::max)
}

#[test]
fn a_small_model_says_what_the_reference_says() {
    for matrix_type in ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16"] {
        let artifact = artifact(&TinyModel { matrix_type, ..TinyModel::default() });
        let ids: Vec<u32> = (0..23).map(|i| 3 + i * 11 % 200).collect();
        let expected = logits(&artifact, Oracle::default(), &ids, 23);
        for chunk in [1, 5, 23] {
            let found = logits(&artifact, gpu(), &ids, chunk);
            let kl = worst_kl(&expected, &found, expected.len() / ids.len());
            assert!(kl < 1e-6, "{matrix_type}, chunks of {chunk}: KL {kl:e}");
        }
    }
}

#[test]
fn a_chunk_without_logits_is_run_all_the_same() {
    let artifact = artifact(&TinyModel::default());
    let ids: Vec<u32> = (0..12).map(|i| 5 + i * 7).collect();
    let run = |cuts: &[usize]| {
        let mut model = Model::load(&artifact, gpu(), LoadOptions::default()).unwrap();
        let (mut session, mut logits, mut from) = (model.session().unwrap(), Vec::new(), 0);
        for &to in cuts {
            let wanted = if to == ids.len() { to - from - 1..to - from } else { 0..0 };
            model.run(&mut session, &ids[from..to], wanted, &mut logits, None).unwrap();
            from = to;
        }
        logits
    };
    let kl = worst_kl(&run(&[12]), &run(&[2, 3, 9, 12]), 256);
    assert!(kl < 1e-9, "KL {kl:e}");
}

#[test]
fn a_token_reads_every_weight_once_and_little_else() {
    let shape = TinyModel { d_model: 576, n_heads: 9, n_kv_heads: 3, ffn_dim: 1536, ..TinyModel::default() };
    let artifact = artifact(&shape);
    let mut model = Model::load(&artifact, GpuBackend::new(Dry::default()), LoadOptions::default()).unwrap();
    let (mut session, mut logits) = (model.session().unwrap(), Vec::new());
    let mut plans = Vec::new();
    for id in [3, 4, 5] {
        model.run(&mut session, &[id], 0..1, &mut logits, None).unwrap();
        plans.push(model.backend().last_plan());
    }
    let matrices = &artifact.header().manifest.matrices;
    let sizes = matrices.values().map(|m| m.format.plane_sizes(m.n, m.k).unwrap());
    let weights: usize = sizes.map(|s| s.w + s.x + s.s + s.m).sum();
    let cost = plans[0].cost();
    assert_eq!(cost.weights, weights as u64);
    assert!(cost.others * 20 < cost.weights, "{}", plans[0]);
    assert_eq!(plans[0].dispatches.len(), 1 + 8 * shape.n_layers + 2, "{}", plans[0]);
    assert!(plans[0].is_same(&plans[2]), "{}\n{}", plans[0], plans[2]);
}

/// The default model: the tokens of exact arithmetic, and logits as near to the CPU's as its precision allows.
#[test]
#[ignore = "needs LOWBIT_TEST_MODEL"]
fn the_default_model_gives_the_exact_tokens() {
    let path =
        std::env::var("LOWBIT_TEST_MODEL").expect("LOWBIT_TEST_MODEL must name the packed default model");
    let artifact = Artifact::read(Path::new(&path), true).unwrap();
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../../../tests/golden/smollm2-greedy.json")).unwrap();
    let ids_of = |list: &serde_json::Value| -> Vec<u32> {
        list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let options = LoadOptions { context: Some(128) };
    let mut model = Model::load(&artifact, gpu(), options).unwrap();
    let cpu = CpuBackend::new(Isa::best(), 2, Activations::A16).unwrap();
    let mut exact = Model::load(&artifact, cpu, options).unwrap();
    let (mut session, mut exact_session) = (model.session().unwrap(), exact.session().unwrap());
    for prompt in golden["prompts"].as_array().unwrap() {
        let (prompt_ids, mut expected) = (ids_of(&prompt["prompt_ids"]), ids_of(&prompt["ids"]));
        let options = GenerateOptions {
            max_tokens: Some(expected.len()),
            sampling: SamplingOptions { temperature: Some(0.0), ..SamplingOptions::default() },
            ..GenerateOptions::default()
        };
        let mut answer = Generation::new(&model, &mut session, prompt_ids.clone(), options).unwrap();
        while answer.finished().is_none() {
            answer.step(&mut model, &mut session).unwrap();
        }
        expected.pop_if(|id| model.codec().is_end(*id));
        assert_eq!(answer.tokens(), expected, "{}", prompt["user"]);

        let (mut found, mut logits) = (Vec::new(), Vec::new());
        session.clear();
        exact_session.clear();
        let all = 0..prompt_ids.len();
        model.run(&mut session, &prompt_ids, all.clone(), &mut found, None).unwrap();
        exact.run(&mut exact_session, &prompt_ids, all, &mut logits, None).unwrap();
        let kl = worst_kl(&logits, &found, model.config().vocab_size);
        assert!(kl < 1e-4, "{}: KL {kl:e}", prompt["user"]);
    }
}
