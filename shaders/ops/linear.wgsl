// `out = x * a`, or `out += x * a` where ADD. A workgroup makes TILES tiles of ROWS rows.

fn run(group: vec3<u32>, lane: u32) {
  let tile = group.x * TILES;
  let first = group.y * ROWS;
  put(a_product(tile, first, lane), params.a, tile, first, lane);
}
