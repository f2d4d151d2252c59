// Quantises activations to signed bytes (accuracy contract, level A'): the same codes and scales as on every CPU, although WGSL
// lets a division be off by 2.5 units in the last place.

var<workgroup> sum_of_4: array<i32, 64>;

// The float nearest to 127 / `m`, for a normal `m`, or 0 where there is none.
fn reciprocal(m: u32) -> f32 {
  let significand = (m & 0x7fffffu) | 0x800000u;
  // The quotient has 24 bits; as its dividend is a multiple of 2^32, its remainder is known even where the product wraps.
  let shift = select(17u, 18u, significand > 0xfe0000u);
  let estimate = 127.0 / bitcast<f32>((m & 0x7fffffu) | 0x3f800000u);
  var quotient = u32(estimate * f32(1u << shift));
  var rest = bitcast<i32>(0u - quotient * significand);
  let all = i32(significand);
  for (var i = 0u; i < 8u && 2 * rest > all; i++) {
    quotient += 1u;
    rest -= all;
  }
  for (var i = 0u; i < 8u && 2 * rest < -all; i++) {
    quotient -= 1u;
    rest += all;
  }
  let exponent = 277u - shift - (m >> 23u);
  return select(bitcast<f32>((exponent << 23u) | (quotient & 0x7fffffu)), 0.0, exponent > 254u);
}

// The float nearest to `m` / 127, or 0 where that is not a normal one.
fn scale_of(m: u32) -> f32 {
  let significand = (m & 0x7fffffu) | 0x800000u;
  let shift = select(6u, 7u, significand < 0xfe0000u);
  let dividend = significand << shift;
  let quotient = dividend / 127u + select(0u, 1u, dividend % 127u > 63u);
  let exponent = m >> 23u;
  return select(bitcast<f32>(((exponent - shift) << 23u) | (quotient & 0x7fffffu)), 0.0, exponent <= shift);
}

// Infinities are the largest floats, and a NaN is the positive one.
fn finite(x: u32) -> u32 {
  let magnitude = x & 0x7fffffffu;
  let sign = select(x & 0x80000000u, 0u, magnitude > 0x7f800000u);
  return sign | min(magnitude, 0x7f7fffffu);
}

fn finite_bits(bits: vec4<u32>) -> vec4<u32> {
  return vec4<u32>(finite(bits.x), finite(bits.y), finite(bits.z), finite(bits.w));
}

// Stores the codes of 4 finite values of `row` from column `i` on, a lane after the other: what `r` makes of them. All lanes call
// it together.
fn put_codes(row: u32, i: u32, x: vec4<u32>, lane: u32, scale: f32, r: f32) {
  let codes = vec4<i32>(clamp(round(bitcast<vec4<f32>>(x) * r), vec4<f32>(-127.0), vec4<f32>(127.0)));
  workgroupBarrier();
  sum_of_4[lane] = codes.x + codes.y + codes.z + codes.w;
  workgroupBarrier();
  if (i < params.stride) {
    let block = (row * params.stride + i) / 32u * 12u;
    let bytes = bitcast<vec4<u32>>(codes) & vec4<u32>(255u);
    q[block + lane % 8u] = bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
    if (lane % 8u == 0u) {
      var sums = array<i32, 2>();
      for (var l = 0u; l < 8u; l++) {
        sums[l / 4u] += sum_of_4[lane + l];
      }
      q[block + 8u] = bitcast<u32>(scale);
      q[block + 9u] = bitcast<u32>(sums[0] + sums[1]);
      q[block + 10u] = bitcast<u32>(sums[0]);
    }
  }
}
