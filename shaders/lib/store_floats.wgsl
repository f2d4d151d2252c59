// Stores 4 values of `row` from column `i` on.
fn store_floats(row: u32, i: u32, v: vec4<f32>) {
  if (i < params.stride) {
    out[(row * params.stride + i) / 4u] = v;
  }
}
