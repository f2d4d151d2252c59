// Two halves, as a word.
alias Halves = u32;

fn floats(halves: Halves) -> vec2<f32> {
  return unpack2x16float(halves);
}
