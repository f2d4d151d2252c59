// Weights `$` with a byte per group and column in a plane.

fn $_bytes(plane: u32, block: u32, four: u32, columns: u32) -> vec4<u32> {
  return vec4<u32>($[plane + (block * $_GROUPS + four / (8u / $_GROUPS)) * 4u + columns]);
}
