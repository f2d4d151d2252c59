//! Keys and values of the tokens seen so far. The engine owns them; their room is fixed when they are made.

use crate::Result;
use lowbit_core::backend::{AttentionShape, Backend};

/// The keys and values of every layer on a device, addressed by position.
pub struct KvCache<B: Backend> {
    layers: Vec<B::Kv>,
    capacity: usize,
}

impl<B: Backend> KvCache<B> {
    /// Room for `capacity` positions of `n_layers` layers.
    pub fn new(backend: &B, n_layers: usize, shape: AttentionShape, capacity: usize) -> Result<Self> {
        let layers =
            (0..n_layers).map(|_| backend.kv(shape, capacity)).collect::<lowbit_core::Result<_>>()?;
        Ok(Self { layers, capacity })
    }

    /// Positions there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The layers in order.
    pub fn layers_mut(&mut self) -> impl Iterator<Item = &mut B::Kv> {
        self.layers.iter_mut()
    }
}

/// Bytes of one position: f16 keys and values of all layers.
pub fn bytes_per_position(n_layers: usize, shape: AttentionShape) -> u64 {
    let width = shape.n_kv_heads as u64 * shape.head_dim as u64;
    n_layers as u64 * width * 2 * 2
}
