// `out = x * a`, or `out += x * a` where ADD. A workgroup makes TILES tiles of ROWS rows.

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let tile = group.x * TILES;
  let first = group.y * ROWS;
  put(a_product(tile, first, lane), params.a, tile, first, lane);
}
