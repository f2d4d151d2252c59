//! How attention is cut into workgroups.

use crate::backend::{Inner, shape};
use crate::executor::Executor;
use crate::kernels::{Extensions, Forms, Products};
use crate::memory::{Kv, Rows, Tensor};
use crate::plan::Cost;
use crate::shader::Shader;
use lowbit_core::Result;
use lowbit_core::backend::AttentionShape;

/// The longest head that the attention shader takes.
pub(crate) const MAX_HEAD_DIM: usize = 512;
/// Steps of at most so many rows cut the cache into splits, for lack of other work to share out.
const FEW_ROWS: usize = 8;
/// How many splits there are at most.
const MAX_SPLITS: usize = 32;
/// Positions that a workgroup takes at a time.
pub(crate) const CHUNK: usize = 64;
/// Columns of a workgroup of the merge.
const MERGED_COLUMNS: usize = 256;

/// What a workgroup of attention takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionTile {
    /// Query heads of one key head.
    pub heads: u32,
    /// Rows.
    pub rows: u32,
    /// Pairs of coordinates of a lane: 1, 2 or 4 for heads of up to 128, 256 or 512.
    pub pairs: u32,
    /// Whether positions are split, and the results of splits merged by another dispatch.
    pub partial: bool,
    /// How the cache is read and sums are made.
    pub extensions: Extensions,
}

impl AttentionTile {
    /// Queries that the memory of a workgroup has room for.
    fn most_queries(pairs: u32) -> u32 {
        16 / pairs
    }

    fn new(heads: AttentionShape, rows: usize, partial: bool, extensions: Extensions) -> Self {
        let pairs = (heads.head_dim.div_ceil(2 * CHUNK) as u32).next_power_of_two();
        let most = Self::most_queries(pairs);
        let group = (heads.n_heads / heads.n_kv_heads) as u32;
        let heads = (1..=most.min(group)).rev().find(|heads| group.is_multiple_of(*heads)).unwrap_or(1);
        Self { heads, rows: if rows == 1 { 1 } else { most / heads }, pairs, partial, extensions }
    }

    /// Tiles of every length of heads; with extensions, some of them.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let of_pairs = |pairs| {
            let most = Self::most_queries(pairs);
            [(1, 1), (1, most), (3, 1), (3, most / 3), (most, 1)]
                .into_iter()
                .filter(move |(heads, rows)| (1..=most).contains(&(heads * rows)))
                .flat_map(move |(heads, rows)| {
                    let extensions = Extensions::combinations();
                    let some = extensions.filter(move |e| *e == Extensions::NONE || (heads, rows) == (3, 1));
                    some.map(move |extensions| Self { heads, rows, pairs, partial: false, extensions })
                })
        };
        let whole = [1, 2, 4].into_iter().flat_map(of_pairs);
        whole.flat_map(|tile| [false, true].map(|partial| Self { partial, ..tile }))
    }
}

impl<E: Executor> Inner<E> {
    /// Attention of `queries` at `pos` and after it.
    pub(crate) fn attention(
        &mut self,
        queries: &Tensor,
        kv: &Kv,
        pos: usize,
        out: &mut Tensor,
    ) -> Result<()> {
        let AttentionShape { n_heads, n_kv_heads, head_dim, .. } = kv.shape;
        if queries.width != n_heads * head_dim || pos != self.pos {
            return shape(
                "attention",
                format!("queries of {} at {pos} for heads {:?}", queries.width, kv.shape),
            );
        }
        let rows = queries.rows;
        self.coded = None;
        let to = out.resize(&mut self.device, rows, queries.width)?;
        let split = if rows <= FEW_ROWS {
            kv.capacity.div_ceil(MAX_SPLITS).next_multiple_of(CHUNK).max(self.kernels.split)
        } else {
            kv.capacity
        };
        let splits = kv.capacity.div_ceil(split);
        let tile = AttentionTile::new(kv.shape, rows, splits > 1, self.kernels.extensions);
        let part = (n_heads * (head_dim + 2) * 4) as u64;
        let result = if tile.partial {
            self.parts.reserve(&mut self.device, (rows * splits) as u64 * part)?
        } else {
            to
        };
        let sizes = [n_heads, n_kv_heads, head_dim, kv.capacity, rows, queries.stride(), out.stride()];
        let mut params = sizes.map(|n| n as u32).to_vec();
        params.extend([(1.0 / (head_dim as f32).sqrt()).to_bits(), split as u32, splits as u32, 0, 0]);
        let used: u64 = (1..=rows).map(|row| (pos + row).div_ceil(split) as u64 * part).sum();
        let results = if tile.partial { used } else { out.bytes() };
        let cached = ((pos + rows) * n_kv_heads * head_dim * 4) as u64;
        let cost = Cost { others: queries.bytes() + cached + results, ..Cost::default() };
        let buffers = [queries.buffer()?, result, kv.keys, kv.values];
        let workgroups = [n_heads / tile.heads as usize * splits, rows.div_ceil(tile.rows as usize)];
        self.plan.push(Shader::Attention(tile), &params, &buffers, workgroups, cost);
        if tile.partial {
            let sizes = [n_heads, head_dim, out.stride(), split, splits, 0, 0, 0].map(|n| n as u32);
            let forms = Forms { floats: true, codes: self.kernels.products == Products::Dot4 };
            let mut merged = Rows { rows, width: out.width, floats: Some(to), codes: None };
            if forms.codes {
                let bytes = Rows::coded_bytes(rows, out.width);
                merged.codes = Some(self.codes.reserve(&mut self.device, bytes)?);
                self.coded = merged.floats;
            }
            let cost = Cost { others: used + merged.bytes(), ..Cost::default() };
            let workgroups = [out.stride().div_ceil(MERGED_COLUMNS), rows];
            let buffers: Vec<_> = [result].into_iter().chain(merged.buffers()).collect();
            self.plan.push(Shader::AttentionMerge(forms), &sizes, &buffers, workgroups, cost);
        }
        Ok(())
    }
}
