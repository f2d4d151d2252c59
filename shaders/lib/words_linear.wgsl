// Codes of `$` for 4 consecutive `k` of 4 columns, as bytes.

fn $_words(block: u32, four: u32, columns: u32) -> vec4<u32> {
  return $_unsigned(block, four, columns);
}
