// Weights `$` with a scale per group and column: 2^(e - 128) for a byte e. Those of 0 and 1 are subnormal, which a device may
// take for zeros.

fn $_scales(block: u32, four: u32, columns: u32) -> vec4<f32> {
  let e = ($_bytes(params.$.s, block, four, columns) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
  return bitcast<vec4<f32>>(max(e << vec4<u32>(23u), vec4<u32>(0x400000u))) * 0.5;
}
