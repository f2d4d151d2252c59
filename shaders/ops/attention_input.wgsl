// What attention reads of one row: `x * a`, `x * b` and `x * c`, which are queries, keys and values. Queries and keys are
// rotated; queries go to `out`, keys and values to the cache as halves. A workgroup makes two tiles: those with the two
// coordinates of each pair.

@group(0) @binding(1) var<uniform> step: Step;

var<workgroup> made: array<vec4<f32>, 8>;

// The tile of a lane, where tiles `apart` from each other belong together.
fn own_tile(group: u32, lane: u32, apart: u32) -> u32 {
  return group / apart * 2u * apart + group % apart + lane / TILE_LANES * apart;
}

// Where 4 columns from coordinate `i` of a head on lie in the cache, in words.
fn cached(head: u32, i: u32) -> u32 {
  return ((head * params.capacity + step.pos) * params.head_dim + i) / 2u;
}

// 4 columns from coordinate `i` of a head on, rotated. All lanes that hold some call it together.
fn rotated(v: vec4<f32>, i: u32, lane: u32) -> vec4<f32> {
  var turned = vec4<f32>(-v.y, v.x, -v.w, v.z);
  let pairs = params.head_dim / 2u;
  var pair = vec4<u32>(i / 2u) + vec4<u32>(0u, 0u, 1u, 1u);
  if (HALF) {
    let tile = lane / TILE_LANES;
    if (own_row(lane) == 0u) {
      made[tile * 4u + lane % 4u] = v;
    }
    workgroupBarrier();
    let other = made[(1u - tile) * 4u + lane % 4u];
    turned = select(other, -other, tile == 0u);
    pair = vec4<u32>(i % pairs) + vec4<u32>(0u, 1u, 2u, 3u);
  }
  let cos = step.pos * pairs + pair;
  let sin = cos + vec4<u32>(params.positions * pairs);
  return v * vec4<f32>(rope[cos.x], rope[cos.y], rope[cos.z], rope[cos.w])
    + turned * vec4<f32>(rope[sin.x], rope[sin.y], rope[sin.z], rope[sin.w]);
}

fn run(group: vec3<u32>, lane: u32) {
  let b_group = group.x - groups(params.a);
  let c_group = b_group - groups(params.b);
  let apart = select(1u, params.head_dim / 32u, HALF);
  let holds = own_row(lane) == 0u;
  if (group.x < groups(params.a)) {
    let tile = own_tile(group.x, lane, apart);
    let column = tile * 16u + own_column(lane);
    let v = rotated(a_product(min(tile, params.a.tiles - 1u), 0u, lane)[0], column % params.head_dim, lane);
    if (holds) {
      write(v, 0u, params.a.n, column);
    }
  } else if (b_group < groups(params.b)) {
    let tile = own_tile(b_group, lane, apart);
    let column = tile * 16u + own_column(lane);
    let i = column % params.head_dim;
    let v = rotated(b_product(min(tile, params.b.tiles - 1u), 0u, lane)[0], i, lane);
    if (holds && column < params.b.n) {
      let at = cached(column / params.head_dim, i);
      keys[at] = pack2x16float(v.xy);
      keys[at + 1u] = pack2x16float(v.zw);
    }
  } else {
    let tile = own_tile(c_group, lane, 1u);
    let column = tile * 16u + own_column(lane);
    let v = c_product(min(tile, params.c.tiles - 1u), 0u, lane)[0];
    if (holds && column < params.c.n) {
      let at = cached(column / params.head_dim, column % params.head_dim);
      values[at] = pack2x16float(v.xy);
      values[at + 1u] = pack2x16float(v.zw);
    }
  }
}
