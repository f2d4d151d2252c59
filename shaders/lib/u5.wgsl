// Weights `$`: unsigned 5-bit codes, the low four bits as in u4.wgsl; bit `8 * (k % 4) + k / 4` of a column's word in the
// plane `x` is bit 4 of code `k` of the block.

fn $_words(block: u32, four: u32, columns: u32) -> vec4<u32> {
  let at = params.$.w + (block * 4u + four / 2u) * 16u + columns * 4u;
  let low = vec4<u32>($[at], $[at + 1u], $[at + 2u], $[at + 3u]) >> vec4<u32>(four % 2u * 4u);
  let x = params.$.x + block * 16u + columns * 4u;
  let high = (vec4<u32>($[x], $[x + 1u], $[x + 2u], $[x + 3u]) >> vec4<u32>(four)) & vec4<u32>(0x01010101u);
  return (low & vec4<u32>(0x0f0f0f0fu)) | (high << vec4<u32>(4u));
}
