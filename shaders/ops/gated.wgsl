// `out = act(x * a) .* (x * b)`. A workgroup makes one tile of ROWS rows.

fn act(v: vec4<f32>) -> vec4<f32> {
  if (GELU) {
    let inner = 0.7978845608 * (v + 0.044715 * v * v * v);
    // tanh overflows for large arguments on some devices; beyond 10 it is 1.
    return 0.5 * v * (vec4<f32>(1.0) + tanh(clamp(inner, vec4<f32>(-10.0), vec4<f32>(10.0))));
  }
  return v / (vec4<f32>(1.0) + exp(-v));
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let first = group.y * ROWS;
  let gate = a_product(group.x, first, lane);
  let up = b_product(group.x, first, lane);
  let row = first + lane / 4u;
  if (lane / 4u >= ROWS || row >= params.rows) {
    return;
  }
  let column = (params.a.first + group.x) * 16u + lane % 4u * 4u;
  write(act(gate) * up, row * params.stride, params.a.n, column);
}
