// `out[i] = scale * a[ids[i]]`, for the ids whose rows lie in this part of the table. An invocation makes 4 columns of `out`, `k`.

struct Params {
  a: Matrix,
  rows: u32,
  blocks: u32,
  // Columns of a row.
  k: u32,
  stride: u32,
  scale: f32,
  unused_a: u32,
  unused_b: u32,
  unused_c: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let row = id.y;
  if (id.x * 4u >= params.k || row >= params.rows) {
    return;
  }
  let token = ids[row];
  let tile = token / 16u - params.a.first;
  if (tile >= params.a.tiles) {
    return;
  }
  let block = tile * params.blocks + id.x / 8u;
  let columns = token % 16u / 4u;
  let column = token % 4u;
  let codes = transpose(a_codes(block, id.x % 8u, columns))[column];
  let v = codes * a_scales(block, id.x % 8u, columns)[column] + vec4<f32>(a_mins(block, id.x % 8u, columns)[column]);
  for (var c = 0u; c < 4u && id.x * 4u + c < params.k; c++) {
    out[row * params.stride + id.x * 4u + c] = v[c] * params.scale;
  }
}
