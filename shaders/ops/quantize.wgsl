// The codes of rows. A workgroup makes 256 columns.

struct Params {
  stride: u32,
  unused_a: u32,
  unused_b: u32,
  unused_c: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = (group.x * 64u + lane) * 4u;
  store(group.y, i, x[(group.y * params.stride + i) / 4u], lane);
}
