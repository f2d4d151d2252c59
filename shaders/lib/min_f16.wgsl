// Weights `$` with a min per block of 32 and column, as a half.

fn $_mins(block: u32, four: u32, columns: u32) -> vec4<f32> {
  let at = params.$.m + block * 8u + columns * 2u;
  return vec4<f32>(unpack2x16float($[at]), unpack2x16float($[at + 1u]));
}
