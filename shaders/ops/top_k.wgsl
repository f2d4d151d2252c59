// The largest logits with their ids: of HELD candidates that a workgroup takes, the first KEPT in order. What the workgroups
// keep are the candidates of the next dispatch, until one workgroup takes them all.
//
// Candidates are compared as integers, so that their order is exact: `rank` is the larger, the larger the logit.

struct Params {
  // Candidates.
  n: u32,
  unused_a: u32,
  unused_b: u32,
  unused_c: u32,
}

struct Candidate {
  id: u32,
  rank: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
// `[group][KEPT]`, largest first.
@group(0) @binding(2) var<storage, read_write> out: array<Candidate>;

const LANES: u32 = 256u;
const HELD: u32 = 1024u;
// Comes after all others.
const NONE: Candidate = Candidate(0xffffffffu, 0u);

var<workgroup> held: array<Candidate, HELD>;

// Largest first, of equals the lower id.
fn is_before(a: Candidate, b: Candidate) -> bool {
  return a.rank > b.rank || (a.rank == b.rank && a.id < b.id);
}

// Where element `i` lies, when runs of KEPT begin `apart` from each other.
fn place(i: u32, apart: u32) -> u32 {
  return i / KEPT * apart + i % KEPT;
}

// Sorts bitonic runs of `size` (Batcher 1968), every second one backwards. There are `count` elements.
fn sort(lane: u32, count: u32, apart: u32, size: u32) {
  for (var stride = size / 2u; stride > 0u; stride /= 2u) {
    for (var pair = lane; pair < count / 2u; pair += LANES) {
      let i = pair / stride * 2u * stride + pair % stride;
      let a = place(i, apart);
      let b = place(i + stride, apart);
      let left = held[a];
      let right = held[b];
      let is_backwards = (i & size) != 0u;
      if (is_before(right, left) != is_backwards) {
        held[a] = right;
        held[b] = left;
      }
    }
    workgroupBarrier();
  }
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  for (var i = lane; i < HELD; i += LANES) {
    held[i] = candidate(group.x * HELD + i);
  }
  workgroupBarrier();
  for (var size = 2u; size <= KEPT; size *= 2u) {
    sort(lane, HELD, KEPT, size);
  }
  // A run and the backward one after it become one: the better of each two are the first of both, as a bitonic run.
  for (var apart = KEPT; apart < HELD; apart *= 2u) {
    let left = HELD / 2u / apart * KEPT;
    for (var i = lane; i < left; i += LANES) {
      let at = place(i, 2u * apart);
      let other = held[at + apart];
      if (is_before(other, held[at])) {
        held[at] = other;
      }
    }
    workgroupBarrier();
    sort(lane, left, 2u * apart, KEPT);
  }
  for (var i = lane; i < KEPT; i += LANES) {
    out[group.x * KEPT + i] = held[i];
  }
}
