// Codes of `$` for 4 consecutive `k`, as floats less their offset: column `i` of the result holds `k + i` for 4 columns.
// No code but a signed byte has its highest bit set.

fn $_codes(block: u32, four: u32, columns: u32) -> mat4x4<f32> {
  let words = vec4<i32>($_words(block, four, columns));
  let offset = vec4<f32>($_OFFSET);
  let high = vec4<u32>(24u);
  return mat4x4<f32>(vec4<f32>((words << high) >> high) - offset, vec4<f32>((words << vec4<u32>(16u)) >> high) - offset,
    vec4<f32>((words << vec4<u32>(8u)) >> high) - offset, vec4<f32>(words >> high) - offset);
}
