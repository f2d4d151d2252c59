// `out = [x * a, x * b, x * c]`, side by side. A workgroup makes TILES tiles of ROWS rows.

fn run(group: vec3<u32>, lane: u32) {
  let first = group.y * ROWS;
  let b_group = group.x - groups(params.a);
  let c_group = b_group - groups(params.b);
  if (group.x < groups(params.a)) {
    let tile = group.x * TILES;
    put(a_product(tile, first, lane), params.a, tile, first, lane);
  } else if (b_group < groups(params.b)) {
    let tile = b_group * TILES;
    put(b_product(tile, first, lane), params.b, tile, first, lane);
  } else {
    let tile = c_group * TILES;
    put(c_product(tile, first, lane), params.c, tile, first, lane);
  }
}
