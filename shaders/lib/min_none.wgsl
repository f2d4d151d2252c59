// Weights `$` without mins.

fn $_mins(block: u32, four: u32, columns: u32) -> vec4<f32> {
  return vec4<f32>(0.0);
}
