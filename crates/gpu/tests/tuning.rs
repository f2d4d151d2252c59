//! A search for the quickest variants on the GPU of the machine: that it ends, whatever it finds.

#![allow(clippy::unwrap_used)]

mod support;

use lowbit_core::Result;
use lowbit_engine::{Probe, ProbeShape};
use lowbit_gpu::{BufferId, Executor, Features, GpuBackend, Native, Products, Tuning};
use lowbit_testing::TinyModel;
use std::task::Poll;
use std::time::Duration;
use support::{artifact, native};

/// A GPU that works in the background: results are not there when they are first asked for.
struct Background {
    native: Native,
    is_ready: bool,
}

impl Executor for Background {
    support::forward!(native: buffer free write run);
    fn ask(&mut self, buffer: BufferId, bytes: u64) -> Result<()> {
        self.is_ready = false;
        self.native.ask(buffer, bytes)
    }
    fn take(&mut self) -> Poll<Result<Vec<u8>>> {
        if std::mem::replace(&mut self.is_ready, true) { self.native.take() } else { Poll::Pending }
    }
}

#[test]
fn a_search_ends_with_variants_that_are_allowed() {
    let shape = ProbeShape::new(artifact(&TinyModel::default()).header()).unwrap();
    for dot4 in [false, true] {
        let background = Background { native: native(), is_ready: false };
        let features = Features { dot4, ..background.native.features() };
        let mut device = GpuBackend::new(background);
        let mut probe = Probe::new(&shape, &device).unwrap();
        let mut tuning = Tuning::new(features, shape.last_position(), Duration::MAX);
        let mut pending = 0;
        loop {
            let result = tuning.poll(&mut device, |device, trial| probe.poll(device, trial.rows, trial.pos));
            match result {
                Poll::Ready(result) => break result.unwrap(),
                Poll::Pending => pending += 1,
            }
        }
        assert!(tuning.is_complete() && pending > 5);
        let kernels = tuning.kernels();
        assert_eq!(device.kernels(), kernels);
        assert!(dot4 || kernels.products == Products::Float);
        assert!([8, 16, 32, 64, 128, 256].contains(&kernels.gemm_rows), "{kernels}");
        assert!([64, 128, 256, 512].contains(&kernels.split), "{kernels}");
        assert!(tuning.token(shape.share()).is_some_and(|token| token > Duration::ZERO));
    }
}
