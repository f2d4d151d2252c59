// Stores codes with a scale every 32.

var<workgroup> largest_of_4: array<u32, 64>;

// Stores the codes of 4 values of `row` from column `i` on, a lane after the other. All lanes call it together.
fn store_codes(row: u32, i: u32, v: vec4<f32>, lane: u32) {
  let x = finite_bits(bitcast<vec4<u32>>(v));
  let magnitudes = x & vec4<u32>(0x7fffffffu);
  workgroupBarrier();
  largest_of_4[lane] = max(max(magnitudes.x, magnitudes.y), max(magnitudes.z, magnitudes.w));
  workgroupBarrier();
  let first = lane / 8u * 8u;
  var m = 0u;
  for (var l = 0u; l < 8u; l++) {
    m = max(m, largest_of_4[first + l]);
  }
  let r = reciprocal(m);
  put_codes(row, i, x, lane, select(scale_of(m), 1.0, r == 0.0), r);
}
