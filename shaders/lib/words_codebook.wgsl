// Values of the codes of `$` for 4 consecutive `k` of 4 columns, as signed bytes.

// The byte of the table for the code, below 16, in the lowest bits of `codes`. The table is chosen from by its bits: what is
// indexed by a variable may not stay in registers.
fn $_value(codes: vec4<u32>) -> vec4<u32> {
  let is_odd = (codes & vec4<u32>(4u)) != vec4<u32>(0u);
  let low = select(vec4<u32>($_VALUES.x), vec4<u32>($_VALUES.y), is_odd);
  let high = select(vec4<u32>($_VALUES.z), vec4<u32>($_VALUES.w), is_odd);
  let words = select(low, high, (codes & vec4<u32>(8u)) != vec4<u32>(0u));
  return (words >> ((codes & vec4<u32>(3u)) * 8u)) & vec4<u32>(255u);
}

fn $_words(block: u32, four: u32, columns: u32) -> vec4<u32> {
  let codes = $_unsigned(block, four, columns);
  return $_value(codes) | ($_value(codes >> vec4<u32>(8u)) << vec4<u32>(8u))
    | ($_value(codes >> vec4<u32>(16u)) << vec4<u32>(16u)) | ($_value(codes >> vec4<u32>(24u)) << vec4<u32>(24u));
}
