use super::*;
use crate::backend::AttentionShape;
use crate::parallel::{Parts as Slices, Team};
use crate::simd::{Dot, Kernel, Simd};

const SHAPES: [[usize; 3]; 6] = [[9, 3, 64], [4, 1, 256], [2, 2, 80], [4, 2, 128], [3, 1, 6], [8, 1, 32]];
/// Alone, within a tile, whole tiles, more than a segment, and more than there is.
const WINDOWS: [usize; 5] = [1, 5, 32, 141, 1000];

fn shape([n_heads, n_kv_heads, head_dim]: [usize; 3]) -> AttentionShape {
    AttentionShape { n_heads, n_kv_heads, head_dim, window: None }
}

/// All of [`SHAPES`], and windows of all sizes.
fn shapes() -> impl Iterator<Item = AttentionShape> {
    let windows = WINDOWS.map(|window| AttentionShape { window: Some(window), ..shape([4, 2, 24]) });
    SHAPES.map(shape).into_iter().chain(windows)
}

/// Reproducible values in `-scale..scale`.
fn random(len: usize, seed: u32, scale: f32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next() * scale).collect()
}

struct Append<'a, 'b>(&'a mut KvHead<'b>, usize, &'a [f32], &'a [f32]);

impl Kernel for Append<'_, '_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd + Dot>(self, s: S) {
        self.0.write(s, self.1, self.2, self.3);
    }
}

/// Writes rows of keys and values at `pos..`.
fn append(isa: Isa, kv: &mut Kv, pos: usize, keys: &[f32], values: &[f32]) {
    let AttentionShape { n_kv_heads, head_dim, .. } = kv.shape();
    let width = n_kv_heads * head_dim;
    let writer = kv.writer();
    writer.check(pos..pos + keys.len() / width, keys, values).unwrap();
    while let Some(mut head) = writer.take() {
        let part = head.index * head_dim..(head.index + 1) * head_dim;
        for (row, (k, v)) in keys.chunks(width).zip(values.chunks(width)).enumerate() {
            dispatch(isa, Append(&mut head, pos + row, &k[part.clone()], &v[part.clone()]));
        }
    }
}

/// Keys, values and queries of `positions` positions, and what attention makes of them in chunks of `chunk`.
struct Case {
    shape: AttentionShape,
    positions: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
    queries: Vec<f32>,
}

impl Case {
    fn new(shape: AttentionShape, positions: usize) -> Self {
        let kv = positions * shape.n_kv_heads * shape.head_dim;
        Self {
            shape,
            positions,
            keys: random(kv, 1, 2.0),
            values: random(kv, 2, 3.0),
            queries: random(positions * shape.n_heads * shape.head_dim, 3, 2.0),
        }
    }

    fn run(&self, isa: Isa, threads: usize, chunk: usize, in_parts: bool) -> Vec<f32> {
        let AttentionShape { n_heads, n_kv_heads, head_dim, .. } = self.shape;
        let (kv_width, width) = (n_kv_heads * head_dim, n_heads * head_dim);
        let team = Team::new(threads);
        let mut kv = Kv::new(self.shape, self.positions).unwrap();
        let mut out = vec![f32::NAN; self.queries.len()];
        for pos in (0..self.positions).step_by(chunk) {
            let end = self.positions.min(pos + chunk);
            let rows = pos * kv_width..end * kv_width;
            append(isa, &mut kv, pos, &self.keys[rows.clone()], &self.values[rows]);
            let rows = pos * width..end * width;
            let attention = Attention::new(&self.queries[rows.clone()], &kv, pos).unwrap();
            attend(&team, isa, attention, in_parts, &mut out[rows]);
        }
        out
    }

    /// Softmax attention in f64 over the keys and values as they are stored.
    fn exact(&self) -> Vec<f64> {
        let AttentionShape { n_heads, n_kv_heads, head_dim, window } = self.shape;
        let stored = |x: &f32| half::f16::from_f32(*x).to_f64();
        let mut out = Vec::new();
        for row in 0..self.positions {
            for head in 0..n_heads {
                let at = |pos: usize| (pos * n_kv_heads + head / (n_heads / n_kv_heads)) * head_dim;
                let query = &self.queries[(row * n_heads + head) * head_dim..][..head_dim];
                let score = |pos: usize| -> f64 {
                    let key = &self.keys[at(pos)..][..head_dim];
                    let products = query.iter().zip(key).map(|(q, k)| f64::from(*q) * stored(k));
                    products.sum::<f64>() / (head_dim as f64).sqrt()
                };
                let first = window.map_or(0, |window| (row + 1).saturating_sub(window));
                let scores: Vec<f64> = (first..=row).map(score).collect();
                let max = scores.iter().copied().fold(f64::MIN, f64::max);
                let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                out.extend((0..head_dim).map(|d| {
                    let weighted =
                        |(pos, s): (usize, &f64)| (s - max).exp() * stored(&self.values[at(first + pos) + d]);
                    scores.iter().enumerate().map(weighted).sum::<f64>() / sum
                }));
            }
        }
        out
    }
}

fn attend(team: &Team, isa: Isa, attention: Attention<'_>, in_parts: bool, out: &mut [f32]) {
    if let (true, Some(parts)) = (in_parts, attention.parts()) {
        let mut states = vec![f32::NAN; parts.count() * parts.state_len()];
        let slices = Slices::new(&mut states, parts.state_len());
        team.run(&|_| {
            while let Some((index, state)) = slices.take() {
                parts.compute(isa, &mut Scratch::default(), index, state);
            }
        });
        parts.merge(isa, &mut Scratch::default(), &states, out).unwrap();
        return;
    }
    let cells = attention.cells(out).unwrap();
    team.run(&|_| {
        let mut scratch = Scratch::default();
        while let Some(cell) = cells.take() {
            cell.compute(isa, &mut scratch);
        }
    });
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn results_meet_the_budget_against_f64() {
    for shape in shapes() {
        let case = Case::new(shape, 150);
        let out = case.run(Isa::Scalar, 1, 150, false);
        for (i, (out, exact)) in out.iter().zip(case.exact()).enumerate() {
            assert!((f64::from(*out) - exact).abs() <= 2e-5 * 3.0, "{shape:?} {i}: {out} {exact}");
        }
    }
}

#[test]
fn isas_threads_chunks_and_parts_give_the_same_bits() {
    for shape in shapes() {
        let case = Case::new(shape, 300);
        let expected = bits(&case.run(Isa::Scalar, 1, 300, false));
        for isa in Isa::available() {
            for (threads, chunk, in_parts) in
                [(1, 300, false), (2, 64, false), (1, 7, false), (1, 1, true), (3, 48, true)]
            {
                // Plain Rust has no need of all combinations: it is the slow one.
                if isa == Isa::Scalar && chunk < 16 {
                    continue;
                }
                let out = bits(&case.run(isa, threads, chunk, in_parts));
                assert!(
                    out == expected,
                    "{shape:?} {isa} {threads} threads, chunks of {chunk}, parts {in_parts}"
                );
            }
        }
    }
}

#[test]
fn positions_that_are_written_again_replace_the_old_ones() {
    let case = Case::new(shape([2, 1, 16]), 40);
    let expected = case.run(Isa::best(), 1, 40, false);
    let mut kv = Kv::new(case.shape, 48).unwrap();
    // What stands there from an earlier conversation, past the end too, must not show.
    append(Isa::best(), &mut kv, 0, &random(48 * 16, 9, 50.0), &random(48 * 16, 8, 1e9));
    append(Isa::best(), &mut kv, 0, &case.keys, &case.values);
    let mut out = vec![f32::NAN; case.queries.len()];
    attend(&Team::new(1), Isa::best(), Attention::new(&case.queries, &kv, 0).unwrap(), false, &mut out);
    assert_eq!(bits(&out), bits(&expected));
}

#[test]
fn large_scores_do_not_overflow() {
    let mut case = Case::new(shape([2, 1, 16]), 200);
    case.queries.iter_mut().for_each(|q| *q *= 1e3);
    let out = case.run(Isa::best(), 2, 200, false);
    assert!(out.iter().all(|x| x.abs() <= 3.0), "a weighted mean of values below 3");
}

#[test]
fn bad_shapes_are_errors() {
    let code = |heads, positions| Kv::new(shape(heads), positions).err().map(|error| error.code());
    assert_eq!(code([4, 3, 64], 10), Some("bad-shape"));
    assert_eq!(code([4, 0, 64], 10), Some("bad-shape"));
    let blind = AttentionShape { window: Some(0), ..shape([4, 2, 64]) };
    assert_eq!(Kv::new(blind, 10).err().map(|error| error.code()), Some("bad-shape"));
    assert_eq!(code([4, 2, 64], usize::MAX), Some("out-of-memory"));
    assert_eq!(code([4, 2, 64], usize::MAX / 2048), Some("out-of-memory"));
    let mut kv = Kv::new(shape([4, 2, 8]), 10).unwrap();
    assert!(Attention::new(&[0.0; 33], &kv, 0).is_err());
    assert!(Attention::new(&[0.0; 64], &kv, 9).is_err());
    assert!(Attention::new(&[0.0; 64], &kv, usize::MAX).is_err());
    assert!(Attention::new(&[0.0; 64], &kv, 8).unwrap().cells(&mut [0.0; 32]).is_err());
    let writer = kv.writer();
    assert!(writer.check(9..11, &[0.0; 32], &[0.0; 32]).is_err());
    assert!(writer.check(0..2, &[0.0; 32], &[0.0; 31]).is_err());
    assert!(Attention::new(&[], &kv, 3).unwrap().cells(&mut []).unwrap().take().is_none());
}
