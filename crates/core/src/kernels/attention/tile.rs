//! The arithmetic of attention: a segment of positions for some queries.
//!
//! A segment is visited three times: all its scores are computed, their largest is subtracted and they become weights,
//! and the values are added up. So nothing is rescaled within a segment, and sums over its lanes are taken once.

use super::{Attention, SEGMENT, TILE, Unit};
use crate::kernels::math::{exp, exp_one};
use crate::simd::{Dot, Isa, Kernel, LANES, Simd};

/// Memory of one thread.
#[derive(Default)]
pub(super) struct Scratch {
    /// Queries times `1 / sqrt(head_dim)`: `[query][width]`.
    queries: Vec<f32>,
    /// Scores, then weights, of the positions of a segment: `[query]`.
    weights: Vec<[[f32; LANES]; SEGMENT]>,
    /// Keys of a tile and values of a segment as floats, in the order of their halves.
    keys: Vec<[f32; LANES]>,
    values: Vec<[f32; LANES]>,
}

/// 16 halves or floats.
trait Lanes {
    fn load<S: Simd>(&self, s: S) -> S::F32;
}

impl Lanes for [u16; LANES] {
    #[inline(always)]
    fn load<S: Simd>(&self, s: S) -> S::F32 {
        s.load_f16(self)
    }
}

impl Lanes for [f32; LANES] {
    #[inline(always)]
    fn load<S: Simd>(&self, s: S) -> S::F32 {
        s.load(self)
    }
}

/// Sums that fit in the registers together with what is multiplied.
const fn sums_at_once(isa: Isa) -> usize {
    match isa {
        Isa::Scalar => 1,
        Isa::Wasm | Isa::WasmRelaxed => 2,
        Isa::Avx2 => 4,
        Isa::Avx512 => 8,
    }
}

/// Queries up to which halves are used as they are. With more it pays to widen them once.
const FEW: usize = 4;

/// Computes the state of a unit's queries after one segment alone.
pub(super) struct Segment<'a> {
    pub attention: &'a Attention<'a>,
    pub unit: &'a Unit,
    pub segment: usize,
    pub scratch: &'a mut Scratch,
    pub state: &'a mut [f32],
}

impl Kernel for Segment<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd + Dot>(self, s: S) {
        let Self { attention, unit, segment, scratch, state } = self;
        let kv = attention.kv;
        let queries = attention.queries_of(unit);
        let state = State::new(state, queries, kv.width());
        load_queries(attention, unit, &mut scratch.queries);
        scratch.weights.resize(queries, [[0.0; LANES]; SEGMENT]);

        // Rows of earlier tiles see a tile whole; in their own they see up to themselves.
        let own = attention.tile_of(unit);
        let first = segment * SEGMENT;
        let count = SEGMENT.min(own + 1 - first);
        let whole = SEGMENT.min(own - first);
        let seen_in_own = |query: usize| {
            if whole == count {
                TILE
            } else {
                (attention.pos + unit.rows.start) % TILE + query / kv.group() + 1
            }
        };
        let tile = |i: usize| kv.tile(unit.kv_head, first + i.min(count - 1));
        let few = queries <= FEW;

        for i in 0..count {
            if few {
                prefetch(s, tile(i).values);
                prefetch(s, tile(i + 1).keys);
                all_scores(s, tile(i).keys, &scratch.queries, &mut scratch.weights, i);
            } else {
                widen(s, tile(i).keys, &mut scratch.keys, 0);
                all_scores(s, &scratch.keys, &scratch.queries, &mut scratch.weights, i);
            }
        }
        for (query, weights) in scratch.weights.iter_mut().enumerate() {
            (state.max[query], state.sum[query]) = soften(s, &mut weights[..count], seen_in_own(query));
        }
        state.out.fill(0.0);
        if few {
            let values = std::array::from_fn(|i| tile(i).values);
            add_values(s, values, whole, count, seen_in_own, &scratch.weights, state.out);
        } else {
            for i in 0..count {
                widen(s, tile(i).values, &mut scratch.values, i);
            }
            let len = kv.width();
            let values = std::array::from_fn(|i| &scratch.values[i.min(count - 1) * len..][..len]);
            add_values(s, values, whole, count, seen_in_own, &scratch.weights, state.out);
        }
    }
}

/// The state of some queries: results so far, largest scores, sums of weights.
struct State<'a> {
    out: &'a mut [f32],
    max: &'a mut [f32],
    sum: &'a mut [f32],
}

impl<'a> State<'a> {
    #[inline(always)]
    fn new(state: &'a mut [f32], queries: usize, width: usize) -> Self {
        let (out, rest) = state.split_at_mut(queries * width);
        let (max, sum) = rest.split_at_mut(queries);
        Self { out, max, sum }
    }
}

fn load_queries(attention: &Attention<'_>, unit: &Unit, scaled: &mut Vec<f32>) {
    let (shape, group, width) = (attention.kv.shape(), attention.kv.group(), attention.kv.width());
    let scale = 1.0 / (shape.head_dim as f32).sqrt();
    scaled.clear();
    for row in unit.rows.clone() {
        let row =
            &attention.queries[row * shape.n_heads * shape.head_dim..][..shape.n_heads * shape.head_dim];
        for head in row.chunks_exact(shape.head_dim).skip(unit.kv_head * group).take(group) {
            scaled.extend(head.iter().map(|q| q * scale));
            scaled.resize(scaled.len() + width - shape.head_dim, 0.0);
        }
    }
}

#[inline(always)]
fn prefetch<S: Simd>(s: S, halves: &[[u16; LANES]]) {
    for line in halves.chunks(2) {
        s.prefetch(&line[0]);
    }
}

/// Widens the halves to be part `part` of the floats.
#[inline(always)]
fn widen<S: Simd>(s: S, halves: &[[u16; LANES]], floats: &mut Vec<[f32; LANES]>, part: usize) {
    floats.resize(floats.len().max((part + 1) * halves.len()), [0.0; LANES]);
    for (halves, floats) in halves.iter().zip(&mut floats[part * halves.len()..]) {
        s.store(s.load_f16(halves), floats);
    }
}

/// Calls `$body` for groups of `$count` things, as many at a time as `$most` allows, with `$from` and the constant `$n`.
macro_rules! in_groups {
    ($count:expr, $most:expr, |$from:ident, $n:ident| $body:expr) => {
        let mut $from = 0;
        in_groups!($count, $most, $from, $n, $body, 8 4 3 2 1);
    };
    ($count:expr, $most:expr, $from:ident, $n:ident, $body:expr, $($size:literal)*) => {
        $(while $most >= $size && $count - $from >= $size {
            const $n: usize = $size;
            $body;
            $from += $size;
        })*
    };
}

/// Scores of tile `tile` of the segment for all queries.
#[inline(always)]
fn all_scores<S: Simd, T: Lanes>(
    s: S,
    keys: &[T],
    queries: &[f32],
    scores: &mut [[[f32; LANES]; SEGMENT]],
    tile: usize,
) {
    // A vector of floats padded to the tile's width is longer than the tile.
    let width = queries.len() / scores.len();
    in_groups!(scores.len(), sums_at_once(S::ISA), |from, N| {
        let sums = scores_of::<S, T, N>(s, &keys[..width], &queries[from * width..][..N * width]);
        for (scores, sum) in scores[from..].iter_mut().zip(sums) {
            s.store(sum, &mut scores[tile]);
        }
    });
}

/// Scores of 16 positions for `Q` queries: the coordinates are added in order.
#[inline(always)]
fn scores_of<S: Simd, T: Lanes, const Q: usize>(s: S, keys: &[T], queries: &[f32]) -> [S::F32; Q] {
    let width = keys.len();
    let mut rows = [&queries[..0]; Q];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = &queries[i * width..][..width];
    }
    let mut sums = [s.splat(0.0); Q];
    for (d, key) in keys.iter().enumerate() {
        let key = key.load(s);
        for i in 0..Q {
            sums[i] = s.add(sums[i], s.mul(key, s.splat(rows[i][d])));
        }
    }
    sums
}

/// Turns scores into weights, `e^(score - max)`; the last tile counts up to `seen_in_last`, the rest gets weight zero.
/// The largest score and the sum of the weights.
#[inline(always)]
fn soften<S: Simd>(s: S, scores: &mut [[f32; LANES]], seen_in_last: usize) -> (f32, f32) {
    if let Some(last) = scores.last_mut() {
        last[seen_in_last..].fill(f32::NEG_INFINITY);
    }
    let mut max = s.splat(f32::NEG_INFINITY);
    for scores in &*scores {
        max = s.max(max, s.load(scores));
    }
    let max = s.reduce_max(max);
    let mut sum = s.splat(0.0);
    for scores in scores {
        let weight = exp(s, s.sub(s.load(scores), s.splat(max)));
        s.store(weight, scores);
        sum = s.add(sum, weight);
    }
    (max, s.reduce_add(sum))
}

/// Adds the weighted values of a segment of `count` tiles, `whole` of which all queries see whole.
#[inline(always)]
fn add_values<S: Simd, T: Lanes>(
    s: S,
    values: [&[T]; SEGMENT],
    whole: usize,
    count: usize,
    seen_in_own: impl Fn(usize) -> usize,
    weights: &[[[f32; LANES]; SEGMENT]],
    out: &mut [f32],
) {
    let most = sums_at_once(S::ISA);
    let out = out.as_chunks_mut::<LANES>().0;
    let columns = out.len() / weights.len();
    in_groups!(weights.len(), most, |from, N| {
        let (weights, out) = (&weights[from..][..N], &mut out[from * columns..][..N * columns]);
        in_groups!(columns, most / N, |column, C| {
            add_columns::<S, T, N, C>(s, &values[..whole], TILE, 0, weights, out, column);
        });
    });
    if whole == count {
        return;
    }
    for (query, (weights, out)) in weights.chunks(1).zip(out.chunks_exact_mut(columns)).enumerate() {
        in_groups!(columns, most, |column, C| {
            add_columns::<S, T, 1, C>(
                s,
                &values[whole..count],
                seen_in_own(query),
                whole,
                weights,
                out,
                column,
            );
        });
    }
}

/// `out = out + weights * values` in `C` columns for `Q` queries: the first `seen` positions of every tile, in order.
#[inline(always)]
fn add_columns<S: Simd, T: Lanes, const Q: usize, const C: usize>(
    s: S,
    tiles: &[&[T]],
    seen: usize,
    first_tile: usize,
    weights: &[[[f32; LANES]; SEGMENT]],
    out: &mut [[f32; LANES]],
    column: usize,
) {
    let columns = out.len() / Q;
    assert!(weights.len() == Q && seen <= TILE && column + C <= columns, "operands of one segment");
    let mut sums = [[s.splat(0.0); C]; Q];
    for q in 0..Q {
        for c in 0..C {
            sums[q][c] = s.load(&out[q * columns + column + c]);
        }
    }
    for (tile, values) in tiles.iter().enumerate() {
        for position in 0..seen {
            let row = &values[position * columns + column..][..C];
            for c in 0..C {
                let value = row[c].load(s);
                for q in 0..Q {
                    let weight = s.splat(weights[q][first_tile + tile][position]);
                    sums[q][c] = s.add(sums[q][c], s.mul(value, weight));
                }
            }
        }
    }
    for q in 0..Q {
        for c in 0..C {
            s.store(sums[q][c], &mut out[q * columns + column + c]);
        }
    }
}

/// Adds a segment to a total: both are rescaled to the larger of their largest scores.
pub(super) struct Fold<'a> {
    pub width: usize,
    pub queries: usize,
    pub total: &'a mut [f32],
    pub segment: &'a [f32],
}

impl Kernel for Fold<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd + Dot>(self, s: S) {
        let Self { width, queries, total, segment } = self;
        let total = State::new(total, queries, width);
        let (out, rest) = segment.split_at(queries * width);
        let (maxima, sums) = rest.split_at(queries);
        let rows = total.out.chunks_exact_mut(width).zip(out.chunks_exact(width));
        for (query, (total_out, out)) in rows.enumerate() {
            let (old, new) = (total.max[query], maxima[query]);
            let max = if new > old { new } else { old };
            let (keep, add) = (exp_one(old - max), exp_one(new - max));
            total.max[query] = max;
            total.sum[query] = total.sum[query] * keep + sums[query] * add;
            let (keep, add) = (s.splat(keep), s.splat(add));
            for (total, x) in total_out.as_chunks_mut::<LANES>().0.iter_mut().zip(out.as_chunks::<LANES>().0)
            {
                let sum = s.add(s.mul(s.load(total), keep), s.mul(s.load(x), add));
                s.store(sum, total);
            }
        }
    }
}
