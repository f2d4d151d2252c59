//! The self-test passes on a device that computes rightly, and names the op of one that does not.

#![allow(clippy::unwrap_used)]

mod support;

use lowbit_core::Result;
use lowbit_core::activation::Activations;
use lowbit_core::backend::at_once;
use lowbit_core::container::Header;
use lowbit_engine::convert::{Options, Scheme};
use lowbit_engine::{LoadOptions, SelfTest, Upload};
use lowbit_gpu::{Executor, Extensions, GpuBackend, Kernels, Native, Plan, Products};
use lowbit_testing::TinyModel;
use support::{EXTENDED, artifact, artifact_with, gpu, native};

fn header() -> Header {
    artifact(&TinyModel::default()).header().clone()
}

/// What the test of the first layer says of a device.
fn layer(executor: impl Executor) -> lowbit_engine::Result<()> {
    let artifact = artifact(&TinyModel::default());
    let mut upload = Upload::new(artifact.header().clone(), GpuBackend::new(executor));
    upload.push(artifact.data().as_slice()).unwrap();
    let mut test = upload.layer_test(Activations::A16);
    let mut model = upload.finish(LoadOptions::default()).unwrap();
    let mut session = model.session().unwrap();
    at_once(test.poll(&mut model, &mut session))
}

/// A GPU that does not run one kind of shader.
struct Lazy {
    native: Native,
    leaves_out: String,
}

impl Executor for Lazy {
    support::forward!(native: buffer free write ask take);
    fn run(&mut self, plan: &Plan, pos: u32) -> Result<()> {
        let mut rest = plan.clone();
        rest.dispatches.retain(|dispatch| !dispatch.shader.to_string().starts_with(&self.leaves_out));
        self.native.run(&rest, pos)
    }
}

#[test]
fn a_device_that_computes_rightly_passes() {
    for extensions in [Extensions::NONE, EXTENDED] {
        let kernels = Kernels { extensions, ..Kernels::default() };
        let mut test = SelfTest::new(&header(), Activations::A16).unwrap();
        at_once(test.poll(&mut gpu(kernels))).unwrap();
    }
}

const DOT4: Kernels =
    Kernels { products: Products::Dot4, gemm_rows: 16, split: 128, extensions: Extensions::NONE };

#[test]
fn products_of_integers_are_compared_bit_for_bit() {
    for scheme in [Scheme::Channel, Scheme::Progressive] {
        let artifact = artifact_with(&TinyModel::default(), &Options { scheme, ..Options::default() });
        for (kernels, activations) in [(DOT4, Activations::A8), (Kernels::default(), Activations::A16)] {
            let mut test = SelfTest::new(artifact.header(), activations).unwrap();
            at_once(test.poll(&mut gpu(kernels))).unwrap();
        }
        // Without it, the codes of what was computed before.
        let lazy = Lazy { native: native(), leaves_out: "quantize rows strictly".to_owned() };
        let mut test = SelfTest::new(artifact.header(), Activations::A8).unwrap();
        let error = at_once(test.poll(&mut GpuBackend::with(lazy, DOT4))).unwrap_err().to_string();
        assert!(error.contains("Exact") && error.contains("to the bit"), "{error}");
    }
}

#[test]
fn a_model_whose_ops_are_missing_is_an_error_of_the_device() {
    let model = TinyModel { architecture: "gemma3", ..TinyModel::default() };
    let mut test = SelfTest::new(artifact(&model).header(), Activations::A16).unwrap();
    let error = at_once(test.poll(&mut GpuBackend::new(native()))).unwrap_err();
    assert!(error.code() == "device" && error.to_string().contains("is not there yet"), "{error}");
}

#[test]
fn a_device_that_leaves_out_any_shader_fails() {
    let header = header();
    for (shader, op) in [
        ("linear_add", "Linear"),
        ("gated", "Gated"),
        ("qkv", "Attention"),
        ("rope_append", "Attention"),
        ("attention", "Attention"),
        ("rms_norm", ""),
        ("top_k", "TopK"),
        ("top_k 128 of logits", "TopK(128)"),
        ("top_k 64 of candidates", "TopK(40)"),
        ("top_k 1 of candidates", "TopK(1)"),
    ] {
        let lazy = Lazy { native: native(), leaves_out: shader.to_owned() };
        let mut device = GpuBackend::new(lazy);
        let mut test = SelfTest::new(&header, Activations::A16).unwrap();
        let error = at_once(test.poll(&mut device)).unwrap_err();
        assert_eq!(error.code(), "device");
        let message = error.to_string();
        assert!(message.contains(op) && message.contains("computes wrongly"), "without {shader}: {message}");
    }
}

#[test]
fn the_first_layer_of_a_real_model_is_compared_too() {
    layer(native()).unwrap();
    for shader in ["linear_add", "gated", "attention"] {
        let error = layer(Lazy { native: native(), leaves_out: shader.to_owned() }).unwrap_err();
        assert!(error.to_string().contains("first layer"), "without {shader}: {error}");
    }
}
