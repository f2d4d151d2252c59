//! Plans without a GPU.

use std::task::Poll;

use crate::backend::shape;
use crate::executor::{Executor, MAX_BINDING};
use crate::plan::{BufferId, Plan};
use lowbit_core::Result;

/// Workgroups along one axis, and storage buffers of a shader, that every WebGPU device takes.
const MAX_WORKGROUPS: u32 = 65535;
const MAX_BUFFERS: usize = 8;

/// An executor that runs nothing: all results are zeros. It accepts what the default limits of WebGPU accept, so that
/// [`crate::GpuBackend::last_plan`] tells what a model asks of any GPU.
#[derive(Debug, Default)]
pub struct Dry {
    buffers: u32,
    /// Bytes of what was asked for last.
    asked: usize,
}

impl Executor for Dry {
    fn buffer(&mut self, what: &str, bytes: u64) -> Result<BufferId> {
        if bytes > MAX_BINDING {
            return shape("GPU", format!("{bytes} bytes of {what}, at most {MAX_BINDING} fit one buffer"));
        }
        self.buffers += 1;
        Ok(BufferId(self.buffers))
    }

    fn free(&mut self, _: BufferId) {}

    fn write(&mut self, _: BufferId, _: u64, _: &[u8]) {}

    fn run(&mut self, plan: &Plan, _: u32) -> Result<()> {
        let fits = |n: &u32| (1..=MAX_WORKGROUPS).contains(n);
        let mut runs = plan.dispatches.iter();
        match runs.find(|run| !run.workgroups.iter().all(fits) || run.buffers.len() > MAX_BUFFERS) {
            Some(run) => shape(
                "GPU",
                format!(
                    "{} takes {:?} workgroups and {} buffers, expected 1 to {MAX_WORKGROUPS} and at most {MAX_BUFFERS}",
                    run.shader,
                    run.workgroups,
                    run.buffers.len()
                ),
            ),
            None => Ok(()),
        }
    }

    fn ask(&mut self, _: BufferId, bytes: u64) -> Result<()> {
        self.asked = bytes as usize;
        Ok(())
    }

    fn take(&mut self) -> Poll<Result<Vec<u8>>> {
        Poll::Ready(Ok(vec![0; std::mem::take(&mut self.asked)]))
    }
}
