// Few rows: 64 lanes make a tile of ROWS rows, a workgroup TILES of them. A lane sums 4 columns of every 16th block; then
// lane `4 * r + c` of the tile's holds row `r` and columns `4 * c..4 * c + 4`.

const TILE_LANES: u32 = 64u;
const LANES: u32 = TILES * TILE_LANES;
const HELD: u32 = 1u;
const SLICES: u32 = 16u;

var<workgroup> partial: array<vec4<f32>, LANES * ROWS>;

fn own_row(lane: u32) -> u32 {
  return lane % TILE_LANES / 4u;
}

fn own_column(lane: u32) -> u32 {
  return lane % 4u * 4u;
}

fn reduced(lane: u32, sums: array<vec4<f32>, ROWS>) -> array<vec4<f32>, HELD> {
  var all = sums;
  workgroupBarrier();
  for (var r = 0u; r < ROWS; r++) {
    partial[lane * ROWS + r] = near_sums(all[r], lane, 4u, TILE_LANES);
  }
  workgroupBarrier();
  var sum = vec4<f32>(0.0);
  let row = own_row(lane);
  if (row < ROWS) {
    let first = lane / TILE_LANES * TILE_LANES;
    let to_next = leap(4u, TILE_LANES);
    for (var i = lane % 4u; i < TILE_LANES; i += to_next) {
      sum += partial[(first + i) * ROWS + row];
    }
  }
  return array<vec4<f32>, HELD>(sum);
}
