// Sums over the lanes of a workgroup, through its memory alone.

fn near_sums(v: vec4<f32>, lane: u32, apart: u32, end: u32) -> vec4<f32> {
  return v;
}

fn near_sum(v: f32, lane: u32, end: u32) -> f32 {
  return v;
}

fn near_max(v: f32, end: u32) -> f32 {
  return v;
}

fn leap(apart: u32, end: u32) -> u32 {
  return apart;
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  run(group, lane);
}
