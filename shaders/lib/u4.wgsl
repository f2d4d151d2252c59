// Weights `$`: unsigned 4-bit codes, 8 of a column to a word; byte `b` holds `k = b` in its low and `k = b + 4` in its
// high nibble.

fn $_codes(block: u32, four: u32, columns: u32) -> mat4x4<f32> {
  let at = params.$.w + (block * 4u + four / 2u) * 16u + columns * 4u;
  let words = vec4<u32>($[at], $[at + 1u], $[at + 2u], $[at + 3u]) >> vec4<u32>(four % 2u * 4u);
  return $_values(words & vec4<u32>(15u), (words >> vec4<u32>(8u)) & vec4<u32>(15u),
    (words >> vec4<u32>(16u)) & vec4<u32>(15u), (words >> vec4<u32>(24u)) & vec4<u32>(15u));
}
