// Weights `$`: signed bytes, 4 of a column to a word.

fn $_words(block: u32, four: u32, columns: u32) -> vec4<u32> {
  let at = params.$.w + (block * 8u + four) * 16u + columns * 4u;
  return vec4<u32>($[at], $[at + 1u], $[at + 2u], $[at + 3u]);
}
