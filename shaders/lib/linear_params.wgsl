struct Params {
  a: Matrix,
  b: Matrix,
  c: Matrix,
  // Rows of the input.
  rows: u32,
  // Blocks of 32 of a row.
  blocks: u32,
  // Floats from one row of the output to the next.
  stride: u32,
  // Where queries, keys and values are made: coordinates of a head, and positions of the cache and of the rotary table.
  head_dim: u32,
  capacity: u32,
  positions: u32,
  unused_a: u32,
  unused_b: u32,
}

@group(0) @binding(0) var<uniform> params: Params;

// Writes 4 columns from `column` of the row that begins at `at`, or adds to them where ADD; those from `end` on are dropped.
fn write(v: vec4<f32>, at: u32, end: u32, column: u32) {
  for (var c = 0u; c < 4u && column + c < end; c++) {
    let i = at + column + c;
    if (ADD) {
      out[i] += v[c];
    } else {
      out[i] = v[c];
    }
  }
}

// Writes what this lane holds of the products of rows `first..first + ROWS` and the tiles of `m` from `tile` on.
fn put(products: array<vec4<f32>, HELD>, m: Matrix, tile: u32, first: u32, lane: u32) {
  var held = products;
  let end = min(m.n, (m.first + m.tiles) * 16u);
  let column = (m.first + tile) * 16u + own_column(lane);
  for (var h = 0u; h < HELD; h++) {
    let row = own_row(lane) + h;
    if (row < ROWS && first + row < params.rows) {
      write(held[h], (first + row) * params.stride + m.at, end, column);
    }
  }
}

// Workgroups that the tiles of `m` take.
fn groups(m: Matrix) -> u32 {
  return (m.tiles + TILES - 1u) / TILES;
}
