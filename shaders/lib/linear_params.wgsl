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
  unused: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

// Columns and slices of K that an invocation of a workgroup of 64 has: 4 columns, one block of 32 in 16.
const SLICES: u32 = 16u;

var<workgroup> partial: array<vec4<f32>, 64u * ROWS>;

// Writes 4 columns from `column` of the row that begins at `at`, or adds to them where ADD; those from `n` on are dropped.
fn write(v: vec4<f32>, at: u32, n: u32, column: u32) {
  for (var c = 0u; c < 4u && column + c < n; c++) {
    let i = at + column + c;
    if (ADD) {
      out[i] += v[c];
    } else {
      out[i] = v[c];
    }
  }
}

// The sum over all slices of row `slice` for the columns of this lane; for the first ROWS slices only.
fn reduced(lane: u32, sums: array<vec4<f32>, ROWS>) -> vec4<f32> {
  var all = sums;
  workgroupBarrier();
  for (var r = 0u; r < ROWS; r++) {
    partial[lane * ROWS + r] = all[r];
  }
  workgroupBarrier();
  var sum = vec4<f32>(0.0);
  let row = lane / 4u;
  if (row < ROWS) {
    for (var slice = 0u; slice < SLICES; slice++) {
      sum += partial[(slice * 4u + lane % 4u) * ROWS + row];
    }
  }
  return sum;
}
