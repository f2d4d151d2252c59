// The codes of rows that have one scale each, where STRICT a power of two. A workgroup makes a row.

struct Params {
  stride: u32,
  unused_a: u32,
  unused_b: u32,
  unused_c: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
// Values are read as integers, which no device rounds.
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;

const LANES: u32 = 64u;
var<workgroup> largest: array<u32, LANES>;

// The largest magnitude of a row, as bits.
fn largest_of(row: u32, lane: u32) -> u32 {
  var m = vec4<u32>(0u);
  for (var i = lane; i < params.stride / 4u; i += LANES) {
    m = max(m, finite_bits(x[row * params.stride / 4u + i]) & vec4<u32>(0x7fffffffu));
  }
  largest[lane] = max(max(m.x, m.y), max(m.z, m.w));
  workgroupBarrier();
  var all = 0u;
  for (var l = 0u; l < LANES; l++) {
    all = max(all, largest[l]);
  }
  return all;
}

// The exponent of the least power of two that, times 127, is not less than `m`; 0 where there is none. 127 is 1.984375 * 2^6.
fn strict_exponent(m: u32) -> u32 {
  let above = select(0u, 1u, ((m & 0x7fffffu) | 0x800000u) > 0xfe0000u);
  return max((m >> 23u) + above, 6u) - 6u;
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let m = largest_of(group.x, lane);
  var r = reciprocal(m);
  var scale = scale_of(m);
  if (STRICT) {
    let exponent = strict_exponent(m);
    r = select(bitcast<f32>((254u - exponent) << 23u), 0.0, exponent == 0u);
    scale = bitcast<f32>(exponent << 23u);
  }
  scale = select(scale, 1.0, r == 0.0);
  for (var first = 0u; first < params.stride; first += LANES * 4u) {
    let i = first + lane * 4u;
    var values = vec4<u32>(0u);
    if (i < params.stride) {
      values = finite_bits(x[(group.x * params.stride + i) / 4u]);
    }
    put_codes(group.x, i, values, lane, scale, r);
  }
}
