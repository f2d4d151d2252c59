//! What the tests share.

#![allow(clippy::unwrap_used, clippy::panic, dead_code)]

use lowbit_core::activation::{Activations, PanelsRef, QuantizedRows, Scaling};
use lowbit_core::backend::Backend;
use lowbit_core::buffer::Bytes;
use lowbit_core::container::Artifact;
use lowbit_core::format::{Codes, Format};
use lowbit_core::simd::Scalar;
use lowbit_core::{PackedMatrix, Result};
use lowbit_engine::convert;
use lowbit_gpu::{
    BufferId, Executor, Extensions, GpuBackend, Kernels, MAX_BINDING, Matrix, Native, Products, Tensor,
};
use lowbit_testing::TinyModel;
use std::cell::Cell;
use std::rc::Rc;

pub type Gpu = GpuBackend<Native>;

pub fn gpu(kernels: Kernels) -> Gpu {
    let native = native();
    let kernels = offered(kernels, &native);
    GpuBackend::with(native, kernels)
}

/// The variants with no more extensions than the device has.
fn offered(kernels: Kernels, native: &Native) -> Kernels {
    Kernels { extensions: kernels.extensions.only(native.features().extensions), ..kernels }
}

pub fn native() -> Native {
    Native::new().expect("a GPU, or Mesa's lavapipe, which `cargo xtask setup` installs")
}

/// A small model, packed.
pub fn artifact(model: &TinyModel) -> Artifact {
    artifact_with(model, &convert::Options::default())
}

/// A small model, packed with these options.
pub fn artifact_with(model: &TinyModel, options: &convert::Options) -> Artifact {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    std::fs::write(&path, model.gguf()).unwrap();
    convert::in_memory(&path, options, &mut |_| ()).unwrap()
}

/// Methods of an [`Executor`] that its field `$inner` serves.
macro_rules! forward {
    ($inner:ident: $($method:ident)*) => {
        $($crate::support::forward!(@$method $inner);)*
    };
    (@buffer $inner:ident) => {
        fn buffer(&mut self, what: &str, bytes: u64) -> lowbit_core::Result<lowbit_gpu::BufferId> {
            self.$inner.buffer(what, bytes)
        }
    };
    (@free $inner:ident) => {
        fn free(&mut self, buffer: lowbit_gpu::BufferId) {
            self.$inner.free(buffer);
        }
    };
    (@write $inner:ident) => {
        fn write(&mut self, buffer: lowbit_gpu::BufferId, offset: u64, bytes: &[u8]) {
            self.$inner.write(buffer, offset, bytes);
        }
    };
    (@run $inner:ident) => {
        fn run(&mut self, plan: &lowbit_gpu::Plan, pos: u32) -> lowbit_core::Result<()> {
            self.$inner.run(plan, pos)
        }
    };
    (@ask $inner:ident) => {
        fn ask(&mut self, buffer: lowbit_gpu::BufferId, bytes: u64) -> lowbit_core::Result<()> {
            self.$inner.ask(buffer, bytes)
        }
    };
    (@take $inner:ident) => {
        fn take(&mut self) -> std::task::Poll<lowbit_core::Result<Vec<u8>>> {
            self.$inner.take()
        }
    };
}
pub(crate) use forward;

/// A GPU whose buffers are as large as the test says.
pub struct Narrow {
    native: Native,
    max_binding: Rc<Cell<u64>>,
}

/// Such a GPU, and what to set its buffers' size with.
pub fn narrow(kernels: Kernels) -> (GpuBackend<Narrow>, Rc<Cell<u64>>) {
    let max_binding = Rc::new(Cell::new(MAX_BINDING));
    let native = native();
    let kernels = offered(kernels, &native);
    let narrow = Narrow { native, max_binding: max_binding.clone() };
    (GpuBackend::with(narrow, kernels), max_binding)
}

/// The matrix on the GPU; where `cut`, in about three parts.
pub fn upload(gpu: &GpuBackend<Narrow>, max_binding: &Cell<u64>, w: &PackedMatrix, cut: bool) -> Matrix {
    if cut {
        max_binding.set((w.byte_len() / w.tiles() * w.tiles().div_ceil(3)) as u64);
    }
    let matrix = gpu.matrix(w.clone()).unwrap();
    max_binding.set(MAX_BINDING);
    matrix
}

impl Executor for Narrow {
    forward!(native: free write run ask take);
    fn max_binding(&self) -> u64 {
        self.max_binding.get()
    }
    fn buffer(&mut self, what: &str, bytes: u64) -> Result<BufferId> {
        assert!(bytes <= self.max_binding(), "{bytes} bytes of {what}");
        self.native.buffer(what, bytes)
    }
}

/// Deterministic values in -1..1.
pub fn values(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// A matrix of these rows in single floats, which are exact; any values.
pub fn floats(rows: &[f32], width: usize) -> PackedMatrix {
    let n = rows.len() / width;
    let blocks = width.div_ceil(32);
    let mut plane = vec![0f32; n.div_ceil(16) * blocks * 32 * 16];
    for (row, values) in rows.chunks(width).enumerate() {
        for (k, value) in values.iter().enumerate() {
            plane[(row / 16 * blocks * 32 + k) * 16 + row % 16] = *value;
        }
    }
    let w = Bytes::copy_of(&plane.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
    let none = || Bytes::copy_of(&[]);
    PackedMatrix::new("rows", Format::F32, n, width, [w, none(), none(), none(), none(), none()]).unwrap()
}

/// A tensor of these rows: rows of an embedding table.
pub fn tensor(gpu: &mut GpuBackend<impl Executor>, rows: &[f32], width: usize) -> Tensor {
    let table = gpu.matrix(floats(rows, width)).unwrap();
    let mut tensor = gpu.tensor();
    gpu.embed(&table, &(0..table.n as u32).collect::<Vec<_>>(), 1.0, &mut tensor).unwrap();
    tensor
}

/// Exact arithmetic, and what an op may be off from it.
pub struct Exact {
    pub value: f64,
    pub bound: f64,
}

/// The weights of row `n`: what depends on the codes, and the mins.
pub fn weights(w: &PackedMatrix, n: usize) -> (Vec<f64>, Vec<f64>) {
    if w.format.spec().scale.is_channel() {
        return (channel_weights(w, n), vec![0.0; w.k]);
    }
    let zeros = |plane: &Bytes| Bytes::copy_of(&vec![0; plane.len()]);
    let row = |w: &PackedMatrix| -> Vec<f64> {
        let mut row = vec![0.0; w.k];
        w.dequantize_row(n, &mut row);
        row.into_iter().map(f64::from).collect()
    };
    let scaled = row(&PackedMatrix { m: zeros(&w.m), ..w.clone() });
    let mins =
        if w.m.is_empty() { vec![0.0; w.k] } else { row(&PackedMatrix { s: zeros(&w.s), ..w.clone() }) };
    (scaled, mins)
}

/// The weights of row `n`, which has one scale: its integers times that, not rounded.
fn channel_weights(w: &PackedMatrix, n: usize) -> Vec<f64> {
    let ones = Bytes::copy_of(&1f32.to_le_bytes().repeat(w.c.len() / 4));
    let mut integers = vec![0.0; w.k];
    PackedMatrix { c: ones, ..w.clone() }.dequantize_row(n, &mut integers);
    let scale = f32::from_le_bytes([0, 1, 2, 3].map(|i| w.c[4 * n + i]));
    integers.into_iter().map(|integer| f64::from(integer) * f64::from(scale)).collect()
}

/// The product of `x` and row `n` by these kernels. Integers are exact, so that what codes are multiplied with is off by
/// `(groups + 4)` roundings of the sum of the magnitudes of the groups' terms; for floats, where sums within a group round
/// too, of the sum of the magnitudes of all terms and a group more.
pub fn product(kernels: Kernels, x: &[f32], w: &PackedMatrix, n: usize) -> Exact {
    let (scaled, mins) = weights(w, n);
    let integers = kernels.products == Products::Dot4 && w.format.spec().codes != Codes::Float;
    let of_row = if w.format.spec().scale.is_channel() { Scaling::Row } else { Scaling::Block };
    let x = if integers { dequantized_with(x, of_row) } else { x.iter().map(|x| f64::from(*x)).collect() };
    let group = w.format.spec().group.min(32);
    let roundings = w.k.div_ceil(group) + 4 + if integers { 0 } else { group };
    let (mut value, mut terms) = (0.0, 0.0);
    for ((x, scaled), mins) in x.chunks(group).zip(scaled.chunks(group)).zip(mins.chunks(group)) {
        for weights in [scaled, mins] {
            let products = || x.iter().zip(weights).map(|(x, w)| x * w);
            value += products().sum::<f64>();
            terms +=
                if integers { products().sum::<f64>().abs() } else { products().map(f64::abs).sum::<f64>() };
        }
    }
    Exact { value, bound: roundings as f64 * 2f64.powi(-24) * terms }
}

/// What the codes of the CPU's a8 stand for.
pub fn dequantized(x: &[f32]) -> Vec<f64> {
    dequantized_with(x, Scaling::Block)
}

fn dequantized_with(x: &[f32], scaling: Scaling) -> Vec<f64> {
    let mut rows = QuantizedRows::with(Activations::A8, scaling);
    rows.quantize(Scalar, x, x.len()).unwrap();
    let PanelsRef::A8(panels) = rows.panels() else { panic!("a8 was asked for") };
    let panel = panels.iter().next().unwrap();
    let blocks = panel.codes.iter().zip(panel.scales);
    let values = blocks.flat_map(|(codes, scale)| codes.0[0].map(|q| f64::from(q) * f64::from(*scale)));
    values.take(x.len()).collect()
}

const FLOAT: Kernels =
    Kernels { products: Products::Float, gemm_rows: 16, split: 128, extensions: Extensions::NONE };
const DOT4: Kernels = Kernels { products: Products::Dot4, ..FLOAT };
/// All extensions, of which a device uses what it offers.
pub const EXTENDED: Extensions = Extensions { subgroups: true, f16: true };

/// The variants that tests run with.
pub const KERNELS: [Kernels; 4] =
    [FLOAT, DOT4, Kernels { extensions: EXTENDED, ..FLOAT }, Kernels { extensions: EXTENDED, ..DOT4 }];
