use super::*;
use crate::codec::testing::Noise;

/// Sizes where neither blocks nor bytes of nibbles come out even.
const SHAPE: MatmulShape = MatmulShape { m: 3, k: 37, n: 5 };

/// `x w` in f64, from dense weights `[k, n]`. The tests' values are such that f32 is exact.
fn exact(x: &[f32], w: &[f64]) -> Vec<f32> {
    let MatmulShape { m, k, n } = SHAPE;
    let mut out = vec![0.0; m * n];
    for (p, w) in w.chunks_exact(n).enumerate() {
        for (i, out) in out.chunks_exact_mut(n).enumerate() {
            for (out, w) in out.iter_mut().zip(w) {
                *out += f64::from(x[i * k + p]) * w;
            }
        }
    }
    out.iter().map(|sum| *sum as f32).collect()
}

/// Powers of two from 1/4 to 2.
fn dyadic(noise: &mut Noise, len: usize) -> Vec<f32> {
    (0..len).map(|_| 2f32.powi(noise.below(4) as i32 - 2)).collect()
}

fn nibbles(codes: &[u8]) -> Vec<u8> {
    codes.chunks(2).map(|pair| pair[0] | pair.get(1).unwrap_or(&0) << 4).collect()
}

#[test]
fn c01_signed_bytes_in_blocks() {
    let MatmulShape { m, k, n } = SHAPE;
    let mut noise = Noise(1);
    for block in [1, 8, 16, 37, 64] {
        let (x, codes) = (noise.quarters(m * k), noise.int8s(k * n));
        let scales = dyadic(&mut noise, k.div_ceil(block) * n);
        let zero_points = noise.quarters(k.div_ceil(block) * n);
        for zero_point in [ZeroPoint::All(0.0), ZeroPoint::All(-3.0), ZeroPoint::Blocks(&zero_points)] {
            let mut w = Vec::new();
            for p in 0..k {
                for j in 0..n {
                    let zero = match zero_point {
                        ZeroPoint::All(zero) => zero,
                        ZeroPoint::Blocks(zeros) => zeros[p / block * n + j],
                    };
                    let centred = f64::from(codes[p * n + j]) - f64::from(zero);
                    w.push(centred * f64::from(scales[p / block * n + j]));
                }
            }
            let weights = BlockInts { codes: IntCodes::Int8(&codes), block, scales: &scales, zero_point };
            let out = block_matmul(&x, SHAPE, &weights).unwrap();
            assert_eq!(out, exact(&x, &w), "block {block}");
        }
    }
}

#[test]
fn c02_nibbles_in_blocks() {
    let MatmulShape { m, k, n } = SHAPE;
    let mut noise = Noise(2);
    let (x, scales) = (noise.quarters(m * k), dyadic(&mut noise, 3 * n));
    let codes: Vec<u8> = (0..k * n).map(|_| noise.below(16) as u8).collect();
    let w: Vec<f64> =
        (0..k * n).map(|i| (f64::from(codes[i]) - 8.0) * f64::from(scales[i / n / 16 * n + i % n])).collect();
    let packed = nibbles(&codes);
    assert_eq!(packed.len(), 93, "185 nibbles");
    let weights = BlockInts {
        codes: IntCodes::Int4(&packed),
        block: 16,
        scales: &scales,
        zero_point: ZeroPoint::All(8.0),
    };
    assert_eq!(block_matmul(&x, SHAPE, &weights).unwrap(), exact(&x, &w));
}

#[test]
fn c02_nibbles_have_the_zero_point_they_are_given() {
    let shape = MatmulShape { m: 1, k: 1, n: 2 };
    let value = |zero_point| {
        let codes = IntCodes::Int4(&[0xf0]);
        let weights = BlockInts { codes, block: 1, scales: &[0.5, 0.5], zero_point };
        block_matmul(&[1.0], shape, &weights).unwrap()
    };
    assert_eq!(value(ZeroPoint::All(8.0)), [-4.0, 3.5]);
    assert_eq!(value(ZeroPoint::All(0.0)), [0.0, 7.5]);
    assert_eq!(value(ZeroPoint::Blocks(&[1.0, 15.0])), [-0.5, 0.0]);
}

#[test]
fn c03_fp8_with_column_scales() {
    let MatmulShape { m, k, n } = SHAPE;
    let mut noise = Noise(3);
    let (x, scales) = (noise.quarters(m * k), dyadic(&mut noise, n));
    // From 2^-3 to 15: exact with quarters, in sums of 37.
    let codes: Vec<u8> = (0..k * n).map(|_| noise.sign() | (0x20 + noise.below(0x38) as u8)).collect();
    for given in [Some(&scales[..]), None] {
        let w: Vec<f64> = (0..k * n)
            .map(|i| {
                let scale = given.map_or(1.0, |scales| f64::from(scales[i % n]));
                f64::from(Minifloat::F8E4M3.decode(codes[i])) * scale
            })
            .collect();
        assert_eq!(fp8_matmul(&x, SHAPE, Minifloat::F8E4M3, &codes, given).unwrap(), exact(&x, &w));
    }
    let one = MatmulShape { m: 1, k: 1, n: 1 };
    let value = |format, code| fp8_matmul(&[1.0], one, format, &[code], None).unwrap()[0];
    assert_eq!(value(Minifloat::F8E4M3, 0x7e), 448.0);
    assert_eq!(value(Minifloat::F8E5M2, 0x7b), 57344.0);
    assert_eq!(value(Minifloat::F8E5M2, 0xfc), f32::NEG_INFINITY);
}

#[test]
fn c04_nvfp4_with_a_global_scale() {
    const VALUES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let MatmulShape { m, k, n } = SHAPE;
    let mut noise = Noise(4);
    let x = noise.quarters(m * k);
    let codes: Vec<u8> = (0..k * n).map(|_| noise.below(16) as u8).collect();
    // 0.5 to 1.875, of either sign, 0 and NaN.
    let mut scales: Vec<u8> = (0..3 * n).map(|_| noise.sign() | (0x30 + noise.below(16) as u8)).collect();
    (scales[1], scales[n + 2], scales[2 * n]) = (0x7f, 0xff, 0);
    let w: Vec<f64> = (0..k * n)
        .map(|i| {
            let byte = scales[i / n / 16 * n + i % n];
            let sign = if (byte >> 4 ^ codes[i]) & 8 != 0 { -0.25 } else { 0.25 };
            let scale = match byte & 0x7f {
                0 | 0x7f => 0.0,
                byte => (1.0 + f64::from(byte & 7) / 8.0) * 2f64.powi(i32::from(byte >> 3) - 7),
            };
            VALUES[usize::from(codes[i] & 7)] * scale * sign
        })
        .collect();
    let out = nvfp4_matmul(&x, SHAPE, &nibbles(&codes), &scales, 0.25).unwrap();
    assert_eq!(out, exact(&x, &w));
}

#[test]
fn sums_are_in_order_and_in_f32() {
    let shape = MatmulShape { m: 2, k: 3, n: 1 };
    let x = [1.0, 1e8, -1e8, 1e8, -1e8, 1.0];
    let ones = BlockInts {
        codes: IntCodes::Int8(&[1; 3]),
        block: 3,
        scales: &[1.0],
        zero_point: ZeroPoint::All(0.0),
    };
    assert_eq!(block_matmul(&x, shape, &ones).unwrap(), [0.0, 1.0]);
}

#[test]
fn sizes_that_do_not_agree_are_errors() {
    let shape = MatmulShape { m: 1, k: 3, n: 3 };
    let good = BlockInts {
        codes: IntCodes::Int8(&[1; 9]),
        block: 2,
        scales: &[1.0; 6],
        zero_point: ZeroPoint::All(0.0),
    };
    assert!(block_matmul(&[0.0; 3], shape, &good).is_ok());
    for (bad, problem) in [
        (BlockInts { codes: IntCodes::Int8(&[1; 8]), ..good }, "codes has 8 elements"),
        (BlockInts { codes: IntCodes::Int4(&[1; 4]), ..good }, "4 bytes, nibbles of [3, 3] have 5"),
        (BlockInts { block: 0, ..good }, "blocks of 0"),
        (BlockInts { scales: &[1.0; 3], ..good }, "scales has 3"),
        (BlockInts { zero_point: ZeroPoint::Blocks(&[1.0; 3]), ..good }, "zero points has 3"),
    ] {
        let error = block_matmul(&[0.0; 3], shape, &bad).unwrap_err();
        assert!(error.code() == "bad-shape" && error.to_string().contains(problem), "{error}");
    }
    assert!(block_matmul(&[0.0; 2], shape, &good).unwrap_err().to_string().contains("x has 2"));
    let none = MatmulShape { m: 0, ..shape };
    assert!(block_matmul(&[], none, &good).unwrap_err().to_string().contains("above 0"));
    let huge = MatmulShape { m: 1, k: usize::MAX, n: 3 };
    assert!(block_matmul(&[], huge, &good).unwrap_err().to_string().contains("overflows"));
    let e4m3 = Minifloat::F8E4M3;
    assert!(fp8_matmul(&[0.0; 3], shape, e4m3, &[0; 8], None).is_err());
    assert!(fp8_matmul(&[0.0; 3], shape, e4m3, &[0; 9], Some(&[1.0; 2])).is_err());
    assert!(nvfp4_matmul(&[0.0; 3], shape, &[0; 5], &[0; 2], 1.0).is_err());
    assert!(nvfp4_matmul(&[0.0; 3], shape, &[0; 9], &[0; 3], 1.0).is_err());
}
