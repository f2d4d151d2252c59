// The weights of a block, `[k][4 columns]`, and its activations, `[row][4 k]`.
var<workgroup> tile_weights: array<vec4<f32>, 512>;
var<workgroup> tile_rows: array<vec4<f32>, 512>;
