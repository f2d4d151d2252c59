// `out = act(x * a) .* (x * b)`. A workgroup makes TILES tiles of ROWS rows.

fn act(v: vec4<f32>) -> vec4<f32> {
  if (GELU) {
    let inner = 0.7978845608 * (v + 0.044715 * v * v * v);
    // tanh overflows for large arguments on some devices; beyond 10 it is 1.
    return 0.5 * v * (vec4<f32>(1.0) + tanh(clamp(inner, vec4<f32>(-10.0), vec4<f32>(10.0))));
  }
  return v / (vec4<f32>(1.0) + exp(-v));
}

fn run(group: vec3<u32>, lane: u32) {
  let tile = group.x * TILES;
  let first = group.y * ROWS;
  var gate = a_product(tile, first, lane);
  var up = b_product(tile, first, lane);
  for (var h = 0u; h < HELD; h++) {
    gate[h] = act(gate[h]) * up[h];
  }
  put(gate, params.a, tile, first, lane);
}
