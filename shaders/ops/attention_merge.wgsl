// Attention over all positions from what each split of them gave. An invocation makes 4 columns of a row.

struct Params {
  n_heads: u32,
  head_dim: u32,
  stride: u32,
  split: u32,
  splits: u32,
  unused_a: u32,
  unused_b: u32,
  unused_c: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: Step;
// `[row][head][split][head_dim + 2]`
@group(0) @binding(2) var<storage, read> parts: array<f32>;

fn merged(row: u32, column: u32) -> f32 {
  let head = column / params.head_dim;
  let size = params.head_dim + 2u;
  let first = (row * params.n_heads + head) * params.splits * size;
  // Splits that no row has come to hold nothing.
  let splits = (step.pos + row + params.split) / params.split;
  var highest = parts[first + params.head_dim];
  for (var s = 1u; s < splits; s++) {
    highest = max(highest, parts[first + s * size + params.head_dim]);
  }
  var sum = 0.0;
  var total = 0.0;
  for (var s = 0u; s < splits; s++) {
    let at = first + s * size;
    let weight = exp(parts[at + params.head_dim] - highest);
    sum += weight * parts[at + column % params.head_dim];
    total += weight * parts[at + params.head_dim + 1u];
  }
  return sum / total;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = (group.x * 64u + lane) * 4u;
  var v = vec4<f32>(0.0);
  for (var c = 0u; c < 4u && i + c < params.n_heads * params.head_dim; c++) {
    v[c] = merged(group.y, i + c);
  }
  store(group.y, i, v, lane);
}
