// Weights `$`: unsigned codes, cut into a low field in plane `w` and, perhaps, a high one in plane `x`. A word of a plane
// holds `32 / bits` codes of a column: byte `b` has `k = b` in its lowest bits, `k = b + 4` in the next ones, and so on.

fn $_field(plane: u32, bits: u32, block: u32, four: u32, columns: u32) -> vec4<u32> {
  let of_byte = 8u / bits;
  let at = plane + (block * bits + four / of_byte) * 16u + columns * 4u;
  let words = vec4<u32>($[at], $[at + 1u], $[at + 2u], $[at + 3u]) >> vec4<u32>(four % of_byte * bits);
  return words & vec4<u32>(0x01010101u * ((1u << bits) - 1u));
}

fn $_unsigned(block: u32, four: u32, columns: u32) -> vec4<u32> {
  var words = $_field(params.$.w, $_LOW, block, four, columns);
  if ($_HIGH > 0u) {
    words |= $_field(params.$.x, $_HIGH, block, four, columns) << vec4<u32>($_LOW);
  }
  return words;
}
