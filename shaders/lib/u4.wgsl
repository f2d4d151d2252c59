// Weights `$`: unsigned 4-bit codes, 8 of a column to a word; byte `b` holds `k = b` in its low and `k = b + 4` in its
// high nibble.

fn $_words(block: u32, four: u32, columns: u32) -> vec4<u32> {
  let at = params.$.w + (block * 4u + four / 2u) * 16u + columns * 4u;
  let words = vec4<u32>($[at], $[at + 1u], $[at + 2u], $[at + 3u]) >> vec4<u32>(four % 2u * 4u);
  return words & vec4<u32>(0x0f0f0f0fu);
}
