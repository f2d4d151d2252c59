// Rows `row..row + ROWS` of `q`, which have a scale each, times the tiles of `$` from `tile` on: integers over all blocks. Where
// the scales of rows are powers of two, the results are the CPU's to the bit.
fn $_product(tile: u32, row: u32, lane: u32) -> array<vec4<f32>, HELD> {
  let group = lane % 16u;
  let blocks = min(tile + group / 4u, params.$.tiles - 1u) * params.blocks;
  var sums = array<vec4<i32>, HELD>();
  for (var b = 0u; b < params.blocks; b++) {
    workgroupBarrier();
    tile_words[lane] = $_words(blocks + b, lane / 16u, group % 4u);
    for (var i = lane; i < ROWS * 3u; i += LANES) {
      tile_codes[i] = q[(min(row + i / 3u, params.rows - 1u) * params.blocks + b) * 3u + i % 3u];
    }
    workgroupBarrier();
    var dots = array<vec4<i32>, HELD>();
    for (var half = 0u; half < 2u; half++) {
      let at = half * 64u + group;
      let words = array<vec4<u32>, 4>(tile_words[at], tile_words[at + 16u], tile_words[at + 32u], tile_words[at + 48u]);
      for (var h = 0u; h < HELD; h++) {
        let values = tile_codes[(own_row(lane) + h) * 3u + half];
        dots[h] += dots4(words[0], values.x) + dots4(words[1], values.y) + dots4(words[2], values.z) + dots4(words[3], values.w);
      }
    }
    let steps = $_steps(blocks + b, group % 4u);
    for (var h = 0u; h < HELD; h++) {
      let total = bitcast<i32>(tile_codes[(own_row(lane) + h) * 3u + 2u].y);
      sums[h] += steps * (dots[h] - vec4<i32>(i32($_OFFSET) * total));
    }
  }
  let channels = $_channels(blocks, group % 4u);
  var products = array<vec4<f32>, HELD>();
  for (var h = 0u; h < HELD; h++) {
    // All blocks of a row have its scale.
    let scale = bitcast<f32>(tile_codes[(own_row(lane) + h) * 3u + 2u].x);
    products[h] = (upper_bits(sums[h]) * 4096.0 + lower_bits(sums[h])) * scale * channels;
  }
  return products;
}
