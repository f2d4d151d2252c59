// The weights of a block, `[4 k][4 columns]`, with their scales and mins, `[group][4 columns]`, and its activations as in `q`, `[row][3]`.
var<workgroup> tile_words: array<vec4<u32>, 128>;
var<workgroup> tile_scales: array<vec4<f32>, 32>;
var<workgroup> tile_mins: array<vec4<f32>, 32>;
var<workgroup> tile_codes: array<vec4<u32>, ROWS * 3u>;
