//! What runs plans.

use crate::plan::{BufferId, Plan};
use lowbit_core::Result;

/// The largest binding of a storage buffer that every WebGPU device offers, in bytes.
pub const MAX_BINDING: u64 = 128 << 20;

/// A GPU. All it is told happens in the order in which it is told.
pub trait Executor {
    /// Bytes that a buffer may have at most.
    fn max_binding(&self) -> u64 {
        MAX_BINDING
    }

    /// A buffer of `bytes` zeros, at most [`Self::max_binding`]; `what` it is for goes into messages.
    ///
    /// # Errors
    /// [`lowbit_core::Error::OutOfMemory`] when the device has no room for it.
    fn buffer(&mut self, what: &str, bytes: u64) -> Result<BufferId>;

    /// Gives a buffer back; no plan that names it is run any more.
    fn free(&mut self, buffer: BufferId);

    /// Replaces the first bytes of a buffer. The number of bytes is a multiple of 4.
    fn write(&mut self, buffer: BufferId, bytes: &[u8]);

    /// Runs all dispatches; `pos` is the position of the first row.
    fn run(&mut self, plan: &Plan, pos: u32) -> Result<()>;

    /// The first `bytes` bytes of a buffer, once all that was asked for before is done.
    fn read(&mut self, buffer: BufferId, bytes: u64) -> Result<Vec<u8>>;
}
