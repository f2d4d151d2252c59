//! The arithmetic of attention: a segment of positions for some queries.
//!
//! A segment is visited three times: all its scores are computed, their largest is subtracted and they become weights,
//! and the values are added up. So nothing is rescaled within a segment, and sums over its lanes are taken once.

use super::{Attention, SEGMENT, TILE, Unit};
use crate::kernels::math::{exp, exp_one};
use crate::simd::{Dot, Isa, Kernel, LANES, Lanes, Simd};

/// Memory of one thread.
#[derive(Default)]
pub(super) struct Scratch {
    /// Queries times `1 / sqrt(head_dim)`, in the groups that are computed together: `[group][width][query]`.
    queries: Vec<f32>,
    /// Scores, then weights, of the positions of a segment: `[query]`.
    weights: Vec<[[f32; LANES]; SEGMENT]>,
    /// Keys of a tile and values of a segment as floats, in the order of their halves.
    keys: Vec<[f32; LANES]>,
    values: Vec<[f32; LANES]>,
}

/// Sums that fit in the registers together with what is multiplied.
const fn sums_at_once(isa: Isa) -> usize {
    match isa {
        Isa::Scalar => 1,
        Isa::Avx2
        | Isa::Neon
        | Isa::NeonDotprod
        | Isa::NeonI8mm
        | Isa::Sme
        | Isa::Sme2
        | Isa::Wasm
        | Isa::WasmRelaxed => 4,
        Isa::Avx512 | Isa::Amx => 8,
    }
}

/// Queries up to which halves are used as they are: few groups of them. With more it pays to widen the halves once; in
/// WebAssembly, which has no prefetch, always: widening reads memory in order, with little to do between two loads.
const fn few(isa: Isa) -> usize {
    match isa {
        Isa::Wasm | Isa::WasmRelaxed => 0,
        Isa::Scalar => 1,
        Isa::Avx2
        | Isa::Avx512
        | Isa::Amx
        | Isa::Neon
        | Isa::NeonDotprod
        | Isa::NeonI8mm
        | Isa::Sme
        | Isa::Sme2 => 4,
    }
}

/// Columns of values that are added up side by side for `queries` queries: as many as there are sums left.
const fn columns_at_once(isa: Isa, queries: usize) -> usize {
    match isa {
        // A column is four registers.
        Isa::Wasm | Isa::WasmRelaxed => 1,
        _ => sums_at_once(isa).div_ceil(queries),
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

/// Computes the state of a unit's queries after one segment alone.
pub(super) struct Segment<'a> {
    pub attention: &'a Attention<'a>,
    pub unit: &'a Unit,
    pub segment: usize,
    /// Whether the unit is another than that of the last call with `scratch`.
    pub first: bool,
    pub scratch: &'a mut Scratch,
    pub state: &'a mut [f32],
}

impl Kernel for Segment<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd + Dot>(self, s: S) {
        let Self { attention, unit, segment, first, scratch, state } = self;
        let kv = attention.kv;
        let queries = attention.queries_of(unit);
        let state = State::new(state, queries, kv.width());
        if first {
            load_queries::<S>(attention, unit, &mut scratch.queries);
        }
        scratch.weights.resize(queries, [[0.0; LANES]; SEGMENT]);

        // Rows of earlier tiles see a tile whole; in their own they see up to themselves.
        let own = attention.tile_of(unit);
        let start = segment * SEGMENT;
        let count = SEGMENT.min(own + 1 - start);
        let whole = SEGMENT.min(own - start);
        let seen_in_own = |query: usize| {
            if whole == count {
                TILE
            } else {
                (attention.pos + unit.rows.start) % TILE + query / kv.group() + 1
            }
        };
        let tile = |i: usize| kv.tile(unit.kv_head, start + i.min(count - 1));
        let few = queries <= few(S::ISA);

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
            let first_seen = attention.first_seen(unit.rows.start + query / kv.group());
            let unseen = first_seen.saturating_sub(start * TILE);
            (state.max[query], state.sum[query]) =
                soften(s, &mut weights[..count], unseen, seen_in_own(query));
        }
        state.out.fill(0.0);
        if few {
            let values: [_; SEGMENT] = std::array::from_fn(|i| tile(i).values);
            add_values(s, &values[..count], whole, kv.group(), seen_in_own, &scratch.weights, state.out);
        } else {
            for i in 0..count {
                widen(s, tile(i).values, &mut scratch.values, i);
            }
            let len = kv.width();
            let values: [_; SEGMENT] =
                std::array::from_fn(|i| &scratch.values[i.min(count - 1) * len..][..len]);
            add_values(s, &values[..count], whole, kv.group(), seen_in_own, &scratch.weights, state.out);
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

/// Loads the queries of a unit, whose number is `[row][head of the group]`.
fn load_queries<S: Simd>(attention: &Attention<'_>, unit: &Unit, scaled: &mut Vec<f32>) {
    let (shape, group, width) = (attention.kv.shape(), attention.kv.group(), attention.kv.width());
    let scale = 1.0 / (shape.head_dim as f32).sqrt();
    let head = |query: usize| {
        let row = unit.rows.start + query / group;
        let head = row * shape.n_heads + unit.kv_head * group + query % group;
        &attention.queries[head * shape.head_dim..][..shape.head_dim]
    };
    scaled.clear();
    in_groups!(attention.queries_of(unit), sums_at_once(S::ISA), |from, N| {
        let heads: [&[f32]; N] = std::array::from_fn(|i| head(from + i));
        for d in 0..shape.head_dim {
            scaled.extend(heads.map(|head| head[d] * scale));
        }
        scaled.resize(scaled.len() + N * (width - shape.head_dim), 0.0);
    });
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

/// Scores of tile `tile` of the segment for all queries.
#[inline(always)]
fn all_scores<S: Dot, T: Lanes>(
    s: S,
    keys: &[T],
    queries: &[f32],
    scores: &mut [[[f32; LANES]; SEGMENT]],
    tile: usize,
) {
    // A buffer of floats may be longer than the tile.
    let width = queries.len() / scores.len();
    in_groups!(scores.len(), sums_at_once(S::ISA), |from, N| {
        let queries = queries[from * width..][..N * width].as_chunks().0;
        s.call(Scores::<T, N> { keys: &keys[..width], queries, scores: &mut scores[from..][..N], tile });
    });
}

/// Scores of 16 positions for `Q` queries, `[width][query]`: the coordinates are added in order.
///
/// A function of its own: in a large one the compilers of WebAssembly keep the sums in memory.
struct Scores<'a, T, const Q: usize> {
    keys: &'a [T],
    queries: &'a [[f32; Q]],
    scores: &'a mut [[[f32; LANES]; SEGMENT]],
    tile: usize,
}

impl<T: Lanes, const Q: usize> Kernel for Scores<'_, T, Q> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd + Dot>(self, s: S) {
        let Self { keys, queries, scores, tile } = self;
        let mut sums = [[s.splat(0.0)]; Q];
        let queries = &queries[..keys.len()];
        s.add_products(&mut sums, keys.chunks_exact(1), 0, |d, query| queries[d][query]);
        for (scores, [sum]) in scores.iter_mut().zip(sums) {
            s.store(sum, &mut scores[tile]);
        }
    }
}

/// Turns scores into weights, `e^(score - max)`; the first `unseen` positions and those of the last tile from `seen_in_last`
/// on get weight zero. The largest score, minus infinity where nothing is seen, and the sum of the weights.
#[inline(always)]
fn soften<S: Simd>(s: S, scores: &mut [[f32; LANES]], unseen: usize, seen_in_last: usize) -> (f32, f32) {
    if let Some(last) = scores.last_mut() {
        last[seen_in_last..].fill(f32::NEG_INFINITY);
    }
    let positions = scores.as_flattened_mut();
    let unseen = unseen.min(positions.len());
    positions[..unseen].fill(f32::NEG_INFINITY);
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

/// Adds the weighted values of the tiles of a segment, the first `whole` of which all queries see whole; `group` queries
/// are a row.
#[inline(always)]
fn add_values<S: Dot, T: Lanes>(
    s: S,
    values: &[&[T]],
    whole: usize,
    group: usize,
    seen_in_own: impl Fn(usize) -> usize,
    weights: &[[[f32; LANES]; SEGMENT]],
    out: &mut [f32],
) {
    let out = out.as_chunks_mut::<LANES>().0;
    let columns = out.len() / weights.len();
    let (seen_whole, own) = values.split_at(whole);
    add_tiles(s, seen_whole, TILE, 0, weights, out);
    if !own.is_empty() {
        // The queries of a row see the same positions.
        for (row, (weights, out)) in weights.chunks(group).zip(out.chunks_mut(group * columns)).enumerate() {
            add_tiles(s, own, seen_in_own(row * group), whole, weights, out);
        }
    }
}

/// Adds the first `seen` weighted values of every tile; `first_tile` is the number of the first in the segment.
#[inline(always)]
fn add_tiles<S: Dot, T: Lanes>(
    s: S,
    tiles: &[&[T]],
    seen: usize,
    first_tile: usize,
    weights: &[[[f32; LANES]; SEGMENT]],
    out: &mut [[f32; LANES]],
) {
    let columns = out.len() / weights.len();
    in_groups!(weights.len(), sums_at_once(S::ISA), |from, N| {
        let (weights, out) = (&weights[from..][..N], &mut out[from * columns..][..N * columns]);
        in_groups!(columns, columns_at_once(S::ISA, N), |column, C| {
            s.call(Columns::<T, N, C> { tiles, seen, first_tile, weights, out, column });
        });
    });
}

/// `out = out + weights * values` in `C` columns for `Q` queries: the first `seen` positions of every tile, in order.
///
/// A function of its own, as [`Scores`].
struct Columns<'a, T, const Q: usize, const C: usize> {
    tiles: &'a [&'a [T]],
    seen: usize,
    first_tile: usize,
    weights: &'a [[[f32; LANES]; SEGMENT]],
    out: &'a mut [[f32; LANES]],
    column: usize,
}

impl<T: Lanes, const Q: usize, const C: usize> Kernel for Columns<'_, T, Q, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd + Dot>(self, s: S) {
        let Self { tiles, seen, first_tile, weights, out, column } = self;
        let columns = out.len() / Q;
        assert!(weights.len() == Q && column + C <= columns, "operands of one segment");
        let mut sums = [[s.splat(0.0); C]; Q];
        for q in 0..Q {
            for c in 0..C {
                sums[q][c] = s.load(&out[q * columns + column + c]);
            }
        }
        for (tile, values) in tiles.iter().enumerate() {
            let mut rows = [&weights[0][0]; Q];
            for (row, weights) in rows.iter_mut().zip(weights) {
                *row = &weights[first_tile + tile];
            }
            let values = values.chunks_exact(columns).take(seen.min(TILE));
            s.add_products(&mut sums, values, column, |position, query| rows[query][position]);
        }
        for q in 0..Q {
            for c in 0..C {
                s.store(sums[q][c], &mut out[q * columns + column + c]);
            }
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
