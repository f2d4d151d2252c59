// Weights `$` with a scale per group and column: half of a float of a byte, 4 bits of exponent and 3 of mantissa.

fn $_scales(block: u32, four: u32, columns: u32) -> vec4<f32> {
  let bytes = ($_bytes(params.$.s, block, four, columns) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
  let normal = bitcast<vec4<f32>>((bytes << vec4<u32>(20u)) + vec4<u32>(119u << 23u));
  return select(normal, vec4<f32>(bytes) * (1.0 / 1024.0), bytes < vec4<u32>(8u));
}
