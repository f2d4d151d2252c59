//! Every format, ISA and odd shape against the oracle, bit for bit; what is written where; what is refused.

use std::ops::Range;

use super::*;
use crate::activation::Activations;
use crate::buffer::Bytes;
use crate::kernels::reference;
use crate::kernels::selftest::{Fill, Rng, cases, check, matrix, rows};

#[test]
fn every_format_and_isa_equals_the_reference() {
    let isas: Vec<Isa> = Isa::available().collect();
    let cases = cases();
    std::thread::scope(|scope| {
        for half in cases.chunks(cases.len().div_ceil(2)) {
            let isas = &isas;
            scope.spawn(move || {
                for case in half {
                    check(isas, *case).unwrap_or_else(|error| panic!("{error}"));
                }
            });
        }
    });
}

#[test]
fn products_are_added_to_and_gated_in_place() {
    let mut rng = Rng(7);
    let (m, n, k) = (3, 35, 64);
    let [gate, up] = [Format::Q4, Format::Q8].map(|format| matrix(format, n, k, Fill::Random, &mut rng));
    let x = rows(m, k, &mut rng);
    let product = |w: &PackedMatrix| -> Vec<f32> {
        x.chunks(k).flat_map(|row| reference::matmul_row(row, w, Activations::A8, false)).collect()
    };
    let (gate_product, up_product) = (product(&gate), product(&up));
    let mut q = QuantizedRows::new(Activations::A8);
    q.quantize(crate::simd::Scalar, &x, k).expect("rows fit");
    let input = Rows::Quantized(&q);
    for isa in Isa::available() {
        let mut sum = gate_product.clone();
        let output = Output::new(&mut sum, m, n, 1).expect("sized to fit");
        while let Some(tiles) = output.claim(2) {
            matmul_tiles(isa, input, &up, Write::Add, tiles).expect("shapes fit");
        }
        let mut gated = vec![0.0; m * n];
        let output = Output::new(&mut gated, m, n, 1).expect("sized to fit");
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
        let output = Output::new(&mut out, 1, n, 1).expect("sized to fit");
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
    assert!(Output::new(&mut [0.0; 3], 2, 2, 1).is_err());
}

#[test]
fn every_tile_is_claimed_once() {
    let mut out = vec![0.0; 100];
    let output = Output::new(&mut out, 2, 50, 1).expect("sized to fit");
    let mut seen = Vec::new();
    while let Some(tiles) = output.claim(3) {
        seen.extend(tiles.range());
    }
    assert_eq!(seen, [0, 1, 2, 3]);
    assert!(output.claim(usize::MAX).is_none() && output.claim_any(1).is_none());
}

#[test]
fn threads_claim_their_own_part_and_then_what_is_left_of_others() {
    let mut out = vec![0.0; 2 * 16 * 36];
    for (rows, lengths) in [(1, vec![15, 2, 1]), (2, vec![9, 4, 2, 1, 1, 1])] {
        let output = Output::new(&mut out[..rows * 16 * 36], rows, 16 * 36, 2).expect("sized to fit");
        let own: Vec<_> = std::iter::from_fn(|| output.claim_own(1).map(|tiles| tiles.range())).collect();
        assert_eq!(own.iter().map(Range::len).collect::<Vec<_>>(), lengths);
        assert_eq!((own[0].start, own[own.len() - 1].end), (18, 36));
        let left: Vec<_> = std::iter::from_fn(|| output.claim_any(1).map(|tiles| tiles.range())).collect();
        assert_eq!(left, [0..9, 9..13, 13..15, 15..16, 16..17, 17..18]);
        assert!(output.claim_own(0).is_none() && output.claim_any(0).is_none());
    }
}

#[test]
fn every_tile_is_claimed_once_by_any_number_of_threads() {
    let mut out = vec![0.0; 16 * 100];
    for threads in [1, 2, 3, 9, 16, 17, 255] {
        for tiles in [0, 1, 2, 7, 100] {
            let output = Output::new(&mut out[..16 * tiles], 1, 16 * tiles, threads).expect("sized to fit");
            let mut seen = vec![0; tiles];
            for claim in [Output::claim_own, Output::claim_any] {
                for thread in (0..threads).rev().step_by(2) {
                    while let Some(tiles) = claim(&output, thread) {
                        tiles.range().for_each(|tile| seen[tile] += 1);
                    }
                }
            }
            assert!(seen.iter().all(|times| *times == 1), "{threads} threads: {seen:?}");
        }
    }
}

/// Which instruction multiplies.
struct Instruction;

impl Kernel for Instruction {
    type Output = &'static str;
    fn run<S: Dot>(self, _: S) -> &'static str {
        S::NAME
    }
}

#[test]
fn every_isa_multiplies_with_its_own_instruction() {
    for isa in Isa::available() {
        let expected = match isa {
            Isa::Scalar => "plain",
            Isa::Avx2 => "vpmaddubsw ymm",
            // Few rows; tiles take many.
            Isa::Avx512 | Isa::Amx => "vpdpbusd zmm",
            Isa::Neon => "smlal",
            Isa::NeonDotprod => "sdot",
            // SME is not reached by a dispatch.
            Isa::NeonI8mm | Isa::Sme | Isa::Sme2 => "smmla",
            Isa::Wasm => "i32x4.dot_i16x8_s",
            Isa::WasmRelaxed => "i32x4.relaxed_dot_i8x16_i7x16_add_s",
        };
        assert_eq!(dispatch(isa, Instruction), expected, "{isa}");
    }
    // The widest instructions win where the CPU has them.
    #[cfg(target_arch = "x86_64")]
    {
        let avx512 = is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512bw");
        let expected = match (Isa::Amx.is_available(), avx512, is_x86_feature_detected!("avx2")) {
            (true, ..) => Isa::Amx,
            (_, true, _) => Isa::Avx512,
            (.., true) => Isa::Avx2,
            _ => Isa::Scalar,
        };
        assert_eq!(Isa::best(), expected);
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::is_aarch64_feature_detected as has;
        let sme = [Isa::Sme2, Isa::Sme].into_iter().find(|isa| isa.is_available());
        let expected = match (sme, has!("i8mm") && has!("dotprod"), has!("dotprod")) {
            (Some(sme), ..) => sme,
            (_, true, _) => Isa::NeonI8mm,
            (.., true) => Isa::NeonDotprod,
            _ => Isa::Neon,
        };
        assert_eq!(Isa::best(), expected);
    }
}

/// What multiplies on which core, by format and number of rows.
#[test]
#[cfg(target_arch = "aarch64")]
fn cores_multiply_with_the_best_that_they_have() {
    use sme::Engine::{DotProducts, OuterProducts, Vectors};
    let formats = [Format::Q4, Format::Q4k, Format::Q8, Format::Q6k, Format::Q3, Format::C4, Format::P4];
    let rows = [1, 2, 16, 100];
    for isa in [Isa::Neon, Isa::NeonDotprod, Isa::NeonI8mm, Isa::Sme, Isa::Sme2] {
        for format in formats {
            let chosen = rows.map(|rows| sme::Engine::new(isa, rows, 256, format.spec()));
            println!("{isa:14} {:4} rows {rows:?}: {chosen:?}", format.spec().name);
            let is_apart = matches!(format, Format::Q6k | Format::Q3);
            let expected = match isa {
                Isa::Sme2 if !is_apart => [DotProducts, OuterProducts, OuterProducts, OuterProducts],
                Isa::Sme | Isa::Sme2 => [Vectors, OuterProducts, OuterProducts, OuterProducts],
                _ => [Vectors; 4],
            };
            assert_eq!(chosen, expected, "{isa} {format:?}");
        }
    }
}
