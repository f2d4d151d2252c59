//! Gemma 3's forward pass on made-up weights: every backend computes what the formulas say.

#![allow(clippy::unwrap_used)]

mod support;

use lowbit_core::Format;
use lowbit_core::activation::Activations;
use lowbit_core::backend::{Backend, CpuBackend, at_once};
use lowbit_core::container::Artifact;
use lowbit_core::simd::Isa;
use lowbit_engine::arch::{Gemma3Config, ModelConfig, RopeConfig, RopeScaling, Transformer, Weights};
use lowbit_engine::convert::{Options, in_memory};
use lowbit_engine::kv_cache::KvCache;
use lowbit_engine::oracle::Oracle;
use lowbit_engine::{LoadOptions, SelfTest, Upload};
use lowbit_testing::TinyModel;
use support::{RandomWeights, tiny_gemma3_config};

const CONTEXT: usize = 40;

/// The logits of all `ids`, run in chunks of `chunk`.
fn logits<B: Backend>(mut device: B, config: &ModelConfig, ids: &[u32], chunk: usize) -> Vec<f32> {
    let weights = RandomWeights::new(config, Format::F32, 1);
    let mut model = Transformer::load(config.clone(), &weights, &device, CONTEXT).unwrap();
    let mut cache = KvCache::new(&device, config.attention(), CONTEXT).unwrap();
    let (mut all, mut logits) = (Vec::new(), Vec::new());
    for (i, ids) in ids.chunks(chunk).enumerate() {
        model.forward(&mut device, &mut cache, ids, i * chunk, 0..ids.len(), None).unwrap();
        at_once(device.take(&mut logits)).unwrap();
        all.extend_from_slice(&logits);
    }
    all
}

fn ids() -> Vec<u32> {
    (0..CONTEXT as u32).map(|i| i * 11 % 270).collect()
}

fn cpu(isa: Isa, threads: usize) -> CpuBackend {
    CpuBackend::new(isa, threads, Activations::A16).unwrap()
}

fn farthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The formulas, in f64, a token after the other; nothing of this is shared with the engine.
struct Paper<'a> {
    config: &'a ModelConfig,
    gemma3: &'a Gemma3Config,
    weights: RandomWeights,
    /// Of every layer: keys and values `[position][n_kv_heads * head_dim]`.
    cache: Vec<[Vec<Vec<f64>>; 2]>,
}

impl<'a> Paper<'a> {
    fn new(config: &'a ModelConfig) -> Self {
        let cache = vec![[Vec::new(), Vec::new()]; config.n_layers];
        let weights = RandomWeights::new(config, Format::F32, 1);
        Self { config, gemma3: config.gemma3.as_ref().unwrap(), weights, cache }
    }

    fn matrix(&self, name: &str) -> Vec<Vec<f64>> {
        let device = cpu(Isa::Scalar, 1);
        let (_, matrix) = self.weights.matrix(&format!("{name}.weight"), &device).unwrap();
        let mut row = vec![0.0; matrix.k];
        let mut floats = |n| {
            matrix.dequantize_row(n, &mut row);
            row.iter().map(|x| f64::from(*x)).collect()
        };
        (0..matrix.n).map(&mut floats).collect()
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        self.matrix(name).iter().map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = Weights::<Oracle>::vector(&self.weights, &format!("{name}.weight")).unwrap();
        let square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let rms = (square + f64::from(self.config.rms_eps)).sqrt();
        x.iter().zip(weight).map(|(x, w)| x / rms * f64::from(w)).collect()
    }

    /// Normalised and rotated heads.
    fn heads(&self, norm: &str, x: &[f64], pos: usize, is_global: bool) -> Vec<f64> {
        let RopeConfig { base, scaling, .. } =
            if is_global { &self.config.rope } else { &self.gemma3.local_rope };
        let slower = if let RopeScaling::Linear { factor } = scaling { *factor } else { 1.0 };
        let (d, half) = (self.config.head_dim, self.config.head_dim / 2);
        let rotated = |head: &[f64]| {
            let mut head = self.norm(norm, head);
            for i in 0..half {
                let angle = pos as f64 / slower * base.powf(-2.0 * i as f64 / d as f64);
                let (a, b) = (head[i], head[i + half]);
                head[i] = a * angle.cos() - b * angle.sin();
                head[i + half] = b * angle.cos() + a * angle.sin();
            }
            head
        };
        x.chunks(d).flat_map(rotated).collect()
    }

    fn attention(&mut self, i: usize, x: &[f64], pos: usize) -> Vec<f64> {
        let name = |name: &str| format!("blk.{i}.{name}");
        let is_global = i % 3 == 2;
        let q = self.heads(&name("attn_q_norm"), &self.linear(&name("attn_q"), x), pos, is_global);
        let k = self.heads(&name("attn_k_norm"), &self.linear(&name("attn_k"), x), pos, is_global);
        let v = self.linear(&name("attn_v"), x);
        let [keys, values] = &mut self.cache[i];
        keys.push(k);
        values.push(v);
        let first = if is_global { 0 } else { (pos + 1).saturating_sub(5) };
        let (d, group) = (self.config.head_dim, self.config.n_heads / self.config.n_kv_heads);
        let mut out = Vec::new();
        for (head, q) in q.chunks(d).enumerate() {
            let part = head / group * d..(head / group + 1) * d;
            let score = |k: &Vec<f64>| {
                let products = q.iter().zip(&k[part.clone()]).map(|(q, k)| q * k);
                (products.sum::<f64>() / f64::from(self.gemma3.query_scalar).sqrt()).exp()
            };
            let weights: Vec<f64> = keys[first..].iter().map(score).collect();
            let mean = |d: usize| {
                let weighted = weights.iter().zip(&values[first..]).map(|(w, v)| w * v[d]);
                weighted.sum::<f64>() / weights.iter().sum::<f64>()
            };
            out.extend(part.clone().map(mean));
        }
        self.linear(&name("attn_output"), &out)
    }

    fn feed_forward(&self, i: usize, x: &[f64]) -> Vec<f64> {
        let name = |name: &str| format!("blk.{i}.{name}");
        let (gate, up) = (self.linear(&name("ffn_gate"), x), self.linear(&name("ffn_up"), x));
        let gelu = |x: f64| {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        };
        let hidden: Vec<f64> = gate.into_iter().zip(up).map(|(gate, up)| gelu(gate) * up).collect();
        self.linear(&name("ffn_down"), &hidden)
    }

    fn logits(&mut self, id: u32, pos: usize) -> Vec<f64> {
        let scale = (self.config.d_model as f64).sqrt();
        let mut x: Vec<f64> = self.matrix("token_embd")[id as usize].iter().map(|x| x * scale).collect();
        let add = |x: &mut Vec<f64>, y: Vec<f64>| x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
        for i in 0..self.config.n_layers {
            let name = |name: &str| format!("blk.{i}.{name}");
            let attended = self.attention(i, &self.norm(&name("attn_norm"), &x), pos);
            add(&mut x, self.norm(&name("post_attention_norm"), &attended));
            let fed = self.feed_forward(i, &self.norm(&name("ffn_norm"), &x));
            add(&mut x, self.norm(&name("post_ffw_norm"), &fed));
        }
        self.linear("token_embd", &self.norm("output_norm", &x))
    }
}

#[test]
fn backends_compute_what_the_paper_says() {
    let config = tiny_gemma3_config();
    let mut paper = Paper::new(&config);
    let exact = ids().into_iter().enumerate().flat_map(|(pos, id)| paper.logits(id, pos));
    let exact: Vec<f32> = exact.map(|x| x as f32).collect();
    let size = exact.iter().fold(0f32, |size, x| size.max(x.abs()));
    let oracle = logits(Oracle::default(), &config, &ids(), CONTEXT);
    assert!(farthest(&oracle, &exact) < 2e-5 * size, "{} of {size}", farthest(&oracle, &exact));
    let found = logits(cpu(Isa::best(), 2), &config, &ids(), CONTEXT);
    // The cache of the CPU holds halves.
    assert!(farthest(&found, &exact) < 3e-3 * size, "{} of {size}", farthest(&found, &exact));
}

#[test]
fn isas_threads_and_chunks_give_the_same_bits() {
    let config = tiny_gemma3_config();
    let bits = |logits: Vec<f32>| logits.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let expected = bits(logits(cpu(Isa::Scalar, 1), &config, &ids(), CONTEXT));
    for isa in Isa::available() {
        for (threads, chunk) in [(1, 1), (2, 7), (3, CONTEXT)] {
            let found = bits(logits(cpu(isa, threads), &config, &ids(), chunk));
            assert!(found == expected, "{isa} {threads} threads, chunks of {chunk}");
        }
    }
    let oracle = bits(logits(Oracle::default(), &config, &ids(), CONTEXT));
    assert!(oracle == bits(logits(Oracle::default(), &config, &ids(), 3)), "the oracle in chunks");
}

#[test]
fn only_global_layers_see_beyond_the_window() {
    let mut other = ids();
    other[0] = 269;
    let last = |config: &ModelConfig, ids: &[u32]| {
        let all = logits(Oracle::default(), config, ids, CONTEXT);
        all[(CONTEXT - 1) * config.vocab_size..].to_vec()
    };
    let config = tiny_gemma3_config();
    let local = ModelConfig { n_layers: 2, ..config.clone() };
    assert!(last(&config, &ids()) != last(&config, &other));
    assert!(last(&local, &ids()) == last(&local, &other));
}

#[test]
fn bad_configurations_name_the_field() {
    let change = |change: fn(&mut Gemma3Config)| {
        let mut config = tiny_gemma3_config();
        config.gemma3.iter_mut().for_each(change);
        config.validate().unwrap_err().to_string()
    };
    for (message, field) in [
        (change(|c| c.window = 0), "gemma3.window"),
        (change(|c| c.global_every = 0), "gemma3.global_every"),
        (change(|c| c.query_scalar = -1.0), "gemma3.query_scalar"),
        (change(|c| c.embedding_scale = f32::NAN), "gemma3.embedding_scale"),
        (change(|c| c.local_rope.base = 0.0), "gemma3.local_rope.base"),
    ] {
        assert!(message.contains(field), "{message}");
    }
}

/// A whole model as a file has it.
fn artifact() -> Artifact {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, TinyModel { architecture: "gemma3", ..TinyModel::default() }.gguf()).unwrap();
    in_memory(&path, &Options::default(), &mut |_| ()).unwrap()
}

#[test]
fn a_device_that_computes_rightly_passes_the_self_test() {
    let artifact = artifact();
    let mut test = SelfTest::new(artifact.header(), Activations::A16).unwrap();
    at_once(test.poll(&mut Oracle::default())).unwrap();

    let mut upload = Upload::new(artifact.header().clone(), Oracle::default());
    upload.push(artifact.data().as_slice()).unwrap();
    let mut test = upload.layer_test(Activations::A16);
    let mut model = upload.finish(LoadOptions::default()).unwrap();
    let mut session = model.session().unwrap();
    at_once(test.poll(&mut model, &mut session)).unwrap();
}
