// Causal softmax attention over a cache of halves (flash attention, Dao et al. 2022). A workgroup has HEADS query heads of
// one key head and TILE_ROWS rows, which share what is read of the cache; where PARTIAL, only the positions of one split.
// Positions come in chunks of 64. The maximum and the sum of the softmax are kept up to date from chunk to chunk (online
// softmax, Milakov and Gimelshein 2018).

struct Params {
  n_heads: u32,
  n_kv_heads: u32,
  head_dim: u32,
  capacity: u32,
  rows: u32,
  q_stride: u32,
  out_stride: u32,
  scale: f32,
  // Positions of a split, and how many splits the cache has.
  split: u32,
  splits: u32,
  unused_a: u32,
  unused_b: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: Step;
@group(0) @binding(2) var<storage, read> queries: array<f32>;
// Rows of attention or, where PARTIAL, `[row][head][split][head_dim + 2]`: the weighted sum, the maximum, the sum of weights.
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read> keys: array<Halves>;
@group(0) @binding(5) var<storage, read> values: array<Halves>;

const LANES: u32 = 64u;
const QUERIES: u32 = HEADS * TILE_ROWS;
// A query's chunk is looked through by PARTS lanes.
const PARTS: u32 = LANES / QUERY_GROUPS;
const NONE: f32 = -3.0e38;

var<workgroup> query: array<vec2<f32>, LANES * PAIRS * QUERIES>;
var<workgroup> weights: array<f32, LANES * QUERIES>;
var<workgroup> partial: array<f32, LANES>;
var<workgroup> shrinks: array<f32, QUERIES>;

fn head_of(first: u32, i: u32) -> u32 {
  return first + i % HEADS;
}

fn run(group: vec3<u32>, lane: u32) {
  let split = group.x % params.splits;
  let first_head = group.x / params.splits * HEADS;
  let first_row = group.y * TILE_ROWS;
  let pairs = params.head_dim / 2u;
  let last_row = min(first_row + TILE_ROWS, params.rows) - 1u;
  let start = split * params.split;
  let end = min(step.pos + last_row + 1u, start + params.split);
  if (start >= end) {
    return;
  }
  for (var i = lane; i < QUERIES * pairs; i += LANES) {
    let row = min(first_row + i / pairs / HEADS, last_row);
    let at = row * params.q_stride + head_of(first_head, i / pairs) * params.head_dim + i % pairs * 2u;
    query[i] = vec2<f32>(queries[at], queries[at + 1u]) * params.scale;
  }
  let cached = first_head / (params.n_heads / params.n_kv_heads) * params.capacity * pairs;
  // Of the query `mine`: the maximum so far, and the sum of the weights that this lane has made.
  let mine = lane / PARTS;
  let part = lane % PARTS;
  let until = step.pos + min(first_row + mine / HEADS, last_row) + 1u;
  var highest = NONE;
  var total = 0.0;
  var sums = array<vec2<f32>, PAIRS * QUERIES>();
  for (var chunk = start; chunk < end; chunk += LANES) {
    workgroupBarrier();
    if (chunk + lane < end) {
      var scores = array<f32, QUERIES>();
      let key = cached + (chunk + lane) * pairs;
      for (var i = 0u; i < pairs; i++) {
        let k = floats(keys[key + i]);
        for (var j = 0u; j < QUERIES; j++) {
          scores[j] += dot(query[j * pairs + i], k);
        }
      }
      for (var j = 0u; j < QUERIES; j++) {
        weights[j * LANES + lane] = scores[j];
      }
    }
    workgroupBarrier();
    let seen = min(max(until, chunk) - chunk, min(LANES, end - chunk));
    var most = NONE;
    if (mine < QUERIES) {
      for (var p = part; p < seen; p += PARTS) {
        most = max(most, weights[mine * LANES + p]);
      }
    }
    partial[lane] = near_max(most, PARTS);
    workgroupBarrier();
    var new_highest = highest;
    let to_next = leap(1u, PARTS);
    for (var p = 0u; p < PARTS; p += to_next) {
      new_highest = max(new_highest, partial[mine * PARTS + p]);
    }
    let shrink = exp(highest - new_highest);
    highest = new_highest;
    total *= shrink;
    if (mine < QUERIES) {
      for (var p = part; p < LANES; p += PARTS) {
        var weight = 0.0;
        if (p < seen) {
          weight = exp(weights[mine * LANES + p] - highest);
        }
        weights[mine * LANES + p] = weight;
        total += weight;
      }
      if (part == 0u) {
        shrinks[mine] = shrink;
      }
    }
    workgroupBarrier();
    let here = min(LANES, end - chunk);
    for (var c = 0u; c < PAIRS && c * LANES + lane < pairs; c++) {
      for (var j = 0u; j < QUERIES; j++) {
        sums[c * QUERIES + j] *= shrinks[j];
      }
      for (var p = 0u; p < here; p++) {
        let v = floats(values[cached + (chunk + p) * pairs + c * LANES + lane]);
        for (var j = 0u; j < QUERIES; j++) {
          sums[c * QUERIES + j] += weights[j * LANES + p] * v;
        }
      }
    }
  }
  // The maximum and the sum of each query, for all lanes.
  workgroupBarrier();
  partial[lane] = near_sum(total, lane, PARTS);
  if (mine < QUERIES && part == 0u) {
    shrinks[mine] = highest;
  }
  workgroupBarrier();
  let to_next = leap(1u, PARTS);
  for (var j = 0u; j < QUERIES; j++) {
    let row = first_row + j / HEADS;
    let head = head_of(first_head, j);
    var all = 0.0;
    for (var p = 0u; p < PARTS; p += to_next) {
      all += partial[j * PARTS + p];
    }
    var to = row * params.out_stride + head * params.head_dim;
    var divisor = all;
    if (PARTIAL) {
      to = ((row * params.n_heads + head) * params.splits + split) * (params.head_dim + 2u);
      divisor = 1.0;
    }
    if (row < params.rows) {
      for (var c = 0u; c < PAIRS && c * LANES + lane < pairs; c++) {
        let at = to + 2u * (c * LANES + lane);
        out[at] = sums[c * QUERIES + j].x / divisor;
        out[at + 1u] = sums[c * QUERIES + j].y / divisor;
      }
      if (PARTIAL && lane == 0u) {
        out[to + params.head_dim] = shrinks[j];
        out[to + params.head_dim + 1u] = all;
      }
    }
  }
}
