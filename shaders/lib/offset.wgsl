// Codes of `$` for 4 consecutive `k`, as floats less their offset: column `i` of the result holds `k + i` for 4 columns.
fn $_values(k0: vec4<u32>, k1: vec4<u32>, k2: vec4<u32>, k3: vec4<u32>) -> mat4x4<f32> {
  let offset = vec4<f32>($_OFFSET);
  return mat4x4<f32>(vec4<f32>(k0) - offset, vec4<f32>(k1) - offset, vec4<f32>(k2) - offset, vec4<f32>(k3) - offset);
}
