use super::*;
use crate::Format;
use crate::activation::Activations;
use crate::pack::{Origin, matrix_from_f32};
use crate::simd::Isa;

const SHAPE: AttentionShape = AttentionShape { n_heads: 6, n_kv_heads: 2, head_dim: 16, window: None };
/// In the middle of a tile of positions.
const WINDOW: usize = 21;
const EMBEDDING_SCALE: f32 = 1.7;
const WIDTH: usize = 96;
const KV_WIDTH: usize = 32;
/// No multiple of 16 nor 32.
const FFN: usize = 200;
const VOCAB: usize = 75;
const POSITIONS: usize = 70;
const EPS: f32 = 1e-5;

/// Reproducible values in `-scale..scale`.
fn random(len: usize, seed: u32, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(7919) + 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next() * scale).collect()
}

fn matrix(format: Format, n: usize, k: usize, seed: u32) -> PackedMatrix {
    let values = random(n * k, seed, 1.5 / (k as f32).sqrt());
    matrix_from_f32(format, k, &values, Origin { file: "test", tensor: "w" }).unwrap()
}

fn table() -> RopeTable {
    let angles = (0..POSITIONS).flat_map(|p| (0..8).map(move |i| p as f64 * 0.4f64.powi(i)));
    let (cos, sin) = angles.map(|a| (a.cos() as f32, a.sin() as f32)).unzip();
    RopeTable { style: RopeStyle::Interleaved, head_dim: SHAPE.head_dim, cos, sin }
}

/// One layer with a matrix of every kind, which read rows in three forms, the embedding being the output matrix too.
#[derive(Clone)]
struct Layer {
    /// Whether it is one of Gemma 3: with a window, a scaled embedding, and norms of heads and after products.
    is_gemma: bool,
    embedding: PackedMatrix,
    qkv: [PackedMatrix; 3],
    attention_output: PackedMatrix,
    gate_up: [PackedMatrix; 2],
    down: PackedMatrix,
    norms: [Vec<f32>; 5],
    head_norms: [Vec<f32>; 2],
    rope: RopeTable,
    ids: Vec<u32>,
}

impl Layer {
    fn new() -> Self {
        use Format::*;
        Self {
            is_gemma: false,
            embedding: matrix(Q8, VOCAB, WIDTH, 1),
            qkv: [
                matrix(P4, WIDTH, WIDTH, 2),
                matrix(Q8, KV_WIDTH, WIDTH, 3),
                matrix(F32, KV_WIDTH, WIDTH, 4),
            ],
            attention_output: matrix(C4, WIDTH, WIDTH, 5),
            gate_up: [matrix(Q4, FFN, WIDTH, 6), matrix(F32, FFN, WIDTH, 7)],
            down: matrix(Q4, WIDTH, FFN, 8),
            norms: [9, 10, 11, 12, 13].map(|seed| random(WIDTH, seed, 2.0)),
            head_norms: [14, 15].map(|seed| random(SHAPE.head_dim, seed, 2.0)),
            rope: table(),
            ids: (0..POSITIONS as u32).map(|i| i * 31 % VOCAB as u32).collect(),
        }
    }

    fn gemma() -> Self {
        Self { is_gemma: true, ..Self::new() }
    }

    fn heads(&self) -> Heads<'_, RopeTable, Vec<f32>> {
        let norms = self.head_norms.each_ref().map(|weight| Norm { weight, eps: EPS });
        Heads { norms: self.is_gemma.then_some(norms), rope: &self.rope }
    }

    fn shape(&self) -> AttentionShape {
        AttentionShape { window: self.is_gemma.then_some(WINDOW), ..SHAPE }
    }

    fn scale(&self) -> f32 {
        if self.is_gemma { EMBEDDING_SCALE } else { 1.0 }
    }

    /// `x += y * matrix`, for Gemma 3 normalised by its norm `i`.
    fn add(&self, cpu: &mut CpuBackend, y: &Tensor, matrix: &PackedMatrix, i: usize, x: &mut Tensor) {
        if self.is_gemma {
            cpu.linear_norm_add(y, matrix, Norm { weight: &self.norms[i], eps: EPS }, x).unwrap();
        } else {
            cpu.linear_add(y, matrix, x).unwrap();
        }
    }

    /// The residual stream and the logits of every position, computed in chunks.
    fn run(&self, mut cpu: CpuBackend, chunk: usize) -> Vec<f32> {
        let norm = |i: usize| Norm { weight: &self.norms[i], eps: EPS };
        let act = if self.is_gemma { Gate::GeluTanh } else { Gate::Silu };
        let mut kv = cpu.kv(self.shape(), POSITIONS).unwrap();
        let [mut x, mut queries, mut attention, mut hidden] = [(); 4].map(|()| cpu.tensor());
        let (mut stream, mut all_logits, mut logits) = (Vec::new(), Vec::new(), Vec::new());
        for (i, ids) in self.ids.chunks(chunk).enumerate() {
            let pos = i * chunk;
            let [q, k, v] = &self.qkv;
            cpu.embed(&self.embedding, ids, self.scale(), &mut x).unwrap();
            cpu.attention_input(&x, norm(0), [q, k, v], self.heads(), pos, &mut kv, &mut queries).unwrap();
            cpu.attention(&queries, &kv, pos, &mut attention).unwrap();
            self.add(&mut cpu, &attention, &self.attention_output, 3, &mut x);
            let [gate, up] = &self.gate_up;
            cpu.gated(&x, norm(1), act, [gate, up], &mut hidden).unwrap();
            self.add(&mut cpu, &hidden, &self.down, 4, &mut x);
            stream.extend(cpu.read(&x).unwrap());
            cpu.logits(&x, 0..ids.len(), norm(2), &self.embedding).unwrap();
            at_once(cpu.take(&mut logits)).unwrap();
            all_logits.extend_from_slice(&logits);
        }
        stream.extend(all_logits);
        stream
    }

    /// The same by the formulas, in f64, with keys and values as halves.
    fn exact(&self) -> Vec<f64> {
        let half = |x: f64| half::f16::from_f64(x).to_f64();
        let product = |x: &[f64], w: &PackedMatrix| -> Vec<f64> {
            (0..w.n)
                .map(|n| {
                    let mut row = vec![0.0; w.k];
                    w.dequantize_row(n, &mut row);
                    row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()
                })
                .collect()
        };
        let by_weight = |x: &[f64], weight: &[f32]| -> Vec<f64> {
            let rms = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + f64::from(EPS)).sqrt();
            x.iter().zip(weight).map(|(x, w)| x / rms * f64::from(*w)).collect()
        };
        let normed = |x: &[f64], i: usize| by_weight(x, &self.norms[i]);
        let after = |x: Vec<f64>, i: usize| if self.is_gemma { normed(&x, i) } else { x };
        let headed = |x: Vec<f64>, weight: &[f32]| match self.is_gemma {
            true => x.chunks(16).flat_map(|head| by_weight(head, weight)).collect(),
            false => x,
        };
        let rotated = |mut x: Vec<f64>, pos: usize| {
            for (i, pair) in x.chunks_mut(2).enumerate() {
                let angle = pos as f64 * 0.4f64.powi((i % 8) as i32);
                let (a, b) = (pair[0], pair[1]);
                (pair[0], pair[1]) = (a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos());
            }
            x
        };
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let (mut stream, mut logits) = (Vec::new(), Vec::new());
        for (pos, &id) in self.ids.iter().enumerate() {
            let mut row = vec![0.0; WIDTH];
            self.embedding.dequantize_row(id as usize, &mut row);
            let mut x: Vec<f64> = row.into_iter().map(|x| f64::from(x) * f64::from(self.scale())).collect();
            let h = normed(&x, 0);
            let q = rotated(headed(product(&h, &self.qkv[0]), &self.head_norms[0]), pos);
            let k = rotated(headed(product(&h, &self.qkv[1]), &self.head_norms[1]), pos);
            keys.push(k.into_iter().map(half).collect::<Vec<_>>());
            values.push(product(&h, &self.qkv[2]).into_iter().map(half).collect::<Vec<_>>());
            let seen = if self.is_gemma { (pos + 1).saturating_sub(WINDOW) } else { 0 };
            let mut attended = Vec::new();
            for (head, q) in q.chunks(16).enumerate() {
                let columns = head / 3 * 16..(head / 3 + 1) * 16;
                let score =
                    |k: &Vec<f64>| q.iter().zip(&k[columns.clone()]).map(|(q, k)| q * k).sum::<f64>() / 4.0;
                let weights: Vec<f64> = keys[seen..].iter().map(|k| score(k).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let mean = |d: usize| {
                    weights.iter().zip(&values[seen..]).map(|(w, v): (_, &Vec<f64>)| w * v[d]).sum::<f64>()
                        / sum
                };
                attended.extend(columns.map(mean));
            }
            let add = |x: &mut Vec<f64>, y: Vec<f64>| x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
            add(&mut x, after(product(&attended, &self.attention_output), 3));
            let h = normed(&x, 1);
            let (gate, up) = (product(&h, &self.gate_up[0]), product(&h, &self.gate_up[1]));
            let act = |g: f64| match self.is_gemma {
                true => {
                    0.5 * g
                        * (1.0 + (std::f64::consts::FRAC_2_PI.sqrt() * (g + 0.044_715 * g.powi(3))).tanh())
                }
                false => g / (1.0 + (-g).exp()),
            };
            let hidden: Vec<f64> = gate.iter().zip(up).map(|(g, u)| act(*g) * u).collect();
            add(&mut x, after(product(&hidden, &self.down), 4));
            logits.extend(product(&normed(&x, 2), &self.embedding));
            stream.extend(x);
        }
        stream.extend(logits);
        stream
    }
}

fn cpu(isa: Isa, threads: usize, activations: Activations) -> CpuBackend {
    CpuBackend::new(isa, threads, activations).unwrap()
}

#[test]
fn isas_threads_and_chunks_give_the_same_bits() {
    let cases = [Layer::new(), Layer::gemma()]
        .into_iter()
        .flat_map(|layer| [Activations::A8, Activations::A16].map(|act| (layer.clone(), act)));
    for (layer, activations) in cases {
        let expected = layer.run(cpu(Isa::Scalar, 1, activations), POSITIONS);
        let teams =
            [(1, 1), (1, 64), (2, 7), (3, 70), (4, 16), (2, 1), (5, 9), (6, 33), (7, 2), (8, 15), (9, 17)];
        for isa in Isa::available() {
            for (threads, chunk) in teams {
                let out = layer.run(cpu(isa, threads, activations), chunk);
                let first = out.iter().zip(&expected).position(|(a, b)| a.to_bits() != b.to_bits());
                assert_eq!(out.len(), expected.len());
                let what = if layer.is_gemma { "Gemma 3" } else { "Llama" };
                assert_eq!(first, None, "{what} {activations:?} {isa} {threads} threads, chunks of {chunk}");
            }
        }
    }
}

#[test]
fn a16_is_close_to_f64() {
    for layer in [Layer::new(), Layer::gemma()] {
        let out = layer.run(cpu(Isa::best(), 2, Activations::A16), 32);
        let exact = layer.exact();
        let (mut error, mut size) = (0.0f64, 0.0f64);
        for (out, exact) in out.iter().zip(&exact) {
            error += (f64::from(*out) - exact).powi(2);
            size += exact.powi(2);
        }
        assert_eq!(out.len(), exact.len());
        assert!(error.sqrt() < 4e-4 * size.sqrt(), "Gemma 3 {}: {}", layer.is_gemma, (error / size).sqrt());
    }
}

#[test]
fn operands_that_do_not_fit_are_errors() {
    let layer = Layer::new();
    let mut cpu = cpu(Isa::best(), 1, Activations::A8);
    let [mut x, mut queries, mut out] = [(); 3].map(|()| cpu.tensor());
    let mut kv = cpu.kv(SHAPE, 4).unwrap();
    let norm = Norm { weight: &layer.norms[0], eps: EPS };
    let [q, k, v] = &layer.qkv;
    assert!(cpu.embed(&layer.embedding, &[VOCAB as u32], 1.0, &mut x).is_err());
    cpu.embed(&layer.embedding, &[1, 2], 1.0, &mut x).unwrap();
    assert!(
        cpu.attention_input(&x, norm, [q, k, v], layer.heads(), 3, &mut kv, &mut queries).is_err(),
        "cache full"
    );
    assert!(
        cpu.attention_input(&x, norm, [q, k, v], layer.heads(), usize::MAX, &mut kv, &mut queries).is_err(),
        "past the table"
    );
    assert!(cpu.attention_input(&x, norm, [k, q, v], layer.heads(), 0, &mut kv, &mut queries).is_err());
    cpu.attention_input(&x, norm, [q, k, v], layer.heads(), 2, &mut kv, &mut queries).unwrap();
    assert!(cpu.attention(&queries, &kv, 3, &mut out).is_err());
    assert!(cpu.linear_add(&queries, &layer.down, &mut x).is_err());
    assert!(cpu.linear_norm_add(&queries, &layer.down, norm, &mut x).is_err());
    let narrow_heads = Heads { norms: Some([norm; 2]), rope: &layer.rope };
    assert!(cpu.attention_input(&x, norm, [q, k, v], narrow_heads, 0, &mut kv, &mut queries).is_err());
    let narrow = Norm { weight: &vec![1.0; 3], eps: EPS };
    assert!(cpu.logits(&x, 0..1, narrow, &layer.embedding).is_err());
    assert!(cpu.linear_norm_add(&x, &layer.attention_output, norm, &mut queries).is_ok());
    assert!(cpu.linear_norm_add(&x, &layer.attention_output, narrow, &mut queries).is_err());
    assert!(cpu.logits(&x, 1..3, norm, &layer.embedding).is_err());
    let short = RopeTable { sin: Vec::new(), ..table() };
    assert!(cpu.rope(short).is_err());
    let missing = Isa::ALL.into_iter().find(|isa| !isa.is_available());
    assert!(missing.is_none_or(|isa| CpuBackend::new(isa, 1, Activations::A8).is_err()));
}

#[test]
fn no_rows_are_no_work() {
    let layer = Layer::new();
    let mut cpu = cpu(Isa::best(), 2, Activations::A8);
    let [mut x, mut hidden] = [(); 2].map(|()| cpu.tensor());
    let norm = Norm { weight: &layer.norms[0], eps: EPS };
    let [gate, up] = &layer.gate_up;
    cpu.embed(&layer.embedding, &[], 1.0, &mut x).unwrap();
    cpu.gated(&x, norm, Gate::GeluTanh, [gate, up], &mut hidden).unwrap();
    cpu.linear_add(&hidden, &layer.down, &mut x).unwrap();
    let mut logits = vec![1.0];
    cpu.logits(&x, 0..0, norm, &layer.embedding).unwrap();
    at_once(cpu.take(&mut logits)).unwrap();
    assert!(logits.is_empty() && cpu.read(&x).unwrap().is_empty());
}

#[test]
fn the_largest_logits_are_those_of_the_last_row_that_was_asked_for() {
    let layer = Layer::new();
    let mut cpu = cpu(Isa::best(), 2, Activations::A8);
    let (mut x, mut logits, mut found) = (cpu.tensor(), Vec::new(), Vec::new());
    let norm = Norm { weight: &layer.norms[2], eps: EPS };
    cpu.embed(&layer.embedding, &layer.ids[..3], 1.0, &mut x).unwrap();
    for row in 0..3 {
        cpu.logits(&x, row..row + 1, norm, &layer.embedding).unwrap();
        at_once(cpu.take(&mut logits)).unwrap();
        for k in [1, 7, MAX_TOP_K] {
            let mut expected = Vec::new();
            cpu.top_k(&x, row, norm, &layer.embedding, k).unwrap();
            at_once(cpu.take_top_k(k, &mut found)).unwrap();
            top_k(&logits, k, &mut expected);
            assert_eq!(found, expected);
            assert_eq!(found.len(), k.min(VOCAB));
        }
    }
    assert!(cpu.top_k(&x, 3, norm, &layer.embedding, 1).is_err());
}
