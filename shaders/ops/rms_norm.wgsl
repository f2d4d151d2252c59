// `out = x / rms(x) * weight`, a workgroup a row.

struct Params {
  width: u32,
  stride: u32,
  first_row: u32,
  eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;

const LANES: u32 = 64u;
var<workgroup> partial: array<f32, LANES>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let start = (params.first_row + group.x) * params.stride;
  var sum = 0.0;
  for (var i = lane; i < params.width; i += LANES) {
    sum += x[start + i] * x[start + i];
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
  for (var i = lane; i < params.width; i += LANES) {
    out[group.x * params.stride + i] = x[start + i] * factor * weight[i];
  }
}
