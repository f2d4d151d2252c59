// Rows `row..row + ROWS` of `q`, which have a scale each, times a tile of `$`: integers over all blocks. Where the scales of
// rows are powers of two, the results are the CPU's to the bit.
fn $_product(tile: u32, row: u32, lane: u32) -> array<vec4<f32>, HELD> {
  let columns = lane % 4u;
  var sums = array<vec4<i32>, ROWS>();
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
    }
    let steps = $_steps(block, columns);
    for (var r = 0u; r < ROWS; r++) {
      let total = bitcast<i32>(q[((row + r) * params.blocks + b) * 3u + 2u].y);
      sums[r] += steps * (dots[r] - vec4<i32>(i32($_OFFSET) * total));
    }
  }
  // As floats upper and lower bits are exact, and so are the sums of either over the lanes.
  var upper = array<vec4<f32>, ROWS>();
  var lower = array<vec4<f32>, ROWS>();
  for (var r = 0u; r < ROWS; r++) {
    upper[r] = upper_bits(sums[r]);
    lower[r] = lower_bits(sums[r]);
  }
  let sum = reduced(lane, upper)[0] * 4096.0 + reduced(lane, lower)[0];
  let own = row + min(own_row(lane), ROWS - 1u);
  let scale = bitcast<f32>(q[own * params.blocks * 3u + 2u].x);
  return array<vec4<f32>, HELD>(sum * scale * $_channels(tile * params.blocks, columns));
}
