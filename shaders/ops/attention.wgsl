// Causal softmax attention over a cache of halves: a workgroup a query head and row. Positions come in chunks of 64, an
// invocation a position; the maximum and the sum of the softmax are kept up to date from chunk to chunk (online softmax,
// Milakov and Gimelshein 2018).

struct Params {
  n_heads: u32,
  n_kv_heads: u32,
  head_dim: u32,
  capacity: u32,
  q_stride: u32,
  out_stride: u32,
  scale: f32,
  unused: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: Step;
@group(0) @binding(2) var<storage, read> queries: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read> keys: array<u32>;
@group(0) @binding(5) var<storage, read> values: array<u32>;

const LANES: u32 = 64u;
// Two coordinates an invocation for each of these.
const MOST_PAIRS: u32 = 4u;

var<workgroup> query: array<vec2<f32>, LANES * MOST_PAIRS>;
var<workgroup> weights: array<f32, LANES>;
var<workgroup> partial: array<f32, LANES>;

fn max_of_all(lane: u32, v: f32) -> f32 {
  workgroupBarrier();
  partial[lane] = v;
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) {
      partial[lane] = max(partial[lane], partial[lane + half]);
    }
  }
  workgroupBarrier();
  return partial[0];
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let head = group.x;
  let row = group.y;
  let pairs = params.head_dim / 2u;
  let start = row * params.q_stride + head * params.head_dim;
  for (var i = lane; i < pairs; i += LANES) {
    query[i] = vec2<f32>(queries[start + 2u * i], queries[start + 2u * i + 1u]) * params.scale;
  }
  workgroupBarrier();
  let kv_head = head / (params.n_heads / params.n_kv_heads);
  let cached = kv_head * params.capacity * pairs;
  let positions = step.pos + row + 1u;
  var highest = -3.0e38;
  var total = 0.0;
  var sums = array<vec2<f32>, MOST_PAIRS>();
  for (var chunk = 0u; chunk < positions; chunk += LANES) {
    var score = -3.0e38;
    if (chunk + lane < positions) {
      score = 0.0;
      let key = cached + (chunk + lane) * pairs;
      for (var i = 0u; i < pairs; i++) {
        score += dot(query[i], unpack2x16float(keys[key + i]));
      }
    }
    let new_highest = max(highest, max_of_all(lane, score));
    let shrink = exp(highest - new_highest);
    highest = new_highest;
    weights[lane] = select(0.0, exp(score - highest), chunk + lane < positions);
    workgroupBarrier();
    let here = min(LANES, positions - chunk);
    var sum = 0.0;
    for (var p = 0u; p < here; p++) {
      sum += weights[p];
    }
    total = total * shrink + sum;
    for (var j = 0u; j * LANES + lane < pairs; j++) {
      var v = sums[j] * shrink;
      for (var p = 0u; p < here; p++) {
        v += weights[p] * unpack2x16float(values[cached + (chunk + p) * pairs + j * LANES + lane]);
      }
      sums[j] = v;
    }
  }
  let to = row * params.out_stride + head * params.head_dim;
  for (var j = 0u; j * LANES + lane < pairs; j++) {
    let at = to + 2u * (j * LANES + lane);
    out[at] = sums[j].x / total;
    out[at + 1u] = sums[j].y / total;
  }
}
