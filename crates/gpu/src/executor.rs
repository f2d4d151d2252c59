//! What runs plans.

use std::task::Poll;

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
    /// [`lowbit_core::Error::OutOfMemory`] when the device has no room for it. A device that works in the background
    /// may say so only at the next [`Self::take`].
    fn buffer(&mut self, what: &str, bytes: u64) -> Result<BufferId>;

    /// Gives a buffer back; no plan that names it is run any more.
    fn free(&mut self, buffer: BufferId);

    /// Replaces bytes of a buffer from `offset` on. Both the offset and the number of bytes are multiples of 4.
    fn write(&mut self, buffer: BufferId, offset: u64, bytes: &[u8]);

    /// Runs all dispatches; `pos` is the position of the first row.
    fn run(&mut self, plan: &Plan, pos: u32) -> Result<()>;

    /// Asks for the first `bytes` bytes of a buffer, a multiple of 4; without any, for the end of what has been asked
    /// for so far. It takes the place of what was asked for before.
    fn ask(&mut self, buffer: BufferId, bytes: u64) -> Result<()>;

    /// What was asked for last; pending, in the background, until it is there.
    fn take(&mut self) -> Poll<Result<Vec<u8>>>;
}
