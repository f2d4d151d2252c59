// Candidates of a row of logits. They are read as integers, which no device rounds.
@group(0) @binding(1) var<storage, read> logits: array<u32>;

// The two zeros are equal, and a NaN is the largest of all.
fn candidate(i: u32) -> Candidate {
  if (i >= params.n) {
    return NONE;
  }
  let bits = logits[i];
  let magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return Candidate(i, 0xffffffffu);
  }
  return Candidate(i, select(bits | 0x80000000u, ~bits, bits > 0x80000000u));
}
