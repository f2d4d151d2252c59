// Rows `row..row + ROWS` of `x` times a tile of `$`.
fn $_product(tile: u32, row: u32, lane: u32) -> array<vec4<f32>, HELD> {
  let columns = lane % 4u;
  var sums = array<vec4<f32>, ROWS>();
  for (var b = lane / 4u % SLICES; b < params.blocks; b += SLICES) {
    let block = tile * params.blocks + b;
    var terms = array<vec4<f32>, ROWS>();
    var totals = array<f32, ROWS>();
    for (var four = 0u; four < 8u; four++) {
      let codes = $_codes(block, four, columns);
      for (var r = 0u; r < ROWS; r++) {
        let values = x[(row + r) * params.blocks * 8u + b * 8u + four];
        terms[r] += codes * values;
        totals[r] += dot(values, vec4<f32>(1.0));
      }
    }
    let scales = $_scales(block, columns);
    let mins = $_mins(block, columns);
    for (var r = 0u; r < ROWS; r++) {
      sums[r] += terms[r] * scales + totals[r] * mins;
    }
  }
  return reduced(lane, sums);
}
