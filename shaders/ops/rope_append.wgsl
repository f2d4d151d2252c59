// Rotates queries and keys, and appends keys and values to the cache as halves. A row of `qkv` is all query heads, key
// heads and value heads; an invocation makes two neighbouring coordinates.

struct Params {
  n_heads: u32,
  n_kv_heads: u32,
  head_dim: u32,
  // 1 when coordinates `i` and `i + head_dim / 2` are a pair, 0 when `2 * i` and `2 * i + 1` are.
  half_style: u32,
  rows: u32,
  qkv_stride: u32,
  q_stride: u32,
  // Positions of the cache and of the rotary table.
  capacity: u32,
  positions: u32,
  unused_a: u32,
  unused_b: u32,
  unused_c: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: Step;
@group(0) @binding(2) var<storage, read> qkv: array<f32>;
@group(0) @binding(3) var<storage, read_write> queries: array<f32>;
@group(0) @binding(4) var<storage, read_write> keys: array<u32>;
@group(0) @binding(5) var<storage, read_write> values: array<u32>;
// Cosines `[position][head_dim / 2]`, then sines.
@group(0) @binding(6) var<storage, read> rope: array<f32>;

// Coordinate `i` of the head that begins at `start`, rotated.
fn rotated(start: u32, i: u32, pos: u32) -> f32 {
  let pairs = params.head_dim / 2u;
  var pair = i / 2u;
  var other = i ^ 1u;
  var is_first = i % 2u == 0u;
  if (params.half_style == 1u) {
    pair = i % pairs;
    is_first = i < pairs;
    other = select(i - pairs, i + pairs, is_first);
  }
  let cos = rope[pos * pairs + pair];
  let sin = rope[(params.positions + pos) * pairs + pair];
  return qkv[start + i] * cos + qkv[start + other] * select(sin, -sin, is_first);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let pairs = params.head_dim / 2u;
  let head = id.x / pairs;
  let i = id.x % pairs * 2u;
  let row = id.y;
  if (head >= params.n_heads + 2u * params.n_kv_heads || row >= params.rows) {
    return;
  }
  let start = row * params.qkv_stride + head * params.head_dim;
  let pos = step.pos + row;
  if (head < params.n_heads) {
    let to = row * params.q_stride + head * params.head_dim + i;
    queries[to] = rotated(start, i, pos);
    queries[to + 1u] = rotated(start, i + 1u, pos);
    return;
  }
  let kv_head = (head - params.n_heads) % params.n_kv_heads;
  let at = (kv_head * params.capacity + pos) * pairs + i / 2u;
  if (head < params.n_heads + params.n_kv_heads) {
    keys[at] = pack2x16float(vec2<f32>(rotated(start, i, pos), rotated(start, i + 1u, pos)));
  } else {
    values[at] = pack2x16float(vec2<f32>(qkv[start + i], qkv[start + i + 1u]));
  }
}
