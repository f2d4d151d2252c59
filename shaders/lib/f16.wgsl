// Weights `$`: halves, 16 columns side by side.

fn $_codes(block: u32, four: u32, columns: u32) -> mat4x4<f32> {
  var values = mat4x4<f32>();
  for (var k = 0u; k < 4u; k++) {
    let at = params.$.w + (block * 32u + four * 4u + k) * 8u + columns * 2u;
    values[k] = vec4<f32>(floats($[at]), floats($[at + 1u]));
  }
  return values;
}
