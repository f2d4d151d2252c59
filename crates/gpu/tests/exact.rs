//! The conformance tensor (accuracy contract, level C): of formats with one scale a row and activations in strict mode, products
//! on the GPU of this machine are the CPU's, bit for bit.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use lowbit_core::PackedMatrix;
use lowbit_core::activation::Activations;
use lowbit_core::backend::{Backend, CpuBackend, Norm, at_once};
use lowbit_core::buffer::Bytes;
use lowbit_core::format::{FORMATS, Format};
use lowbit_core::kernels::selftest::sample;
use lowbit_core::simd::Isa;
use lowbit_gpu::{Kernels, Products};
use support::{Gpu, KERNELS, floats, gpu, tensor, values};

fn formats() -> impl Iterator<Item = Format> {
    FORMATS.iter().filter(|spec| spec.scale.is_channel()).map(|spec| spec.format)
}

fn dot4() -> impl Iterator<Item = Kernels> {
    KERNELS.into_iter().filter(|kernels| kernels.products == Products::Dot4)
}

/// All codes and steps at an extreme.
fn extreme(format: Format, n: usize, k: usize, code: u8) -> PackedMatrix {
    let w = sample(format, n, k, 3);
    let (codes, steps) = (vec![code; w.w.len()], vec![15; w.s.len()]);
    PackedMatrix { w: Bytes::copy_of(&codes), s: Bytes::copy_of(&steps), ..w }
}

/// Rows of all kinds: of one magnitude, with outliers, zeros, tiny and huge ones, and all codes at an extreme.
fn rows(m: usize, k: usize) -> Vec<f32> {
    let mut x = values(m * k, 29);
    for (r, row) in x.chunks_mut(k).enumerate() {
        match r % 7 {
            1 => row.iter_mut().for_each(|x| *x = x.powi(9)),
            2 => row.fill(0.0),
            // Codes of 127, and with the largest just above, of 64.
            3 => row.fill(127.0),
            4 => row.fill(-127.000_01),
            5 => row.iter_mut().for_each(|x| *x *= 1e-30),
            6 => row.iter_mut().for_each(|x| *x *= 1e30),
            _ => {}
        }
    }
    x
}

/// `x * w` on the CPU, strictly.
fn on_cpu(x: &[f32], w: &PackedMatrix) -> Vec<f32> {
    let mut cpu = CpuBackend::new(Isa::best(), 1, Activations::A8).unwrap();
    cpu.set_strict(true);
    product(&mut cpu, x, w)
}

fn product<B: Backend>(device: &mut B, x: &[f32], w: &PackedMatrix) -> Vec<f32> {
    let m = x.len() / w.k;
    let rows = |device: &mut B, values: &[f32], width| {
        let table = device.matrix(floats(values, width)).unwrap();
        let mut rows = device.tensor();
        device.embed(&table, &(0..m as u32).collect::<Vec<_>>(), 1.0, &mut rows).unwrap();
        rows
    };
    let matrix = device.matrix(w.clone()).unwrap();
    let (y, mut out) = (rows(device, x, w.k), rows(device, &vec![0.0; m * w.n], w.n));
    device.linear_add(&y, &matrix, &mut out).unwrap();
    device.read(&out).unwrap()
}

fn assert_same(gpu: &mut Gpu, x: &[f32], w: &PackedMatrix, what: &str) {
    let (expected, found) = (on_cpu(x, w), product(gpu, x, w));
    assert_eq!(found.len(), expected.len());
    let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
    if let Some(i) = found.iter().zip(&expected).position(differs) {
        let (n, k, kernels) = (w.n, w.k, gpu.kernels());
        panic!(
            "{kernels}: {:?} {n} x {k} {what}, row {}, column {}: {:e}, on the CPU {:e}",
            w.format,
            i / n,
            i % n,
            found[i],
            expected[i]
        );
    }
}

#[test]
fn products_of_integers_are_the_bits_of_the_cpu() {
    for kernels in dot4() {
        let mut gpu = gpu(kernels);
        gpu.set_strict(true);
        for format in formats() {
            // Few rows, and as many as the tiled product takes.
            for (n, k, m) in [
                (1, 32, 1),
                (17, 40, 2),
                (48, 576, 1),
                (83, 1536, 7),
                (65, 96, 16),
                (83, 1000, 67),
                (130, 32, 33),
            ] {
                assert_same(&mut gpu, &rows(m, k), &sample(format, n, k, (n * k) as u64), "");
            }
            let name = gpu.last_plan().to_string();
            assert!(name.contains("quantize rows strictly"), "{name}");
        }
    }
}

/// Sums of more than 24 bits: they round, and once.
#[test]
fn extreme_codes_are_the_bits_of_the_cpu() {
    for kernels in dot4() {
        let mut gpu = gpu(kernels);
        gpu.set_strict(true);
        for format in formats() {
            for code in [0x00, 0xff, 0x80, 0x7f] {
                for m in [5, 21] {
                    let w = extreme(format, 33, 1184, code);
                    assert_same(&mut gpu, &rows(m, 1184), &w, &format!("of {code:#x}"));
                }
            }
        }
    }
}

/// Floats of the right size are no proof: the bits depend on the mode, and the self-test that compares them can fail.
#[test]
fn other_scales_give_other_bits() {
    let mut gpu = gpu(dot4().next().unwrap());
    let w = sample(Format::P4, 83, 576, 5);
    let x = rows(1, 576);
    assert_ne!(on_cpu(&x, &w), product(&mut gpu, &x, &w), "the GPU is not strict");
}

/// Normalised rows are quantised by a dispatch of their own.
#[test]
fn logits_of_normalised_rows_are_near_those_of_the_cpu() {
    let width = 576;
    let (w, x) = (sample(Format::P4, 83, width, 7), values(5 * width, 3));
    let mut cpu = CpuBackend::new(Isa::best(), 1, Activations::A8).unwrap();
    let table = floats(&x, width);
    let (mut rows, mut expected) = (cpu.tensor(), Vec::new());
    cpu.embed(&table, &[0, 1, 2, 3, 4], 1.0, &mut rows).unwrap();
    let weight = values(width, 19);
    cpu.logits(&rows, 0..5, Norm { weight: &weight, eps: 1e-5 }, &w).unwrap();
    at_once(cpu.take(&mut expected)).unwrap();
    for kernels in dot4() {
        let mut gpu = gpu(kernels);
        let rows = tensor(&mut gpu, &x, width);
        let (matrix, weight) = (gpu.matrix(w.clone()).unwrap(), gpu.vector(weight.clone()).unwrap());
        let mut found = Vec::new();
        gpu.logits(&rows, 0..5, Norm { weight: &weight, eps: 1e-5 }, &matrix).unwrap();
        at_once(gpu.take(&mut found)).unwrap();
        let largest = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
        for (found, expected) in found.iter().zip(&expected) {
            // A code may be another one, where the norm is off in its last bit.
            assert!((found - expected).abs() <= 2e-2 * largest, "{kernels}: {found}, on the CPU {expected}");
        }
    }
}
