// Weights `$`: signed bytes, 4 of a column to a word.

fn $_codes(block: u32, four: u32, columns: u32) -> mat4x4<f32> {
  let at = params.$.w + (block * 8u + four) * 16u + columns * 4u;
  let words = vec4<i32>(vec4<u32>($[at], $[at + 1u], $[at + 2u], $[at + 3u]));
  return mat4x4<f32>(vec4<f32>((words << vec4<u32>(24u)) >> vec4<u32>(24u)), vec4<f32>((words << vec4<u32>(16u)) >> vec4<u32>(24u)),
    vec4<f32>((words << vec4<u32>(8u)) >> vec4<u32>(24u)), vec4<f32>(words >> vec4<u32>(24u)));
}
