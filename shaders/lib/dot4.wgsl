// Products of signed bytes. A block of `q` is 8 words of 4 codes, its scale, the sum of its codes, and 2 words of nothing.

fn dots4(words: vec4<u32>, values: u32) -> vec4<i32> {
  return vec4<i32>(dot4I8Packed(words.x, values), dot4I8Packed(words.y, values), dot4I8Packed(words.z, values),
    dot4I8Packed(words.w, values));
}

// What a block adds to 4 columns. All integers are below 2^24.
fn block_sum(dots: vec4<i32>, offset: i32, scales: vec4<f32>, mins: vec4<f32>, of_block: vec4<u32>) -> vec4<f32> {
  let total = bitcast<i32>(of_block.y);
  return (vec4<f32>(dots - vec4<i32>(offset * total)) * scales + f32(total) * mins) * bitcast<f32>(of_block.x);
}
