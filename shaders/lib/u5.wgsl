// Weights `$`: unsigned 5-bit codes, the low four bits as in u4.wgsl; bit `8 * (k % 4) + k / 4` of a column's word in the
// plane `x` is bit 4 of code `k` of the block.

fn $_codes(block: u32, four: u32, columns: u32) -> mat4x4<f32> {
  let at = params.$.w + (block * 4u + four / 2u) * 16u + columns * 4u;
  let low = vec4<u32>($[at], $[at + 1u], $[at + 2u], $[at + 3u]) >> vec4<u32>(four % 2u * 4u);
  let x = params.$.x + block * 16u + columns * 4u;
  let high = (vec4<u32>($[x], $[x + 1u], $[x + 2u], $[x + 3u]) >> vec4<u32>(four)) & vec4<u32>(0x01010101u);
  let words = (low & vec4<u32>(0x0f0f0f0fu)) | (high << vec4<u32>(4u));
  return $_values(words & vec4<u32>(31u), (words >> vec4<u32>(8u)) & vec4<u32>(31u),
    (words >> vec4<u32>(16u)) & vec4<u32>(31u), (words >> vec4<u32>(24u)) & vec4<u32>(31u));
}
