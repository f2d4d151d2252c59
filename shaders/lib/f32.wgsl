// Weights `$`: single floats, 16 columns side by side.

fn $_codes(block: u32, four: u32, columns: u32) -> mat4x4<f32> {
  var values = mat4x4<f32>();
  for (var k = 0u; k < 4u; k++) {
    let at = params.$.w + (block * 32u + four * 4u + k) * 16u + columns * 4u;
    values[k] = bitcast<vec4<f32>>(vec4<u32>($[at], $[at + 1u], $[at + 2u], $[at + 3u]));
  }
  return values;
}
