// Weights `$`: bfloat16, the upper half of a single float, 16 columns side by side.

fn $_codes(block: u32, four: u32, columns: u32) -> mat4x4<f32> {
  var values = mat4x4<f32>();
  for (var k = 0u; k < 4u; k++) {
    let at = params.$.w + (block * 32u + four * 4u + k) * 8u + columns * 2u;
    let words = vec2<u32>($[at], $[at + 1u]);
    let even = bitcast<vec2<f32>>(words << vec2<u32>(16u));
    let odd = bitcast<vec2<f32>>(words & vec2<u32>(0xffff0000u));
    values[k] = vec4<f32>(even.x, odd.x, even.y, odd.y);
  }
  return values;
}
