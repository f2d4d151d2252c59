//! Every format, ISA and odd shape against the oracle, bit for bit.

use super::*;
use crate::activation::Activations;
use crate::buffer::Bytes;
use crate::format::{FORMATS, TILE_N};
use crate::kernels::reference;

/// A small deterministic generator (xorshift64*).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32
    }
    fn float(&mut self) -> f32 {
        self.next() as f32 / 2f32.powi(31) - 1.0
    }
}

/// What the planes are filled with.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fill {
    Random,
    /// Every byte of the code planes: all-extreme codes.
    Codes(u8),
    /// Scales down to f16 subnormals.
    Tiny,
}

fn matrix(format: Format, n: usize, k: usize, fill: Fill, rng: &mut Rng) -> PackedMatrix {
    let size = format.plane_sizes(n, k).expect("small");
    let code = |rng: &mut Rng| match fill {
        Fill::Codes(code) => code,
        _ => (rng.next() >> 8) as u8,
    };
    let codes = |len: usize, rng: &mut Rng| (0..len).map(|_| code(rng)).collect::<Vec<u8>>();
    // Padded columns hold NaN: no result may depend on them.
    let halves = |len: usize, signed: bool, rng: &mut Rng| {
        let blocks = k.div_ceil(BLOCK_K);
        let half = |i: usize| {
            let padding = i / TILE_N / blocks * TILE_N + i % TILE_N >= n;
            let bits = if fill == Fill::Tiny {
                rng.next() as u16 & 0x83ff
            } else {
                half::f16::from_f32(rng.float()).to_bits()
            };
            if padding {
                0x7e00
            } else if signed {
                bits
            } else {
                bits & 0x7fff
            }
        };
        (0..len / 2).map(half).flat_map(u16::to_le_bytes).collect::<Vec<u8>>()
    };
    let w = match format {
        Format::F32 => (0..size.w / 4).flat_map(|_| rng.float().to_le_bytes()).collect(),
        Format::F16 => halves(size.w, true, rng).into_iter().map(|b| b & 0xfb).collect(),
        Format::Bf16 => {
            (0..size.w / 2).flat_map(|_| half::bf16::from_f32(rng.float()).to_le_bytes()).collect()
        }
        _ => codes(size.w, rng),
    };
    PackedMatrix {
        format,
        n,
        k,
        w: Bytes::copy_of(&w),
        x: Bytes::copy_of(&codes(size.x, rng)),
        s: Bytes::copy_of(&halves(size.s, true, rng)),
        m: Bytes::copy_of(&halves(size.m, true, rng)),
    }
}

/// Rows with everything that quantisation treats specially: ties, zeros, one-sided extremes, tiny and huge values.
fn rows(m: usize, k: usize, rng: &mut Rng) -> Vec<f32> {
    let value = |i: usize| match i / k % 9 {
        1 => 0.0,
        2 => [1.0, -1.0][i % 2],
        3 => 1.0,
        4 => (i % 255) as f32 - 127.0 + 0.5,
        5 => rng.float() * 1e-39,
        6 => rng.float() * 1e30,
        7 => -3.0,
        _ => rng.float(),
    };
    (0..m * k).map(value).collect()
}

fn run(isa: Isa, x: &[f32], w: &PackedMatrix, activations: Activations, claim: usize) -> Vec<f32> {
    let m = x.len() / w.k;
    let mut q = QuantizedRows::new(activations);
    struct Quantize<'a>(&'a mut QuantizedRows, &'a [f32], usize);
    impl Kernel for Quantize<'_> {
        type Output = Result<()>;
        fn run<S: Simd + Dot>(self, s: S) -> Result<()> {
            self.0.quantize(s, self.1, self.2)
        }
    }
    dispatch(isa, Quantize(&mut q, x, w.k)).expect("rows fit");
    let input = if takes_quantized(w.format) { Rows::Quantized(&q) } else { Rows::Float(x) };
    let mut out = vec![f32::NAN; m * w.n];
    let output = Output::new(&mut out, m, w.n).expect("sized to fit");
    while let Some(tiles) = output.claim(claim) {
        matmul_tiles(isa, input, w, Write::Store, tiles).expect("shapes fit");
    }
    out
}

fn check(format: Format, n: usize, k: usize, m: usize, fill: Fill, activations: Activations) {
    let mut rng = Rng(0x9e37_79b9 + (n * 31 + k * 7 + m) as u64);
    let w = matrix(format, n, k, fill, &mut rng);
    let x = rows(m, k, &mut rng);
    let expected: Vec<f32> =
        x.chunks(k).flat_map(|row| reference::matmul_row(row, &w, activations)).collect();
    for isa in Isa::available() {
        let got = run(isa, &x, &w, activations, 1 + n % 3);
        let same = got.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
        let at = got.iter().zip(&expected).position(|(a, b)| a.to_bits() != b.to_bits());
        assert!(
            same,
            "{isa} {format:?} n={n} k={k} m={m} {fill:?} {activations:?}: first difference at {at:?}"
        );
    }
}

#[test]
fn every_format_and_isa_equals_the_reference_on_odd_shapes() {
    for spec in FORMATS {
        for activations in [Activations::A8, Activations::A16] {
            for n in [1, 15, 16, 17, 48] {
                for k in [32, 64, 96, 576] {
                    for m in [1, 2, 9] {
                        check(spec.format, n, k, m, Fill::Random, activations);
                    }
                }
            }
            for m in 1..=20 {
                check(spec.format, 17, 96, m, Fill::Random, activations);
            }
            check(spec.format, 16, 40, 3, Fill::Random, activations);
        }
    }
}

#[test]
fn extreme_codes_and_subnormal_scales_equal_the_reference() {
    for spec in FORMATS {
        for activations in [Activations::A8, Activations::A16] {
            for fill in [0x00, 0xff, 0x80, 0x7f, 0xf0, 0x0f].map(Fill::Codes).into_iter().chain([Fill::Tiny])
            {
                check(spec.format, 16, 64, 9, fill, activations);
            }
        }
    }
}

#[test]
fn products_are_added_to_and_gated_in_place() {
    let mut rng = Rng(7);
    let (m, n, k) = (3, 35, 64);
    let [gate, up] = [Format::Q4, Format::Q8].map(|format| matrix(format, n, k, Fill::Random, &mut rng));
    let x = rows(m, k, &mut rng);
    let product = |w: &PackedMatrix| -> Vec<f32> {
        x.chunks(k).flat_map(|row| reference::matmul_row(row, w, Activations::A8)).collect()
    };
    let (gate_product, up_product) = (product(&gate), product(&up));
    let mut q = QuantizedRows::new(Activations::A8);
    q.quantize(crate::simd::Scalar, &x, k).expect("rows fit");
    let input = Rows::Quantized(&q);
    for isa in Isa::available() {
        let mut sum = gate_product.clone();
        let output = Output::new(&mut sum, m, n).expect("sized to fit");
        while let Some(tiles) = output.claim(2) {
            matmul_tiles(isa, input, &up, Write::Add, tiles).expect("shapes fit");
        }
        let mut gated = vec![0.0; m * n];
        let output = Output::new(&mut gated, m, n).expect("sized to fit");
        while let Some(tiles) = output.claim(2) {
            gated_tiles(isa, (input, &gate), (input, &up), Gate::Silu, tiles).expect("shapes fit");
        }
        for i in 0..m * n {
            assert_eq!(sum[i].to_bits(), (gate_product[i] + up_product[i]).to_bits(), "{isa} {i}");
            let silu = gate_product[i] / (1.0 + (-gate_product[i]).exp());
            let expected = silu * up_product[i];
            assert!((gated[i] - expected).abs() <= 1e-5 * expected.abs() + 1e-6, "{isa} {i}");
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let mut rng = Rng(3);
    let w = matrix(Format::Q4, 32, 64, Fill::Random, &mut rng);
    let mut q = QuantizedRows::new(Activations::A8);
    let mut try_with = |rows: usize, k: usize, n: usize, w: &PackedMatrix, float: bool| {
        let x = vec![1.0; rows * k];
        q.quantize(crate::simd::Scalar, &x, k).expect("rows fit");
        let mut out = vec![0.0; n];
        let output = Output::new(&mut out, 1, n).expect("sized to fit");
        let tiles = output.claim(1).expect("not empty");
        let input = if float { Rows::Float(&x) } else { Rows::Quantized(&q) };
        matmul_tiles(Isa::Scalar, input, w, Write::Store, tiles)
    };
    assert!(try_with(1, 64, 32, &w, false).is_ok());
    for (rows, k, n, float) in [(2, 64, 32, false), (1, 32, 32, false), (1, 64, 16, false), (1, 64, 32, true)]
    {
        assert!(
            matches!(try_with(rows, k, n, &w, float), Err(Error::Shape { .. })),
            "{rows} {k} {n} {float}"
        );
    }
    let short = PackedMatrix { s: Bytes::copy_of(&w.s[1..]), ..w.clone() };
    assert!(try_with(1, 64, 32, &short, false).is_err());
    assert!(Output::new(&mut [0.0; 3], 2, 2).is_err());
}

#[test]
fn every_tile_is_claimed_once() {
    let mut out = vec![0.0; 100];
    let output = Output::new(&mut out, 2, 50).expect("sized to fit");
    let mut seen = Vec::new();
    while let Some(tiles) = output.claim(3) {
        seen.extend(tiles.range());
    }
    assert_eq!(seen, [0, 1, 2, 3]);
    assert!(output.claim(usize::MAX).is_none());
}
