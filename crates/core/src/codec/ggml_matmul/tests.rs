use super::*;
use crate::codec::testing::{Noise, golden_bytes, golden_json};

/// Bytes and values of a type in `ggml_blocks.json`.
fn golden(name: &str) -> (Vec<u8>, Vec<f32>) {
    const JSON: &str = include_str!("../../../../../tests/golden/ggml_blocks.json");
    let case = &golden_json(JSON)[name];
    let values = golden_bytes(&case["values"]);
    let values = values.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    (golden_bytes(&case["bytes"]), values)
}

#[test]
fn c14_products_with_unit_vectors_are_the_weights() {
    for name in
        ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
    {
        let ty = GgmlType::from_name(name).unwrap();
        let (bytes, values) = golden(name);
        let k = ty.block().max(16);
        let n = values.len() / k;
        let units: Vec<f32> = (0..k * k).map(|i| f32::from(u8::from(i / k == i % k))).collect();
        let out = ggml_matmul(&units, MatmulShape { m: k, k, n }, ty, &bytes).unwrap();
        for (i, out) in out.iter().enumerate() {
            assert_eq!(*out, values[i % n * k + i / n], "{name} {i}");
        }
    }
}

#[test]
fn c14_sums_are_in_order_over_the_values() {
    let ty = GgmlType::from_name("Q4_1").unwrap();
    let (bytes, values) = golden("Q4_1");
    let (m, k, n) = (3, 64, 2);
    let x = Noise(5).floats(m * k);
    let out = ggml_matmul(&x, MatmulShape { m, k, n }, ty, &bytes).unwrap();
    for i in 0..m {
        for j in 0..n {
            let mut sum = 0.0f32;
            for p in 0..k {
                sum += x[i * k + p] * values[j * k + p];
            }
            assert_eq!(out[i * n + j].to_bits(), sum.to_bits(), "{i} {j}");
        }
    }
}

#[test]
fn what_cannot_be_is_an_error() {
    let q4_0 = GgmlType::from_name("Q4_0").unwrap();
    let shape = MatmulShape { m: 1, k: 64, n: 2 };
    let error =
        |x: &[f32], shape, ty, bytes: &[u8]| ggml_matmul(x, shape, ty, bytes).unwrap_err().to_string();
    assert!(ggml_matmul(&[0.0; 64], shape, q4_0, &[0; 72]).is_ok());
    assert!(error(&[0.0; 64], shape, q4_0, &[0; 71]).contains("71 bytes"));
    assert!(error(&[0.0; 63], shape, q4_0, &[0; 72]).contains("x has 63 elements"));
    // 48 * 2 weights are 3 blocks, but rows are not whole ones.
    let ragged = MatmulShape { m: 1, k: 48, n: 2 };
    assert!(error(&[0.0; 48], ragged, q4_0, &[0; 54]).contains("not whole Q4_0 blocks"));
    for empty in [MatmulShape { k: 0, ..shape }, MatmulShape { n: 0, ..shape }, MatmulShape { m: 0, ..shape }]
    {
        assert!(
            error(&[], empty, q4_0, &vec![0; empty.n * empty.k / 32 * 18]).contains("above 0"),
            "{empty:?}"
        );
    }
    assert!(error(&[], MatmulShape { n: usize::MAX, ..shape }, q4_0, &[]).contains("overflows"));
    let grid = GgmlType::from_name("IQ2_XXS").unwrap();
    let unsupported = ggml_matmul(&[0.0; 256], MatmulShape { m: 1, k: 256, n: 1 }, grid, &[0; 66]);
    assert_eq!(unsupported.unwrap_err().code(), "unsupported");
}
