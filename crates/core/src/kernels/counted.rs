//! Products that `cargo xtask bench arm` runs in an emulator, which counts what they execute. Here, not in a program of
//! their own, as the tests are built anyway, and building the kernels takes minutes.

use super::matmul::{Output, Rows, Write, matmul_tiles, scaling};
use super::selftest::sample;
use crate::activation::{Activations, QuantizedRows};
use crate::simd::{Isa, Scalar};
use crate::{Format, Result};
use std::hint::black_box;

/// So many blocks that they are most of what a tile costs.
const K: usize = 2048;

/// Four tiles; for as many rows as a matrix engine takes at once, so many that the work on rows is shared as in a model.
fn columns(rows: usize) -> usize {
    if rows < 16 { 64 } else { 2048 }
}

/// `LOWBIT_COUNTED=ISA FORMAT,ACTIVATIONS,ROWS...`: for each the product, between two calls of [`count_from_or_to_here`],
/// and a line with the number of its multiplications. Without it, a few that are compared with plain code.
#[test]
fn products_that_are_counted_are_those_of_plain_code() {
    let Ok(list) = std::env::var("LOWBIT_COUNTED") else {
        for word in ["q4,a8,1", "q8,a16,8"] {
            let [best, plain] = [Isa::best(), Isa::Scalar].map(|isa| product(isa, word).expect("operands"));
            assert!(best.iter().zip(&plain).all(|(a, b)| a.to_bits() == b.to_bits()), "{word}");
        }
        return;
    };
    let mut words = list.split(' ');
    let isa: Isa = words.next().unwrap_or_default().parse().expect("an ISA");
    assert!(isa.is_available(), "this CPU has no {}", isa.name());
    for word in words {
        let out = product(isa, word).expect("operands that fit");
        println!("\nmultiplications {}", out.len() * K);
    }
}

fn product(isa: Isa, word: &str) -> Result<Vec<f32>> {
    let words: Vec<&str> = word.split(',').collect();
    let [format, activations, rows] = words[..] else { panic!("{word} has not three parts") };
    let format = Format::from_name(format).expect("a format");
    let activations = Activations::ALL.into_iter().find(|a| a.name() == activations).expect("a precision");
    let rows: usize = rows.parse().expect("a number of rows");

    let n = columns(rows);
    let w = sample(format, n, K, 1);
    let mut x = QuantizedRows::with(activations, scaling(format, false).expect("a format of integers"));
    let values: Vec<f32> = (0..rows * K).map(|i| (i * 7919 % 255) as f32 - 127.0).collect();
    x.quantize(Scalar, &values, K)?;
    let mut out = vec![0.0; rows * n];
    let output = Output::new(&mut out, rows, n, 1)?;
    let tiles = output.claim(usize::MAX).expect("all tiles");
    count_from_or_to_here();
    matmul_tiles(isa, Rows::Quantized(&x), &w, Write::Store, tiles)?;
    count_from_or_to_here();
    Ok(out)
}

/// Found by its name. What happens in it is not known to the compiler, which so moves nothing past it.
#[inline(never)]
fn count_from_or_to_here() {
    black_box(());
}
