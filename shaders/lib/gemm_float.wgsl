// Rows `row..row + ROWS` of `x` times the tiles of `$` from `tile` on.
fn $_product(tile: u32, row: u32, lane: u32) -> array<vec4<f32>, HELD> {
  let group = lane % 16u;
  let blocks = min(tile + group / 4u, params.$.tiles - 1u) * params.blocks;
  var sums = array<vec4<f32>, HELD>();
  for (var b = 0u; b < params.blocks; b++) {
    workgroupBarrier();
    let four = lane / 16u;
    var codes = $_codes(blocks + b, four, group % 4u);
    let scales = $_scales(blocks + b, four, group % 4u);
    let mins = $_mins(blocks + b, four, group % 4u);
    for (var k = 0u; k < 4u; k++) {
      tile_weights[(four * 4u + k) * 16u + group] = codes[k] * scales + mins;
    }
    for (var i = lane; i < ROWS * 8u; i += LANES) {
      tile_rows[i] = x[(min(row + i / 8u, params.rows - 1u) * params.blocks + b) * 8u + i % 8u];
    }
    workgroupBarrier();
    for (var four = 0u; four < 8u; four++) {
      let at = four * 64u + group;
      let weights = mat4x4<f32>(tile_weights[at], tile_weights[at + 16u], tile_weights[at + 32u], tile_weights[at + 48u]);
      for (var h = 0u; h < HELD; h++) {
        sums[h] += weights * tile_rows[(own_row(lane) + h) * 8u + four];
      }
    }
  }
  return sums;
}
