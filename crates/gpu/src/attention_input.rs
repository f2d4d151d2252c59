//! Queries, keys and values: products, rotary embedding, and the way into the cache.

use crate::backend::Inner;
use crate::executor::Executor;
use crate::memory::{Kv, Matrix, Rope, Rows, Tensor, Vector};
use crate::plan::Cost;
use crate::products::{Output, fits};
use crate::shader::{Shader, Tile};
use lowbit_core::Result;
use lowbit_core::backend::{AttentionShape, Norm, RopeStyle};
use lowbit_core::format::TILE_N;

/// Tiles of a workgroup that makes queries, keys and values of one row.
const PAIRED_TILES: usize = 2;

impl<E: Executor> Inner<E> {
    /// The queries of `norm(x)`, and its keys and values in the cache from the step's position on.
    pub(crate) fn attention_input(
        &mut self,
        x: &Tensor,
        norm: Norm<'_, Vector>,
        matrices: [&Matrix; 3],
        rope: &Rope,
        kv: &Kv,
        queries: &mut Tensor,
    ) -> Result<()> {
        let formats = matrices.map(|matrix| matrix.format);
        let x = self.normalise(x, 0..x.rows, norm, &formats)?;
        for matrix in matrices {
            fits(&x, matrix)?;
        }
        queries.resize(&mut self.device, x.rows, matrices[0].n)?;
        let tile = Tile::new(self.kernels, &formats, x.rows);
        if tile.makes_attention_input(&formats)
            && has_paired_tiles(rope)
            && self.one_row(&x, tile, matrices, rope, kv, queries)?
        {
            return Ok(());
        }
        self.qkv(&x, tile, matrices)?;
        self.rope_append(rope, kv, queries)
    }

    /// All of it in one dispatch, unless a matrix lies in several buffers. Returns whether it does.
    fn one_row(
        &mut self,
        x: &Rows,
        tile: Tile,
        matrices: [&Matrix; 3],
        rope: &Rope,
        kv: &Kv,
        queries: &Tensor,
    ) -> Result<bool> {
        let [q, k, v] = matrices;
        let (Some(a), Some(b), Some(c)) = (q.whole(), k.whole(), v.whole()) else { return Ok(false) };
        let shader = Shader::AttentionInput { formats: matrices.map(|m| m.format), tile, style: rope.style };
        let out = Output {
            buffers: vec![queries.buffer()?, kv.keys, kv.values, rope.buffer],
            stride: queries.stride(),
            heads: [rope.head_dim, kv.capacity, rope.positions].map(|n| n as u32),
            bytes: queries.bytes() + ((k.n + v.n) * 2 + rope.head_dim * 4) as u64,
        };
        let words = [q.words(a, 0), k.words(b, 0), v.words(c, 0)];
        let columns = [a, b, c].map(|part| part.tiles.div_ceil(PAIRED_TILES)).iter().sum();
        self.plan.product(shader, x, &words, &[a, b, c], out, [columns, 1]);
        Ok(true)
    }

    /// The products of `x` and the three matrices, side by side, in `self.qkv`.
    fn qkv(&mut self, x: &Rows, tile: Tile, matrices: [&Matrix; 3]) -> Result<()> {
        let [q, k, v] = matrices;
        let starts = [0, q.n, q.n + k.n];
        let kernels = self.kernels.of(&matrices.map(|matrix| matrix.format));
        let Self { device, plan, qkv: out, .. } = self;
        out.resize(device, x.rows, q.n + k.n + v.n)?;
        if let (Some(a), Some(b), Some(c)) = (q.whole(), k.whole(), v.whole()) {
            let words = [q.words(a, starts[0]), k.words(b, starts[1]), v.words(c, starts[2])];
            let workgroups = tile.workgroups(&[a.tiles, b.tiles, c.tiles], x.rows);
            let shader = Shader::Qkv { formats: matrices.map(|m| m.format), tile };
            plan.product(shader, x, &words, &[a, b, c], Output::rows(out)?, workgroups);
            return Ok(());
        }
        for (matrix, at) in matrices.into_iter().zip(starts) {
            plan.linear(kernels, x, matrix, out, at, false)?;
        }
        Ok(())
    }

    /// Rotates what lies in `self.qkv`.
    fn rope_append(&mut self, rope: &Rope, kv: &Kv, queries: &Tensor) -> Result<()> {
        let AttentionShape { n_heads, n_kv_heads, head_dim, .. } = kv.shape;
        let half_style = usize::from(rope.style == RopeStyle::Half);
        let (from, rows) = (&self.qkv, queries.rows);
        let strides = [from.stride(), queries.stride()];
        let mut params = vec![n_heads, n_kv_heads, head_dim, half_style, rows];
        params.extend(strides.into_iter().chain([kv.capacity, rope.positions, 0, 0, 0]));
        let params: Vec<u32> = params.into_iter().map(|n| n as u32).collect();
        let cost = Cost { others: 2 * from.bytes(), ..Cost::default() };
        let buffers = [from.buffer()?, queries.buffer()?, kv.keys, kv.values, rope.buffer];
        let invocations = (n_heads + 2 * n_kv_heads) * head_dim / 2;
        let workgroups = [invocations.div_ceil(64), rows];
        self.plan.push(Shader::RopeAppend, &params, &buffers, workgroups, cost);
        Ok(())
    }
}

/// Whether the coordinates of each pair lie in two whole tiles or, with 4 columns of a head at a time, in one.
fn has_paired_tiles(rope: &Rope) -> bool {
    rope.head_dim.is_multiple_of(match rope.style {
        RopeStyle::Half => PAIRED_TILES * TILE_N,
        RopeStyle::Interleaved => 4,
    })
}
