//! Keys and values of one layer, as halves, in the order in which attention reads them.

use std::ops::Range;

use super::TILE;
use crate::backend::AttentionShape;
use crate::buffer::AlignedBytes;
use crate::parallel::Parts;
use crate::simd::{LANES, Simd};
use crate::{Error, Result};

/// Keys and values of one layer: `[kv_head][position / 16]` tiles. A tile is its keys `[width][16]`, the positions
/// side by side, and then its values `[16][width]`; `width` is `head_dim` padded to a multiple of 16 with zeros.
pub struct Kv {
    shape: AttentionShape,
    capacity: usize,
    data: AlignedBytes,
}

/// One tile, read.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    /// `[width]`, a lane a position.
    pub keys: &'a [[u16; LANES]],
    /// `[16][width / 16]`
    pub values: &'a [[u16; LANES]],
}

impl Kv {
    /// Room for `capacity` positions.
    ///
    /// # Errors
    /// [`Error::Shape`] when the heads do not divide, [`Error::OutOfMemory`] when there is no room for that many
    /// positions.
    pub fn new(shape: AttentionShape, capacity: usize) -> Result<Self> {
        let AttentionShape { n_heads, n_kv_heads, head_dim, window } = shape;
        if window == Some(0) {
            let problem = "a window of no positions, expected at least the query's own".to_owned();
            return Err(Error::Shape { what: "attention".into(), problem });
        }
        if n_heads == 0 || n_kv_heads == 0 || head_dim == 0 || n_heads % n_kv_heads != 0 {
            let problem = format!("{n_heads} heads of {head_dim} over {n_kv_heads} kv heads");
            return Err(Error::Shape { what: "attention".into(), problem });
        }
        let positions = capacity.checked_next_multiple_of(TILE);
        let width = head_dim.checked_next_multiple_of(LANES);
        let halves = positions.zip(width).and_then(|(p, w)| p.checked_mul(w)?.checked_mul(2 * n_kv_heads));
        let data = halves.and_then(|halves| AlignedBytes::try_zeroed(halves.checked_mul(size_of::<u16>())?));
        let data = data.ok_or_else(|| Error::OutOfMemory {
            what: "KV cache".into(),
            needed: format!("{capacity} positions of {n_kv_heads} heads of {head_dim}"),
            hint: "use a shorter context".into(),
        })?;
        Ok(Self { shape, capacity, data })
    }

    /// The heads.
    pub fn shape(&self) -> AttentionShape {
        self.shape
    }

    /// Positions there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Query heads that share a kv head.
    pub(super) fn group(&self) -> usize {
        self.shape.n_heads / self.shape.n_kv_heads
    }

    /// `head_dim` with its padding.
    pub(super) fn width(&self) -> usize {
        self.shape.head_dim.next_multiple_of(LANES)
    }

    /// Halves of all tiles of one head.
    fn head_len(&self) -> usize {
        self.capacity.next_multiple_of(TILE) * self.width() * 2
    }

    pub(super) fn tile(&self, kv_head: usize, tile: usize) -> Tile<'_> {
        let len = TILE * self.width();
        let halves: &[u16] = bytemuck::cast_slice(self.data.as_slice());
        let tile = &halves[kv_head * self.head_len() + tile * 2 * len..][..2 * len];
        let (keys, values) = tile.split_at(len);
        Tile { keys: keys.as_chunks().0, values: values.as_chunks().0 }
    }

    /// The heads, to be written: every thread takes other ones.
    pub fn writer(&mut self) -> KvWriter<'_> {
        let (shape, capacity, width, head_len) = (self.shape, self.capacity, self.width(), self.head_len());
        let halves = bytemuck::cast_slice_mut(self.data.as_mut_slice());
        KvWriter { shape, capacity, width, heads: Parts::new(halves, head_len) }
    }
}

/// The heads of a [`Kv`], each handed out once.
pub struct KvWriter<'a> {
    shape: AttentionShape,
    capacity: usize,
    width: usize,
    heads: Parts<'a, u16>,
}

/// One head, to be written.
pub struct KvHead<'a> {
    /// Which.
    pub index: usize,
    head_dim: usize,
    width: usize,
    tiles: &'a mut [u16],
}

impl<'a> KvWriter<'a> {
    /// Checks that rows at `positions` of `[n_kv_heads * head_dim]` keys and values can be written.
    pub fn check(&self, positions: Range<usize>, keys: &[f32], values: &[f32]) -> Result<()> {
        let expected = positions.len().checked_mul(self.shape.n_kv_heads * self.shape.head_dim);
        if positions.end <= self.capacity && expected == Some(keys.len()) && keys.len() == values.len() {
            return Ok(());
        }
        let problem = format!(
            "{} keys and {} values for positions {positions:?} of {}",
            keys.len(),
            values.len(),
            self.capacity
        );
        Err(Error::Shape { what: "kv".into(), problem })
    }

    /// A head that nobody has taken.
    pub fn take(&self) -> Option<KvHead<'a>> {
        let (index, tiles) = self.heads.take()?;
        Some(KvHead { index, head_dim: self.shape.head_dim, width: self.width, tiles })
    }
}

impl KvHead<'_> {
    /// Writes the key and the value, `[head_dim]` each, of position `pos`.
    #[inline(always)]
    pub fn write<S: Simd>(&mut self, s: S, pos: usize, key: &[f32], value: &[f32]) {
        assert!(key.len() == self.head_dim && value.len() == self.head_dim, "a head of another size");
        let len = TILE * self.width;
        let (tile, lane) = (pos / TILE, pos % TILE);
        let (keys, values) = self.tiles[tile * 2 * len..][..2 * len].split_at_mut(len);
        let values = &mut values[lane * self.width..][..self.width];

        let columns = keys.as_chunks_mut::<LANES>().0.chunks_mut(LANES);
        for (x, column) in key.chunks(LANES).zip(columns) {
            for (k, x) in column.iter_mut().zip(narrow(s, x)) {
                k[lane] = x;
            }
        }
        for (x, v) in value.chunks(LANES).zip(values.as_chunks_mut::<LANES>().0) {
            *v = narrow(s, x);
        }
    }
}

/// Up to 16 floats as halves, and zeros.
#[inline(always)]
fn narrow<S: Simd>(s: S, x: &[f32]) -> [u16; LANES] {
    let mut halves = [0; LANES];
    if let Ok(x) = x.try_into() {
        s.store_f16(s.load(x), &mut halves);
    } else {
        let mut padded = [0.0; LANES];
        padded[..x.len()].copy_from_slice(x);
        s.store_f16(s.load(&padded), &mut halves);
    }
    halves
}
