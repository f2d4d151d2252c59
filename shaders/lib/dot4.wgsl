// Products of signed bytes. A block of `q` is 8 words of 4 codes, its scale, the sums of its codes and
// of the first half of them, and a word of nothing.

fn dots4(words: vec4<u32>, values: u32) -> vec4<i32> {
  return vec4<i32>(dot4I8Packed(words.x, values), dot4I8Packed(words.y, values), dot4I8Packed(words.z, values),
    dot4I8Packed(words.w, values));
}

// Integers as floats: `4096 * upper_bits(v) + lower_bits(v)`, of which only the sum is rounded.
fn upper_bits(v: vec4<i32>) -> vec4<f32> {
  return vec4<f32>(v >> vec4<u32>(12u));
}

fn lower_bits(v: vec4<i32>) -> vec4<f32> {
  return vec4<f32>(v & vec4<i32>(4095));
}

// What a block, or half `half` of one of 2 groups, adds to 4 columns. All integers are below 2^24.
fn group_sum(dots: vec4<i32>, offset: i32, scales: vec4<f32>, mins: vec4<f32>, of_block: vec4<u32>, groups: u32, half: u32) -> vec4<f32> {
  let sums = bitcast<vec4<i32>>(of_block);
  let total = select(sums.y, select(sums.z, sums.y - sums.z, half == 1u), groups == 2u);
  return (vec4<f32>(dots - vec4<i32>(offset * total)) * scales + f32(total) * mins) * bitcast<f32>(of_block.x);
}
