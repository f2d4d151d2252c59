// Weights `$` with a scale per group and column: a signed byte times the half of its superblock of 8 blocks.

fn $_two_levels(plane: u32, part: u32, block: u32, four: u32, columns: u32) -> vec4<f32> {
  let bytes = $_bytes(plane, block, four, columns);
  let signed = vec4<i32>(bytes << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
  let at = params.$.d + (block / 8u * $_PARTS + part) * 8u + columns * 2u;
  return vec4<f32>(signed) * vec4<f32>(unpack2x16float($[at]), unpack2x16float($[at + 1u]));
}

fn $_scales(block: u32, four: u32, columns: u32) -> vec4<f32> {
  return $_two_levels(params.$.s, 0u, block, four, columns);
}
