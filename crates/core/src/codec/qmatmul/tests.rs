use super::*;
use crate::codec::testing::Noise;

const PLAIN: Requant = Requant { multiplier: 1.0, zero_point: 0 };

fn tensor<'a>(values: &'a [i8], shape: &'a [usize], zero_point: i8) -> Int8Tensor<'a> {
    Int8Tensor { values, shape, zero_point }
}

#[test]
fn c09_products_agree_with_exact_arithmetic() {
    let (m, k, n) = (4, 33, 7);
    let mut noise = Noise(6);
    for (x_zero, w_zero, zero_point) in [(0, 0, 0), (-128, 127, -5), (3, -7, 100)] {
        let (x, w) = (noise.int8s(m * k), noise.int8s(k * n));
        let bias: Vec<i32> = (0..n).map(|_| noise.bits() as i32 >> 12).collect();
        let requant = Requant { multiplier: 2f32.powi(-12), zero_point };
        let out = qmatmul(&tensor(&x, &[m, k], x_zero), &tensor(&w, &[k, n], w_zero), Some(&bias), requant);
        for (at, out) in out.unwrap().into_iter().enumerate() {
            let (i, j) = (at / n, at % n);
            // The zero points taken out of the sum: sum xw - x0 sum w - w0 sum x + k x0 w0.
            let (mut xw, mut xs, mut ws) = (0i32, 0i32, 0i32);
            for p in 0..k {
                let (x, w) = (i32::from(x[i * k + p]), i32::from(w[p * n + j]));
                (xw, xs, ws) = (xw + x * w, xs + x, ws + w);
            }
            let (x0, w0) = (i32::from(x_zero), i32::from(w_zero));
            let sum = xw - x0 * ws - w0 * xs + k as i32 * x0 * w0 + bias[j];
            // Exact: sums are below 2^24. Half away from zero, in integers.
            let magnitude = (sum.abs() + 2048) >> 12;
            let expected = (magnitude * sum.signum() + zero_point).clamp(-128, 127);
            assert_eq!(i32::from(out), expected, "{i} {j}");
        }
    }
}

#[test]
fn c09_halves_round_away_from_zero() {
    let requant = Requant { multiplier: 0.5, zero_point: 10 };
    let bytes = [-5, -3, -1, 0, 1, 3, 5].map(|sum| requant.apply(sum));
    assert_eq!(bytes, [7, 8, 9, 10, 11, 12, 13]);
}

#[test]
fn c09_the_zero_point_is_added_without_overflow() {
    let apply = |multiplier, zero_point, sum| Requant { multiplier, zero_point }.apply(sum);
    assert_eq!(apply(1e30, i32::MAX, 1), 127);
    assert_eq!(apply(-1e30, i32::MIN, 1), -128);
    assert_eq!(apply(1e30, i32::MIN, 1), -1, "2^31 - 1 - 2^31");
    assert_eq!(apply(f32::NAN, 7, 1), 7);
    assert_eq!(apply(f32::INFINITY, 0, -1), -128);
}

#[test]
fn c09_sums_are_rounded_to_f32_once() {
    let requant = Requant { multiplier: 1.0, zero_point: -(1 << 24) };
    assert_eq!([1, 2, 3].map(|more| requant.apply((1 << 24) + more)), [0, 2, 4]);
}

#[test]
fn c09_sums_do_not_overflow() {
    let k = 33026;
    let (x, w) = (vec![127; k], vec![127; k]);
    let requant = Requant { multiplier: 2f32.powi(-25), zero_point: 0 };
    let out = qmatmul(&tensor(&x, &[1, k], -128), &tensor(&w, &[k, 1], -128), Some(&[i32::MAX]), requant);
    assert_eq!(out.unwrap(), [127], "(33026 * 255^2 + 2^31) / 2^25 is 128");
    let out = qmatmul(&tensor(&x, &[1, k], -128), &tensor(&w, &[k, 1], -128), None, requant);
    assert_eq!(out.unwrap(), [64]);
}

#[test]
fn c09_the_multiplier_is_one_float() {
    let requant = Requant::new(0.1, 0.3, 0.7, 4);
    assert_eq!(requant, Requant { multiplier: (0.1f32 * 0.3f32) / 0.7f32, zero_point: 4 });
}

#[test]
fn sizes_that_do_not_agree_are_errors() {
    let (x, w) = (tensor(&[1; 6], &[2, 3], 0), tensor(&[1; 12], &[3, 4], 0));
    assert_eq!(qmatmul(&x, &w, None, PLAIN).unwrap(), [3; 8]);
    for (x, w, problem) in [
        (tensor(&[1; 5], &[2, 3], 0), w, "x has 5 elements"),
        (tensor(&[1; 6], &[6], 0), w, "x is [6]; it must have 2 dimensions"),
        (x, tensor(&[1; 12], &[1, 3, 4], 0), "w is [1, 3, 4]"),
        (x, tensor(&[1; 12], &[4, 3], 0), "rows of 3, w columns of 4"),
        (tensor(&[], &[0, 3], 0), w, "above 0"),
        (tensor(&[], &[usize::MAX, 3], 0), w, "overflows"),
    ] {
        let error = qmatmul(&x, &w, None, PLAIN).unwrap_err();
        assert!(error.code() == "bad-shape" && error.to_string().contains(problem), "{error}");
    }
    assert!(qmatmul(&x, &w, Some(&[0; 3]), PLAIN).unwrap_err().to_string().contains("bias has 3"));
}
