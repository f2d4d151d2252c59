// `x / rms(x) * weight`, a workgroup a row.

struct Params {
  width: u32,
  stride: u32,
  first_row: u32,
  eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;

const LANES: u32 = 64u;
var<workgroup> partial: array<f32, LANES>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  // What pads a row is zero.
  let start = (params.first_row + group.x) * params.stride / 4u;
  var sum = 0.0;
  for (var i = lane; i < params.stride / 4u; i += LANES) {
    sum += dot(x[start + i], x[start + i]);
  }
  partial[lane] = sum;
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) {
      partial[lane] += partial[lane + half];
    }
  }
  workgroupBarrier();
  let factor = 1.0 / sqrt(partial[0] / f32(params.width) + params.eps);
  for (var first = 0u; first < params.stride; first += LANES * 4u) {
    let i = first + lane * 4u;
    var v = vec4<f32>(0.0);
    for (var c = 0u; c < 4u && i + c < params.width; c++) {
      v[c] = weight[i + c];
    }
    store(group.x, i, x[start + i / 4u] * factor * v, lane);
  }
}
