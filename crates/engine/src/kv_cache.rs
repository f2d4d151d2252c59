//! Keys and values of the tokens seen so far. The engine owns them; their room is fixed when they are made.

use crate::Result;
use lowbit_core::backend::{AttentionShape, Backend};

/// The keys and values of every layer on a device, addressed by position.
pub struct KvCache<B: Backend> {
    layers: Vec<B::Kv>,
    capacity: usize,
}

impl<B: Backend> KvCache<B> {
    /// Room for `capacity` positions of layers of these shapes.
    pub fn new(backend: &B, layers: impl Iterator<Item = AttentionShape>, capacity: usize) -> Result<Self> {
        let layers = layers.map(|shape| backend.kv(shape, capacity)).collect::<lowbit_core::Result<_>>()?;
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
pub fn bytes_per_position(layers: impl Iterator<Item = AttentionShape>) -> u64 {
    layers.map(|shape| shape.n_kv_heads as u64 * shape.head_dim as u64 * 2 * 2).sum()
}
