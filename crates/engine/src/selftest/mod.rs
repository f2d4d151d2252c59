//! Whether a device computes what the CPU computes: every op of a model, on made-up weights in the model's formats.

mod layer;

use crate::Result;
use crate::arch::ModelConfig;
pub(crate) use layer::FirstLayer;
pub use layer::LayerTest;
use lowbit_core::activation::Activations;
use lowbit_core::backend::{
    AttentionShape, Backend, CpuBackend, Gate, Heads, MAX_TOP_K, Norm, RopeStyle, RopeTable, at_once,
};
use lowbit_core::container::Header;
use lowbit_core::format::Format;
use lowbit_core::kernels::selftest::sample;
use lowbit_core::pack::{Origin, matrix_from_f32};
use lowbit_core::simd::Isa;
use lowbit_core::{Error, PackedMatrix};
use std::task::{Poll, ready};

/// Input features: more blocks than any shader takes at once. Output features: no whole number of tiles.
const WIDTH: usize = 768;
const FEATURES: usize = 83;
/// Rows of a prompt's chunk.
const ROWS: usize = 33;
/// Of how many tokens the largest logits are chosen: more than any workgroup takes. How many of them: of every shader.
const TOKENS: usize = 3000;
const LEVELS_WIDTH: usize = 32;
const TOP_K: [usize; 3] = [1, 40, MAX_TOP_K];
/// Positions that a query sees where the model has windows.
const WINDOW: usize = 20;

/// An op with the formats of its matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Embed(Format),
    Attention([Format; 3]),
    /// Attention of normalised heads with a window.
    WindowedAttention([Format; 3]),
    Linear(Format),
    /// A product of integers, which is the same bits on every device that multiplies them.
    Exact(Format),
    /// A product that is normalised.
    LinearNorm(Format),
    Gated([Format; 2], Gate),
    Logits(Format),
    /// So many of the largest logits.
    TopK(usize),
}

/// What an op gives: tokens, which must be the same on every device, and values, which may be a little off.
#[derive(Debug, Default)]
struct Results {
    ids: Vec<u32>,
    values: Vec<f32>,
}

/// The checks that are still to be made.
pub struct SelfTest {
    /// An op, and the rows it is given.
    checks: Vec<(Op, usize)>,
    heads: AttentionShape,
    reference: CpuBackend,
    /// What the device has been asked for, as the CPU has it.
    expected: Option<Results>,
}

impl SelfTest {
    /// The ops of the model that `header` describes. `activations` are those that the device computes with; where it does
    /// not quantise them, [`Activations::A16`] is as exact.
    ///
    /// # Errors
    /// When the header describes no model.
    pub fn new(header: &Header, activations: Activations) -> Result<Self> {
        let config = ModelConfig::of(&header.manifest).map_err(|error| error.of(&header.file))?;
        let format = |name: String| header.matrix(&name).map(|(entry, _)| entry.format);
        let mut ops = Vec::new();
        for i in 0..config.n_layers {
            let [q, k, v, output, gate, up, down] =
                ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
                    .map(|name| format(format!("blk.{i}.{name}.weight")));
            let is_gemma = config.gemma3.is_some();
            let (attention, linear, act): (fn(_) -> _, fn(_) -> _, _) = match is_gemma {
                false => (Op::Attention, Op::Linear, Gate::Silu),
                true => (Op::WindowedAttention, Op::LinearNorm, Gate::GeluTanh),
            };
            ops.extend(q.zip(k).zip(v).map(|((q, k), v)| attention([q, k, v])));
            ops.extend(gate.zip(up).map(|(gate, up)| Op::Gated([gate, up], act)));
            ops.extend([output, down].into_iter().flatten().map(linear));
            let all = [q, k, v, output, gate, up, down].into_iter().flatten();
            let exact =
                all.filter(|format| activations == Activations::A8 && format.spec().scale.is_channel());
            ops.extend(exact.map(Op::Exact));
        }
        let embedding = format("token_embd.weight".to_owned());
        let output = format("output.weight".to_owned()).or(embedding);
        ops.extend(embedding.map(Op::Embed));
        ops.extend(output.map(Op::Logits));
        // The last is made first: what is chosen from comes before the choice.
        let mut checks = TOP_K.map(|k| (Op::TopK(k), 1)).to_vec();
        for op in ops {
            if !checks.iter().any(|(known, _)| *known == op) {
                checks.extend([(op, 1), (op, ROWS)]);
            }
        }
        // One key and value head less than all may have is enough to see whether heads are told apart.
        let group = config.n_heads / config.n_kv_heads.max(1);
        let n_kv_heads = config.n_kv_heads.min(2);
        let (n_heads, head_dim) = (group * n_kv_heads, config.head_dim);
        let window = config.gemma3.as_ref().map(|_| WINDOW);
        let heads = AttentionShape { n_heads, n_kv_heads, head_dim, window };
        Ok(Self { checks, heads, reference: CpuBackend::new(Isa::best(), 1, activations)?, expected: None })
    }

    /// Makes the next checks; pending while the device works, and then to be called again.
    ///
    /// # Errors
    /// [`Error::Device`], naming the op, when the device computes wrongly; the device's own errors.
    pub fn poll<B: Backend>(&mut self, device: &mut B) -> Poll<lowbit_core::Result<()>> {
        while let Some(&(op, rows)) = self.checks.last() {
            if self.expected.is_none() {
                op.run(rows, self.heads, &mut self.reference)?;
                self.expected = Some(at_once(op.take(&mut self.reference))?);
                op.run(rows, self.heads, device)?;
            }
            let found = ready!(op.take(device))?;
            let expected = self.expected.take().unwrap_or_default();
            expected.compare(&found, op, self.reference.activations()).map_err(|problem| {
                Error::gpu(format!("{op:?} of {rows} rows computes wrongly: {problem}"))
            })?;
            self.checks.pop();
        }
        Poll::Ready(Ok(()))
    }
}

impl Op {
    /// Asks a device for the results.
    fn run<B: Backend>(self, rows: usize, heads: AttentionShape, device: &mut B) -> lowbit_core::Result<()> {
        let matrix = |device: &B, format, n, seed| device.matrix(sample(format, n, WIDTH, seed));
        let weight = device.vector((0..WIDTH).map(|i| (1.2 - 0.001 * i as f32) / self.gain()).collect())?;
        let norm = Norm { weight: &weight, eps: 1e-5 };
        let x = floats(device, rows, WIDTH, 1)?;
        let mut out = device.tensor();
        match self {
            Self::Embed(format) => {
                let table = matrix(device, format, FEATURES, 2)?;
                let ids: Vec<u32> = (0..rows).map(|row| (row * 37 % FEATURES) as u32).collect();
                device.embed(&table, &ids, 1.7, &mut out)?;
                device.fetch(&out)
            }
            Self::Linear(format) => {
                let matrix = matrix(device, format, FEATURES, 3)?;
                let mut sum = floats(device, rows, FEATURES, 4)?;
                device.linear_add(&x, &matrix, &mut sum)?;
                device.fetch(&sum)
            }
            Self::Exact(format) => {
                let matrix = matrix(device, format, FEATURES, 3)?;
                let zeros = device.matrix(zeros(rows)?)?;
                device.embed(&zeros, &(0..rows as u32).collect::<Vec<_>>(), 1.0, &mut out)?;
                device.set_strict(true);
                let result = device.linear_add(&x, &matrix, &mut out);
                device.set_strict(false);
                result?;
                device.fetch(&out)
            }
            Self::LinearNorm(format) => {
                let matrix = matrix(device, format, FEATURES, 3)?;
                let weight = device.vector((0..FEATURES).map(|i| 1.2 - 0.01 * i as f32).collect())?;
                let mut sum = floats(device, rows, FEATURES, 4)?;
                device.linear_norm_add(&x, &matrix, Norm { weight: &weight, eps: 1e-5 }, &mut sum)?;
                device.fetch(&sum)
            }
            Self::Gated([gate, up], act) => {
                let (gate, up) = (matrix(device, gate, FEATURES, 5)?, matrix(device, up, FEATURES, 6)?);
                device.gated(&x, norm, act, [&gate, &up], &mut out)?;
                device.fetch(&out)
            }
            Self::Logits(format) => {
                let matrix = matrix(device, format, FEATURES, 7)?;
                device.logits(&x, 0..rows, norm, &matrix)
            }
            Self::TopK(k) => {
                let table = device.matrix(levels(k)?)?;
                device.embed(&table, &[1], 1.0, &mut out)?;
                let weight = device.vector(vec![1.0; LEVELS_WIDTH])?;
                device.top_k(&out, 0, Norm { weight: &weight, eps: 1e-5 }, &table, k)
            }
            Self::Attention([q, k, v]) | Self::WindowedAttention([q, k, v]) => {
                let AttentionShape { n_heads, n_kv_heads, head_dim, window } = heads;
                let [n, kv_n] = [n_heads, n_kv_heads].map(|heads| heads * head_dim);
                let q = matrix(device, q, n, 8)?;
                let (k, v) = (matrix(device, k, kv_n, 9)?, matrix(device, v, kv_n, 10)?);
                let rope = device.rope(rope(head_dim, 2 * ROWS))?;
                let weight = device.vector((0..head_dim).map(|i| 0.3 - 0.0002 * i as f32).collect())?;
                let norms = window.map(|_| [Norm { weight: &weight, eps: 1e-5 }; 2]);
                let heads_of = Heads { norms, rope: &rope };
                let (mut kv, mut queries) = (device.kv(heads, 2 * ROWS)?, device.tensor());
                // The positions before, so that one row has something to attend to.
                let before = floats(device, ROWS, WIDTH, 11)?;
                for (x, pos) in [(&before, 0), (&x, ROWS)] {
                    device.attention_input(x, norm, [&q, &k, &v], heads_of, pos, &mut kv, &mut queries)?;
                    device.attention(&queries, &kv, pos, &mut out)?;
                }
                device.fetch(&out)
            }
        }
    }

    /// What has been asked for.
    fn take<B: Backend>(self, device: &mut B) -> Poll<lowbit_core::Result<Results>> {
        let mut results = Results::default();
        if let Self::TopK(k) = self {
            let mut top = Vec::new();
            ready!(device.take_top_k(k, &mut top))?;
            (results.ids, results.values) = top.iter().map(|c| (c.id, c.logit)).unzip();
        } else {
            ready!(device.take(&mut results.values))?;
        }
        Poll::Ready(Ok(results))
    }
}

impl Results {
    /// What is wrong with the results of a device; see [`compare`].
    fn compare(&self, found: &Self, op: Op, activations: Activations) -> std::result::Result<(), String> {
        let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
        if let Op::Exact(_) = op
            && let Some(i) = self.values.iter().zip(&found.values).position(differs)
        {
            return Err(format!(
                "value {i} is {:e}, to the bit expected {:e}",
                found.values[i], self.values[i]
            ));
        }
        match self.ids.iter().zip(&found.ids).find(|(expected, found)| expected != found) {
            Some((expected, found)) => Err(format!("token {found}, expected {expected}")),
            None => compare(&self.values, &found.values, activations),
        }
    }
}

/// Rows of zeros.
fn zeros(rows: usize) -> lowbit_core::Result<PackedMatrix> {
    let origin = Origin { file: "self-test", tensor: "zeros" };
    matrix_from_f32(Format::F32, FEATURES, &vec![0.0; rows * FEATURES], origin)
}

/// A vocabulary of which each token has one of few logits, so far apart that all devices choose the same ones. It is another
/// one for every `k`: what was chosen before is not right again.
fn levels(k: usize) -> lowbit_core::Result<PackedMatrix> {
    let mut rows = vec![0.0; TOKENS * LEVELS_WIDTH];
    for (i, row) in rows.chunks_exact_mut(LEVELS_WIDTH).enumerate() {
        row[0] = ((i * 7919 + k * 31) % 201) as f32 - 100.0;
    }
    matrix_from_f32(Format::F32, LEVELS_WIDTH, &rows, Origin { file: "self-test", tensor: "levels" })
}

impl Op {
    /// By what the products of normalised rows are larger than the rows. Scores of attention must not be: softmax would
    /// make much of small differences.
    fn gain(self) -> f32 {
        let (Self::Attention([q, k, _]) | Self::WindowedAttention([q, k, _])) = self else { return 1.0 };
        let mut row = [0.0; WIDTH];
        let norm = |format: Format| {
            sample(format, 1, WIDTH, 8).dequantize_row(0, &mut row);
            row.iter().map(|x| x * x).sum::<f32>().sqrt()
        };
        [q, k].map(norm).into_iter().fold(0.0, f32::max)
    }
}

/// A tensor of made-up values: rows of an embedding table in single floats, which are exact.
fn floats<B: Backend>(
    device: &mut B,
    rows: usize,
    width: usize,
    seed: u64,
) -> lowbit_core::Result<B::Tensor> {
    let table: PackedMatrix = sample(Format::F32, rows, width, seed);
    let table = device.matrix(table)?;
    let mut x = device.tensor();
    device.embed(&table, &(0..rows as u32).collect::<Vec<_>>(), 1.0, &mut x)?;
    Ok(x)
}

fn rope(head_dim: usize, positions: usize) -> RopeTable {
    let angles = (0..positions * head_dim / 2).map(|i| i as f32 * 0.1);
    let (cos, sin) = angles.map(|angle| (libm::cosf(angle), libm::sinf(angle))).unzip();
    RopeTable { style: RopeStyle::Half, head_dim, cos, sin }
}

/// What is wrong with the results of a device, where the CPU computes with these activations.
fn compare(expected: &[f32], found: &[f32], activations: Activations) -> std::result::Result<(), String> {
    // In units of the largest result.
    let tolerance = if activations == Activations::A8 { 2e-2 } else { 2e-3 };
    if expected.len() != found.len() {
        return Err(format!("{} values, expected {}", found.len(), expected.len()));
    }
    let largest = expected.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    // Not written the other way round, which would let NaN pass.
    let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= tolerance * largest;
    match expected.iter().zip(found).position(|pair| !is_near(pair)) {
        Some(i) => Err(format!("value {i} is {}, expected {}", found[i], expected[i])),
        None => Ok(()),
    }
}
