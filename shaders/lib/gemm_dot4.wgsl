// Rows `row..row + ROWS` of `q` times the tiles of `$` from `tile` on.
fn $_product(tile: u32, row: u32, lane: u32) -> array<vec4<f32>, HELD> {
  let group = lane % 16u;
  let blocks = min(tile + group / 4u, params.$.tiles - 1u) * params.blocks;
  var sums = array<vec4<f32>, HELD>();
  for (var b = 0u; b < params.blocks; b++) {
    workgroupBarrier();
    tile_words[lane] = $_words(blocks + b, lane / 16u, group % 4u);
    if (lane < 16u * $_GROUPS) {
      tile_scales[lane] = $_scales(blocks + b, lane / 16u * 4u, group % 4u);
      tile_mins[lane] = $_mins(blocks + b, lane / 16u * 4u, group % 4u);
    }
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
      if ($_GROUPS == 2u || half == 1u) {
        let of_group = group + half * ($_GROUPS - 1u) * 16u;
        for (var h = 0u; h < HELD; h++) {
          let of_block = tile_codes[(own_row(lane) + h) * 3u + 2u];
          sums[h] += group_sum(dots[h], i32($_OFFSET), tile_scales[of_group], tile_mins[of_group], of_block, $_GROUPS, half);
          dots[h] = vec4<i32>(0);
        }
      }
    }
  }
  return sums;
}
