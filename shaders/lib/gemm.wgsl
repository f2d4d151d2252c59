// Many rows: a workgroup makes 4 tiles, 64 columns, of ROWS = 64 rows, a block of 32 at a time. Lane `16 * r + c` holds
// rows `8 * r..8 * r + 8` of columns `4 * c..4 * c + 4`.

const LANES: u32 = 128u;
const TILES: u32 = 4u;
const HELD: u32 = 8u;

fn own_row(lane: u32) -> u32 {
  return lane / 16u * HELD;
}

fn own_column(lane: u32) -> u32 {
  return lane % 16u * 4u;
}
