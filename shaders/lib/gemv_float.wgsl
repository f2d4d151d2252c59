// Rows `row..row + ROWS` of `x` times a tile of `$`.
fn $_product(tile: u32, row: u32, lane: u32) -> array<vec4<f32>, HELD> {
  let columns = lane % 4u;
  var sums = array<vec4<f32>, ROWS>();
  for (var b = lane / 4u % SLICES; b < params.blocks; b += SLICES) {
    let block = tile * params.blocks + b;
    for (var first = 0u; first < 8u; first += 8u / $_GROUPS) {
      var terms = array<vec4<f32>, ROWS>();
      var totals = array<f32, ROWS>();
      for (var four = first; four < first + 8u / $_GROUPS; four++) {
        let codes = $_codes(block, four, columns);
        for (var r = 0u; r < ROWS; r++) {
          let values = x[(row + r) * params.blocks * 8u + b * 8u + four];
          terms[r] += codes * values;
          totals[r] += dot(values, vec4<f32>(1.0));
        }
      }
      let scales = $_scales(block, first, columns);
      let mins = $_mins(block, first, columns);
      for (var r = 0u; r < ROWS; r++) {
        sums[r] += terms[r] * scales + totals[r] * mins;
      }
    }
  }
  return reduced(lane, sums);
}
