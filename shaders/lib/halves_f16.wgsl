// Two halves, as such.
alias Halves = vec2<f16>;

fn floats(halves: Halves) -> vec2<f32> {
  return vec2<f32>(halves);
}
