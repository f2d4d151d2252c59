// Few rows: a workgroup makes one tile of ROWS rows. A lane sums 4 columns of every 16th block; then lane `4 * r + c` holds
// row `r` and columns `4 * c..4 * c + 4`.

const LANES: u32 = 64u;
const TILES: u32 = 1u;
const HELD: u32 = 1u;
const SLICES: u32 = 16u;

var<workgroup> partial: array<vec4<f32>, LANES * ROWS>;

fn own_row(lane: u32) -> u32 {
  return lane / 4u;
}

fn own_column(lane: u32) -> u32 {
  return lane % 4u * 4u;
}

fn reduced(lane: u32, sums: array<vec4<f32>, ROWS>) -> array<vec4<f32>, HELD> {
  var all = sums;
  workgroupBarrier();
  for (var r = 0u; r < ROWS; r++) {
    partial[lane * ROWS + r] = all[r];
  }
  workgroupBarrier();
  var sum = vec4<f32>(0.0);
  let row = own_row(lane);
  if (row < ROWS) {
    for (var slice = 0u; slice < SLICES; slice++) {
      sum += partial[(slice * 4u + lane % 4u) * ROWS + row];
    }
  }
  return array<vec4<f32>, HELD>(sum);
}
