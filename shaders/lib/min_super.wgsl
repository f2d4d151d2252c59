// Weights `$` with a min per group and column, made as their scales are.

fn $_mins(block: u32, four: u32, columns: u32) -> vec4<f32> {
  return $_two_levels(params.$.m, 1u, block, four, columns);
}
