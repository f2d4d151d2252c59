//! The largest logits, as the GPU of this machine chooses them, are those that the CPU would choose of the same ones.

#![allow(clippy::unwrap_used)]

mod support;

use lowbit_core::Result;
use lowbit_core::backend::{Backend, MAX_TOP_K, Norm, at_once};
use lowbit_core::candidates::{Candidate, rank, top_k};
use lowbit_core::format::Format;
use lowbit_engine::sampler::{Sampler, Sampling};
use lowbit_engine::{GenerateOptions, Generation, LoadOptions, Model, SamplingOptions};
use lowbit_gpu::{BufferId, Dry, Executor, GpuBackend, Kernels, Tensor};
use lowbit_testing::TinyModel;
use std::cell::Cell;
use std::rc::Rc;
use support::{Gpu, artifact, floats, gpu, tensor, values};

const WIDTH: usize = 32;

/// Columns of weights, each of one value and zeros, so that logits are nearly any values that one likes.
fn output(gpu: &Gpu, logits: &[f32]) -> lowbit_gpu::Matrix {
    let mut rows = vec![0.0; logits.len() * WIDTH];
    for (row, logit) in rows.chunks_exact_mut(WIDTH).zip(logits) {
        row[0] = *logit;
    }
    gpu.matrix(floats(&rows, WIDTH)).unwrap()
}

fn same(candidates: &[Candidate]) -> Vec<(u32, u32)> {
    candidates.iter().map(|c| (c.id, rank(c.logit))).collect()
}

/// Compares what the GPU chooses with what the CPU would choose of the GPU's own logits, which are returned.
fn check(gpu: &mut Gpu, x: &Tensor, logits: &[f32], ks: &[usize], what: &str) -> Vec<f32> {
    let output = output(gpu, logits);
    let weight = gpu.vector(vec![1.0; WIDTH]).unwrap();
    let norm = Norm { weight: &weight, eps: 0.0 };
    let mut all = Vec::new();
    gpu.logits(x, 1..2, norm, &output).unwrap();
    at_once(gpu.take(&mut all)).unwrap();
    assert_eq!(all.len(), logits.len());
    for &k in ks {
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        gpu.top_k(x, 1, norm, &output, k).unwrap();
        at_once(gpu.take_top_k(k, &mut found)).unwrap();
        top_k(&all, k, &mut expected);
        assert_eq!(same(&found), same(&expected), "{what}: the first {k} of {}", logits.len());
    }
    all
}

/// A row that is normalised to a first value of about 1, and one before it that is not.
fn rows(gpu: &mut Gpu) -> Tensor {
    let mut rows = vec![0.0; 2 * WIDTH];
    (rows[0], rows[WIDTH]) = (-1.0, 1.0);
    tensor(gpu, &rows, WIDTH)
}

#[test]
fn the_largest_are_those_of_the_cpu_in_its_order() {
    let mut gpu = gpu(Kernels::default());
    let x = rows(&mut gpu);
    let ks = [1, 2, 40, 63, 64, 65, MAX_TOP_K];
    for n in [1, 2, 63, 64, 65, 1023, 1024, 1025, 2049, 49_152] {
        let random = values(n, n as u32);
        check(&mut gpu, &x, &random, &ks, "random");
        check(&mut gpu, &x, &vec![-2.5; n], &ks, "equal");
        let ties: Vec<f32> = random.iter().map(|v| (v * 4.0).round() / 4.0).collect();
        check(&mut gpu, &x, &ties, &ks, "ties");
        let rising: Vec<f32> = (0..n).map(|i| i as f32).collect();
        check(&mut gpu, &x, &rising, &ks, "rising");
    }
    // More workgroups keep 128 than one level takes, and again.
    check(&mut gpu, &x, &values(140_000, 9), &ks, "many");
}

#[test]
fn strange_logits_are_chosen_as_on_the_cpu() {
    let mut gpu = gpu(Kernels::default());
    let x = rows(&mut gpu);
    let ks = [1, 64, 70];
    for n in [65, 1500, 5000] {
        for (strange, what) in [(f32::NEG_INFINITY, "-inf"), (f32::INFINITY, "+inf"), (f32::NAN, "NaN")] {
            for share in [2, 7, n] {
                let mut logits = values(n, 5);
                logits.iter_mut().skip(share / 2).step_by(share).for_each(|logit| *logit = strange);
                let seen = check(&mut gpu, &x, &logits, &ks, what);
                assert!(seen.iter().any(|logit| !logit.is_finite()), "{what}");
            }
        }
        let zeros: Vec<f32> = (0..n).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect();
        check(&mut gpu, &x, &zeros, &ks, "zeros");
        check(&mut gpu, &x, &vec![f32::NEG_INFINITY; n], &ks, "nothing but -inf");
    }
}

#[test]
fn what_cannot_be_asked_for_is_an_error() {
    let mut gpu = gpu(Kernels::default());
    let x = rows(&mut gpu);
    let (output, weight) = (output(&gpu, &[1.0; 200]), gpu.vector(vec![1.0; WIDTH]).unwrap());
    let norm = Norm { weight: &weight, eps: 0.0 };
    for (row, k) in [(2, 1), (0, 0), (0, MAX_TOP_K + 1)] {
        assert_eq!(gpu.top_k(&x, row, norm, &output, k).unwrap_err().code(), "bad-shape", "row {row}, {k}");
    }
    let (mut top, mut logits) = (Vec::new(), Vec::new());
    gpu.top_k(&x, 0, norm, &output, 3).unwrap();
    at_once(gpu.take_top_k(3, &mut top)).unwrap();
    gpu.logits(&x, 0..2, norm, &output).unwrap();
    at_once(gpu.take(&mut logits)).unwrap();
    assert_eq!((top.len(), logits.len()), (3, 400), "after one another");
}

/// What is said with all logits of every token.
fn from_all_logits<B: Backend>(
    model: &mut Model<B>,
    prompt: &[u32],
    sampling: Sampling,
    n: usize,
) -> Vec<u32> {
    let (mut session, mut logits) = (model.session().unwrap(), Vec::new());
    let mut sampler = Sampler::new(sampling).unwrap();
    prompt.iter().for_each(|id| sampler.accept(*id));
    let (mut next, mut answer) = (prompt.to_vec(), Vec::new());
    for _ in 0..n {
        model.run(&mut session, &next, next.len() - 1..next.len(), &mut logits, None).unwrap();
        next = vec![sampler.sample(&logits).unwrap()];
        sampler.accept(next[0]);
        answer.extend(&next);
    }
    answer
}

#[test]
fn tokens_are_those_of_all_logits() {
    let mut model =
        Model::load(&artifact(&TinyModel::default()), gpu(Kernels::default()), LoadOptions::default())
            .unwrap();
    let prompt: Vec<u32> = (0..20).map(|i| 3 + i * 11 % 200).collect();
    let hot = SamplingOptions { temperature: Some(1.5), seed: Some(7), ..SamplingOptions::default() };
    let penalties =
        |rest| SamplingOptions { repetition_penalty: Some(1.3), presence_penalty: Some(0.5), ..rest };
    for (sampling, few) in [
        (SamplingOptions::greedy(), true),
        (hot.clone(), true),
        (SamplingOptions { top_k: Some(100), top_p: Some(1.0), min_p: Some(0.0), ..hot.clone() }, true),
        (penalties(SamplingOptions::greedy()), true),
        (penalties(hot.clone()), true),
        (SamplingOptions { top_k: Some(0), ..hot.clone() }, false),
        (SamplingOptions { repetition_penalty: Some(0.9), ..hot }, false),
    ] {
        let options = GenerateOptions {
            max_tokens: Some(24),
            sampling: sampling.clone(),
            ignore_eos: true,
            ..GenerateOptions::default()
        };
        let mut session = model.session().unwrap();
        let mut answer = Generation::new(&model, &mut session, prompt.clone(), options).unwrap();
        while answer.finished().is_none() {
            answer.step(&mut model, &mut session).unwrap();
        }
        assert_eq!(model.backend().last_plan().to_string().contains("top_k"), few, "{sampling:?}");
        let sampling = sampling.or(model.codec().sampling());
        assert_eq!(
            answer.tokens(),
            from_all_logits(&mut model, &prompt, sampling.clone(), 24),
            "{sampling:?}"
        );
    }
}

/// Runs nothing, and notes how many bytes are asked for.
struct Reads {
    dry: Dry,
    asked: Rc<Cell<u64>>,
}

impl Executor for Reads {
    support::forward!(dry: buffer free write run take);
    fn ask(&mut self, buffer: BufferId, bytes: u64) -> Result<()> {
        self.asked.set(bytes);
        self.dry.ask(buffer, bytes)
    }
}

/// Eight bytes a candidate leave the GPU; of a vocabulary as large as Llama 3's, in a few dispatches.
#[test]
fn only_what_is_asked_for_is_read_back() {
    let asked = Rc::new(Cell::new(0));
    let mut gpu = GpuBackend::new(Reads { dry: Dry::default(), asked: asked.clone() });
    let x = tensor(&mut gpu, &[1.0; WIDTH], WIDTH);
    gpu.read(&x).unwrap();
    let weight = gpu.vector(vec![1.0; WIDTH]).unwrap();
    let norm = Norm { weight: &weight, eps: 1e-5 };
    for (n, k, bytes, dispatches) in [
        (128_256, 1, 8, vec![(126, 1), (1, 1)]),
        (128_256, 40, 320, vec![(126, 64), (8, 64), (1, 64)]),
        (128_256, 104, 832, vec![(126, 128), (16, 128), (2, 128), (1, 128)]),
        (49_152, 1, 8, vec![(48, 1), (1, 1)]),
        (49_152, 40, 320, vec![(48, 64), (3, 64), (1, 64)]),
        (256, 64, 512, vec![(1, 64)]),
        (50, 64, 400, vec![(1, 64)]),
    ] {
        let table = lowbit_core::kernels::selftest::sample(Format::Q4, n, WIDTH, 1);
        let output = gpu.matrix(table).unwrap();
        let plans = [(); 2].map(|()| {
            gpu.top_k(&x, 0, norm, &output, k).unwrap();
            gpu.last_plan()
        });
        assert_eq!(asked.get(), bytes, "{k} of {n}");
        let chosen = plans[1].dispatches.iter().filter(|run| run.shader.to_string().starts_with("top_k"));
        let groups: Vec<_> = chosen.clone().map(|run| run.workgroups[0]).collect();
        assert_eq!(groups, dispatches.iter().map(|run| run.0).collect::<Vec<_>>(), "{k} of {n}");
        for (run, (_, kept)) in chosen.zip(&dispatches) {
            assert!(run.shader.to_string().starts_with(&format!("top_k {kept} of ")), "{}", run.shader);
            let [from, to] = run.buffers[..] else { panic!("{} buffers", run.buffers.len()) };
            assert_ne!(from, to, "{}", run.shader);
        }
        assert!(plans[0].is_same(&plans[1]), "{}\n{}", plans[0], plans[1]);
    }
}
