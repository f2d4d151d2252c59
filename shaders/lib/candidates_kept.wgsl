// Candidates that were kept before.
@group(0) @binding(1) var<storage, read> kept: array<Candidate>;

fn candidate(i: u32) -> Candidate {
  if (i >= params.n) {
    return NONE;
  }
  return kept[i];
}
