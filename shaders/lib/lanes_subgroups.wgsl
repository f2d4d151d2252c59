// Sums over the lanes of a workgroup: over those of a subgroup first, then through the workgroup's memory. Subgroups have 4 to
// 128 lanes, which is known when they run, and WGSL does not promise which these are.

// Lanes of this subgroup, where they follow each other from a multiple of their number on; else 1: each is for itself.
var<private> span: u32;
// Not 0 where any subgroup is not such a one.
var<workgroup> scattered: atomic<u32>;

// The sum of every `apart`-th of the `end` (a power of two, at most 64) lanes around this one, as far as they are of its
// subgroup; zeros but for the first `apart` of these.
fn near_sums(v: vec4<f32>, lane: u32, apart: u32, end: u32) -> vec4<f32> {
  var sum = v;
  for (var mask = apart; mask < end; mask *= 2u) {
    let other = subgroupShuffleXor(sum, mask);
    sum += select(vec4<f32>(0.0), other, mask < span);
  }
  return select(vec4<f32>(0.0), sum, lane % min(span, end) < apart);
}

fn near_sum(v: f32, lane: u32, end: u32) -> f32 {
  var sum = v;
  for (var mask = 1u; mask < end; mask *= 2u) {
    let other = subgroupShuffleXor(sum, mask);
    sum += select(0.0, other, mask < span);
  }
  return select(0.0, sum, lane % min(span, end) == 0u);
}

fn near_max(v: f32, end: u32) -> f32 {
  var most = v;
  for (var mask = 1u; mask < end; mask *= 2u) {
    let other = subgroupShuffleXor(most, mask);
    most = select(most, max(most, other), mask < span);
  }
  return most;
}

// How far it is from one sum to the next, once all lanes have written theirs and met.
fn leap(apart: u32, end: u32) -> u32 {
  return select(max(min(span, end), apart), apart, atomicLoad(&scattered) != 0u);
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_size) size: u32, @builtin(subgroup_invocation_id) id: u32) {
  let most = min(size, LANES);
  let first = lane - id;
  let first_of_all = subgroupBroadcastFirst(first);
  let follows = first == first_of_all && first % most == 0u;
  span = select(1u, most, subgroupAdd(select(0u, 1u, follows)) == most);
  if (span == 1u) {
    atomicStore(&scattered, 1u);
  }
  run(group, lane);
}
