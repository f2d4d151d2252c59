//! The arithmetic of attention: a segment of positions for some queries.

use super::{Attention, SEGMENT, TILE, Unit, kv};
use crate::kernels::math::{exp, exp_one};
use crate::simd::{Dot, Isa, Kernel, LANES, Simd};

/// Memory of one thread.
#[derive(Default)]
pub(super) struct Scratch {
    /// Queries times `1 / sqrt(head_dim)`: `[query][width]`.
    queries: Vec<f32>,
    /// Softmax weights of the positions of a tile: `[query]`.
    weights: Vec<[f32; LANES]>,
    /// A tile as floats, in the order of its halves.
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

/// Queries whose sums fit in the registers together with what they are multiplied by.
const fn queries_at_once(isa: Isa) -> usize {
    match isa {
        Isa::Scalar => 1,
        Isa::Wasm | Isa::WasmRelaxed => 2,
        Isa::Avx2 => 4,
        Isa::Avx512 => 8,
    }
}

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
        let mut state = State::new(state, queries, kv.width());
        state.out.fill(0.0);
        state.max.fill(f32::NEG_INFINITY);
        state.sum.fill(0.0);
        scratch.weights.resize(queries, [0.0; LANES]);
        load_queries(attention, unit, &mut scratch.queries);

        let last = attention.tile_of(unit);
        let first_row = attention.pos + unit.rows.start - last * TILE;
        for tile in segment * SEGMENT..((segment + 1) * SEGMENT).min(last + 1) {
            // Rows of earlier tiles see the whole tile; in their own they see up to themselves.
            let seen = if tile < last { Seen::All } else { Seen::From { first_row, group: kv.group() } };
            let halves = kv.tile(unit.kv_head, tile);
            if queries <= queries_at_once(S::ISA) {
                visit(
                    s,
                    halves.keys,
                    halves.values,
                    seen,
                    &scratch.queries,
                    &mut scratch.weights,
                    &mut state,
                );
            } else {
                widen(s, halves, &mut scratch.keys, &mut scratch.values);
                let (keys, values) = (&scratch.keys, &scratch.values);
                visit(s, keys, values, seen, &scratch.queries, &mut scratch.weights, &mut state);
            }
        }
    }
}

/// Positions of a tile that a query sees.
#[derive(Clone, Copy)]
enum Seen {
    All,
    /// Those up to its own: the first row is at this position of the tile.
    From {
        first_row: usize,
        group: usize,
    },
}

impl Seen {
    #[inline(always)]
    fn by(self, query: usize) -> usize {
        match self {
            Seen::All => TILE,
            Seen::From { first_row, group } => first_row + query / group + 1,
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
fn widen<S: Simd>(s: S, tile: kv::Tile<'_>, keys: &mut Vec<[f32; LANES]>, values: &mut Vec<[f32; LANES]>) {
    for (halves, floats) in [(tile.keys, keys), (tile.values, values)] {
        floats.resize(halves.len(), [0.0; LANES]);
        for (halves, floats) in halves.iter().zip(floats) {
            s.store(s.load_f16(halves), floats);
        }
    }
}

/// Lets all queries look at one tile.
#[inline(always)]
fn visit<S: Simd, T: Lanes>(
    s: S,
    keys: &[T],
    values: &[T],
    seen: Seen,
    queries: &[f32],
    weights: &mut [[f32; LANES]],
    state: &mut State<'_>,
) {
    let at_once = queries_at_once(S::ISA);
    let mut from = 0;
    macro_rules! groups_of {
        ($n:literal) => {
            while at_once >= $n && weights.len() - from >= $n {
                look::<S, T, $n>(s, keys, values, seen, from, queries, weights, state);
                from += $n;
            }
        };
    }
    groups_of!(8);
    groups_of!(4);
    groups_of!(2);
    groups_of!(1);
}

/// Lets the `Q` queries from `from` on look at one tile.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one tile's operands, kept apart for the borrow checker")]
fn look<S: Simd, T: Lanes, const Q: usize>(
    s: S,
    keys: &[T],
    values: &[T],
    seen: Seen,
    from: usize,
    queries: &[f32],
    weights: &mut [[f32; LANES]],
    state: &mut State<'_>,
) {
    let width = keys.len();
    let scores = scores::<S, T, Q>(s, keys, &queries[from * width..][..Q * width]);
    let weights = &mut weights[from..][..Q];
    let mut decay = [1.0; Q];
    for i in 0..Q {
        let query = from + i;
        let masked = s.add(scores[i], s.load(mask(seen.by(query))));
        let old = state.max[query];
        let score = s.reduce_max(masked);
        let max = if score > old { score } else { old };
        if max != old {
            decay[i] = exp_one(old - max);
        }
        let weight = exp(s, s.sub(masked, s.splat(max)));
        s.store(weight, &mut weights[i]);
        state.max[query] = max;
        state.sum[query] = state.sum[query] * decay[i] + s.reduce_add(weight);
    }
    let out = &mut state.out[from * width..][..Q * width];
    if matches!(seen, Seen::All) {
        add_values::<S, T, Q>(s, values, TILE, weights, decay, out);
    } else {
        for i in 0..Q {
            let out = &mut out[i * width..][..width];
            add_values::<S, T, 1>(s, values, seen.by(from + i), &weights[i..=i], [decay[i]], out);
        }
    }
}

/// Zero for the first `seen` lanes, minus infinity for the others, so that their weights are exactly zero.
#[inline(always)]
fn mask(seen: usize) -> &'static [f32; LANES] {
    static MASKS: [[f32; LANES]; LANES + 1] = {
        let mut masks = [[f32::NEG_INFINITY; LANES]; LANES + 1];
        let mut seen = 0;
        while seen <= LANES {
            let mut lane = 0;
            while lane < seen {
                masks[seen][lane] = 0.0;
                lane += 1;
            }
            seen += 1;
        }
        masks
    };
    &MASKS[seen]
}

/// Scores of the 16 positions: the coordinates are added in order.
#[inline(always)]
fn scores<S: Simd, T: Lanes, const Q: usize>(s: S, keys: &[T], queries: &[f32]) -> [S::F32; Q] {
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

/// `out = out * decay + weights * values` for `Q` queries and the first `seen` positions, added in order.
#[inline(always)]
fn add_values<S: Simd, T: Lanes, const Q: usize>(
    s: S,
    values: &[T],
    seen: usize,
    weights: &[[f32; LANES]],
    decay: [f32; Q],
    out: &mut [f32],
) {
    let columns = values.len() / TILE;
    let (out, _) = out.as_chunks_mut::<LANES>();
    assert!(out.len() == Q * columns && weights.len() == Q && seen <= TILE, "operands of one tile");
    for column in 0..columns {
        let mut sums = [s.splat(0.0); Q];
        for i in 0..Q {
            sums[i] = s.mul(s.load(&out[i * columns + column]), s.splat(decay[i]));
        }
        for position in 0..seen {
            let value = values[position * columns + column].load(s);
            for i in 0..Q {
                sums[i] = s.add(sums[i], s.mul(value, s.splat(weights[i][position])));
            }
        }
        for i in 0..Q {
            s.store(sums[i], &mut out[i * columns + column]);
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
