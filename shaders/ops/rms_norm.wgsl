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

fn run(group: vec3<u32>, lane: u32) {
  // What pads a row is zero.
  let start = (params.first_row + group.x) * params.stride / 4u;
  var sum = 0.0;
  for (var i = lane; i < params.stride / 4u; i += LANES) {
    sum += dot(x[start + i], x[start + i]);
  }
  partial[lane] = near_sum(sum, lane, LANES);
  workgroupBarrier();
  var all = 0.0;
  let to_next = leap(1u, LANES);
  for (var i = 0u; i < LANES; i += to_next) {
    all += partial[i];
  }
  let factor = 1.0 / sqrt(all / f32(params.width) + params.eps);
  for (var first = 0u; first < params.stride; first += LANES * 4u) {
    let i = first + lane * 4u;
    var v = vec4<f32>(0.0);
    for (var c = 0u; c < 4u && i + c < params.width; c++) {
      v[c] = weight[i + c];
    }
    store(group.x, i, x[start + i / 4u] * factor * v, lane);
  }
}
