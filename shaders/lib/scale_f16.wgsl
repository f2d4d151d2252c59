// Weights `$` with a scale per block of 32, or per several of them, and column, as a half.

fn $_scales(block: u32, four: u32, columns: u32) -> vec4<f32> {
  let at = params.$.s + block / $_BLOCKS * 8u + columns * 2u;
  return vec4<f32>(unpack2x16float($[at]), unpack2x16float($[at + 1u]));
}
