// `out = x * a`, or `out += x * a` where ADD. A workgroup makes one tile of ROWS rows.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let first = group.y * ROWS;
  let v = a_product(group.x, first, lane);
  let row = first + lane / 4u;
  if (lane / 4u >= ROWS || row >= params.rows) {
    return;
  }
  let column = (params.a.first + group.x) * 16u + lane % 4u * 4u;
  write(v, row * params.stride + params.a.at, params.a.n, column);
}
