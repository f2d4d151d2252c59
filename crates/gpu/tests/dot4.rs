//! Quantised activations: the CPU's codes, and what fused ops make of them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use lowbit_core::PackedMatrix;
use lowbit_core::backend::{Backend, Gate, Norm, at_once};
use lowbit_core::buffer::Bytes;
use lowbit_core::format::Format;
use lowbit_core::kernels::selftest::sample;
use lowbit_gpu::{Extensions, Kernels, Products};
use support::{Gpu, dequantized, gpu, product, tensor, values};

const DOT4: Kernels =
    Kernels { products: Products::Dot4, gemm_rows: 16, split: 128, extensions: Extensions::NONE };

/// The unit matrix, with which a product is what its codes stand for.
fn unit(format: Format, n: usize) -> PackedMatrix {
    let none = || Bytes::copy_of(&[]);
    let blocks = n / 32;
    let at = |i: usize| (i / 16 * blocks * 32 + i) * 16 + i % 16;
    if format == Format::F32 {
        let mut plane = vec![0f32; n * n];
        (0..n).for_each(|i| plane[at(i)] = 1.0);
        let w = Bytes::copy_of(&plane.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
        return PackedMatrix::new("unit", format, n, n, [w, none(), none(), none(), none(), none()]).unwrap();
    }
    let mut plane = vec![0; n * n];
    (0..n).for_each(|i| plane[(i / 16 * blocks + i / 32) * 512 + i % 32 / 4 * 64 + i % 16 * 4 + i % 4] = 1);
    let one_as_half = 0x3c00u16.to_le_bytes();
    let scales = one_as_half.repeat(n / 16 * blocks * 16);
    PackedMatrix::new(
        "unit",
        Format::Q8,
        n,
        n,
        [Bytes::copy_of(&plane), none(), Bytes::copy_of(&scales), none(), none(), none()],
    )
    .unwrap()
}

/// Values of many magnitudes, with blocks that are zero, tiny or huge, ties, and extremes.
fn hard_rows(rows: usize, width: usize) -> Vec<f32> {
    let mut x = values(rows * width, 71);
    for (b, block) in x.chunks_mut(32).enumerate() {
        match b % 8 {
            0 => block.fill(0.0),
            // With 127 as the largest value, all others are codes and ties between codes.
            1 => (0..32).for_each(|i| block[i] = if i == 3 { -127.0 } else { (i as f32 - 16.0) * 3.5 }),
            2 => block.iter_mut().for_each(|x| *x *= 1e-30),
            3 => block.iter_mut().for_each(|x| *x *= 2e38),
            // 127 / m is no float.
            4 => block.iter_mut().for_each(|x| *x *= 3e-37),
            5 => block.iter_mut().for_each(|x| *x = x.powi(9)),
            _ => {}
        }
    }
    x
}

/// What the codes of `x` stand for, on the GPU: rounded once, when a code is multiplied with its scale.
fn dequantized_by(gpu: &mut Gpu, x: &[f32], width: usize) -> Vec<f32> {
    let matrix = gpu.matrix(unit(Format::Q8, width)).unwrap();
    let y = tensor(gpu, x, width);
    let mut out = tensor(gpu, &vec![0.0; x.len()], width);
    gpu.linear_add(&y, &matrix, &mut out).unwrap();
    gpu.read(&out).unwrap()
}

fn assert_same(found: &[f32], x: &[f32], width: usize) {
    let expected: Vec<f32> = x.chunks(width).flat_map(dequantized).map(|v| v as f32).collect();
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0f32, |a, b| a.max(b.abs()));
    assert!(largest > 0.0);
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!(found == expected, "value {i}, {}: {found}, on the CPU {expected}", x[i]);
    }
}

#[test]
fn codes_and_scales_are_those_of_the_cpu() {
    let mut gpu = gpu(DOT4);
    for (rows, width) in [(1, 64), (3, 96), (5, 512), (70, 1024)] {
        let x = hard_rows(rows, width);
        let found = dequantized_by(&mut gpu, &x, width);
        assert_same(&found, &x, width);
    }
}

#[test]
fn infinities_are_the_largest_floats() {
    let mut gpu = gpu(DOT4);
    let mut x = values(64, 5);
    (x[7], x[40]) = (f32::INFINITY, f32::NEG_INFINITY);
    let found = dequantized_by(&mut gpu, &x, 64);
    assert_same(&found, &x, 64);
}

#[test]
fn normalised_rows_have_the_codes_of_their_floats() {
    let width = 576;
    let run = |kernels, rows: usize, format| {
        let mut gpu = gpu(kernels);
        let x = tensor(&mut gpu, &values(rows * width, 3), width);
        let weight = gpu.vector(values(width, 19)).unwrap();
        let matrix = gpu.matrix(unit(format, width)).unwrap();
        let mut out = Vec::new();
        gpu.logits(&x, 0..rows, Norm { weight: &weight, eps: 1e-5 }, &matrix).unwrap();
        at_once(gpu.take(&mut out)).unwrap();
        out
    };
    for rows in [1, 5, 20] {
        let floats = run(Kernels::default(), rows, Format::F32);
        let found = run(DOT4, rows, Format::Q8);
        assert_same(&found, &floats, width);
    }
}

/// Rows whose norm is exact: so are the codes, and the products have the bound of level C.
#[test]
fn gated_products_of_codes_are_within_their_bound() {
    let mut gpu = gpu(DOT4);
    let formats = [(Format::Q4m, Format::Q4m), (Format::Q4, Format::Q8), (Format::F16, Format::Q5)];
    for ((gate_format, up_format), (n, k, m)) in
        formats.into_iter().flat_map(|f| [(15, 32, 1), (48, 64, 5), (83, 96, 70)].map(|shape| (f, shape)))
    {
        let (gate, up) = (sample(gate_format, n, k, 11), sample(up_format, n, k, 13));
        let rows: Vec<f32> = values(m * k, 17).iter().map(|v| v.signum()).collect();
        let weights: Vec<f32> = values(k, 19).iter().map(|v| v * 0.01).collect();
        let x = tensor(&mut gpu, &rows, k);
        let weight = gpu.vector(weights.clone()).unwrap();
        let matrices = [gpu.matrix(gate.clone()).unwrap(), gpu.matrix(up.clone()).unwrap()];
        let mut out = gpu.tensor();
        let norm = Norm { weight: &weight, eps: 0.0 };
        gpu.gated(&x, norm, Gate::Silu, [&matrices[0], &matrices[1]], &mut out).unwrap();
        let found = gpu.read(&out).unwrap();
        assert_eq!(found.len(), m * n);
        for (i, found) in found.iter().enumerate() {
            let normed: Vec<f32> = rows[i / n * k..][..k].iter().zip(&weights).map(|(x, w)| x * w).collect();
            let (g, u) = (product(DOT4, &normed, &gate, i % n), product(DOT4, &normed, &up, i % n));
            let activated = g.value / (1.0 + (-g.value).exp());
            let value = activated * u.value;
            // SiLU is not steeper than 1.1.
            let bound = 1.1 * g.bound * (u.value.abs() + u.bound)
                + u.bound * activated.abs()
                + 8e-6 * value.abs()
                + 1e-7 * u.value.abs();
            let off = (f64::from(*found) - value).abs();
            assert!(
                off <= bound,
                "{gate_format:?} {up_format:?} {n} x {k}, value {i}: {found}, exactly {value} +- {bound:e}"
            );
        }
    }
}
