// Weights `$` with a scale per column, a single float, and where they have STEPS an integer per block of 32 and column.

fn $_steps(block: u32, columns: u32) -> vec4<i32> {
  if ($_STEPS) {
    let bytes = vec4<u32>($[params.$.s + block * 4u + columns]);
    return vec4<i32>((bytes >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u));
  }
  return vec4<i32>(1);
}

fn $_channels(block: u32, columns: u32) -> vec4<f32> {
  let at = params.$.c + block / params.blocks * 16u + columns * 4u;
  return bitcast<vec4<f32>>(vec4<u32>($[at], $[at + 1u], $[at + 2u], $[at + 3u]));
}

fn $_scales(block: u32, four: u32, columns: u32) -> vec4<f32> {
  return vec4<f32>($_steps(block, columns)) * $_channels(block, columns);
}
