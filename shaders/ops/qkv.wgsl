// `out = [x * a, x * b, x * c]`, side by side. A workgroup makes one tile of ROWS rows.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let first = group.y * ROWS;
  let row = first + lane / 4u;
  let writes = lane / 4u < ROWS && row < params.rows;
  let column = lane % 4u * 4u;
  let at = row * params.stride;
  let b_tile = group.x - params.a.tiles;
  let c_tile = b_tile - params.b.tiles;
  if (group.x < params.a.tiles) {
    let v = a_product(group.x, first, lane);
    if (writes) {
      write(v, at + params.a.at, params.a.n, group.x * 16u + column);
    }
  } else if (b_tile < params.b.tiles) {
    let v = b_product(b_tile, first, lane);
    if (writes) {
      write(v, at + params.b.at, params.b.n, b_tile * 16u + column);
    }
  } else {
    let v = c_product(c_tile, first, lane);
    if (writes) {
      write(v, at + params.c.at, params.c.n, c_tile * 16u + column);
    }
  }
}
