// What every op reads: its own parameters, and what changes from step to step.

// A packed matrix, or some tiles of one: where its planes begin, in words, and which columns it makes.
struct Matrix {
  w: u32,
  x: u32,
  s: u32,
  m: u32,
  d: u32,
  tiles: u32,
  // Columns of the matrix.
  n: u32,
  // Where its first column goes in a row of the output.
  at: u32,
  // Its first tile, where it is a part of a matrix.
  first: u32,
  // Where its plane of scales of columns begins.
  c: u32,
  unused_a: u32,
  unused_b: u32,
}

struct Step {
  // The position of the first row.
  pos: u32,
  unused_a: u32,
  unused_b: u32,
  unused_c: u32,
}
