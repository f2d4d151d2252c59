// Rows `row..row + ROWS` of `q` times a tile of `$`.
fn $_product(tile: u32, row: u32, lane: u32) -> array<vec4<f32>, HELD> {
  let columns = lane % 4u;
  var sums = array<vec4<f32>, ROWS>();
  for (var b = lane / 4u % SLICES; b < params.blocks; b += SLICES) {
    let block = tile * params.blocks + b;
    var dots = array<vec4<i32>, ROWS>();
    for (var half = 0u; half < 2u; half++) {
      var words = array<vec4<u32>, 4>();
      for (var i = 0u; i < 4u; i++) {
        words[i] = $_words(block, half * 4u + i, columns);
      }
      for (var r = 0u; r < ROWS; r++) {
        let values = q[((row + r) * params.blocks + b) * 3u + half];
        dots[r] += dots4(words[0], values.x) + dots4(words[1], values.y) + dots4(words[2], values.z) + dots4(words[3], values.w);
      }
      if ($_GROUPS == 2u || half == 1u) {
        let scales = $_scales(block, half * 4u, columns);
        let mins = $_mins(block, half * 4u, columns);
        for (var r = 0u; r < ROWS; r++) {
          let of_block = q[((row + r) * params.blocks + b) * 3u + 2u];
          sums[r] += group_sum(dots[r], i32($_OFFSET), scales, mins, of_block, $_GROUPS, half);
          dots[r] = vec4<i32>(0);
        }
      }
    }
  }
  return reduced(lane, sums);
}
