use super::*;
use crate::codec::testing::{Noise, golden_bytes, golden_json};

const FORMATS: [Minifloat; 7] = [
    Minifloat::F8E4M3,
    Minifloat::F8E5M2,
    Minifloat::F8E4M3FNUZ,
    Minifloat::F8E5M2FNUZ,
    Minifloat::F6E2M3,
    Minifloat::F6E3M2,
    Minifloat::F4E2M1,
];
const LAYOUTS: [ScaleLayout; 4] =
    [ScaleLayout::PerTensor, ScaleLayout::MX, ScaleLayout::NVFP4, ScaleLayout::E8m0 { block: 7 }];

/// Every format with every layout, and one more.
fn cases() -> impl Iterator<Item = (Minifloat, ScaleLayout)> {
    let custom = Minifloat::custom(2, 2, 3).unwrap();
    let formats = FORMATS.into_iter().chain([custom]);
    formats.flat_map(|format| LAYOUTS.map(|layout| (format, layout)))
}

/// The scale of an element by the definition of its layout, in f64.
fn scale_of(scales: &Scales, row: usize, p: usize, k: usize) -> f64 {
    match scales {
        Scales::PerTensor(scale) => f64::from(*scale),
        Scales::E8m0 { block, bytes } => {
            let of_row = &bytes[row * (k + block - 1).div_euclid(*block)..];
            2f64.powi(i32::from(of_row[p / block]) - 127)
        }
        Scales::E4m3 { block, bytes } => {
            let of_row = &bytes[row * (k + block - 1).div_euclid(*block)..];
            f64::from(Minifloat::F8E4M3.decode(of_row[p / block]))
        }
    }
}

#[test]
fn c06_scales_map_the_largest_magnitude_to_the_largest_value() {
    // Two rows of 40 have two MX blocks each.
    let mut x = vec![0.0f32; 80];
    (x[3], x[35], x[41], x[79]) = (-448.0, 448f32.next_up(), 1e-3, 448.0 * 0.75);
    let scales = |layout| scaled_quant_scale(&x, 2, 40, Minifloat::F8E4M3, layout).unwrap();
    // Of 1e-3 / 448, about 2^-18.77, the next power up is 2^-18.
    let bytes = vec![127, 128, 127 - 18, 127];
    assert_eq!(scales(ScaleLayout::MX), Scales::E8m0 { block: 32, bytes });
    assert_eq!(scales(ScaleLayout::PerTensor), Scales::PerTensor(448f32.next_up() / 448.0));
    // 1 is 0x38, 0.75 is 0x34; what is all 0 has 1, and 1e-3 / 448 becomes 0.
    let bytes = vec![0x38, 0x38, 0x38, 0x00, 0x38, 0x34];
    assert_eq!(scales(ScaleLayout::NVFP4), Scales::E4m3 { block: 16, bytes });
    let whole = scaled_quant_scale(&x, 2, 40, Minifloat::F8E4M3, ScaleLayout::E8m0 { block: usize::MAX });
    assert_eq!(whole.unwrap(), Scales::E8m0 { block: usize::MAX, bytes: vec![128, 127] });
}

#[test]
fn c06_scales_of_what_is_not_finite() {
    let infinite = [1.0, f32::NEG_INFINITY];
    let scale = |x: &[f32], layout| scaled_quant_scale(x, 1, 2, Minifloat::F4E2M1, layout).unwrap();
    assert_eq!(scale(&infinite, ScaleLayout::PerTensor), Scales::PerTensor(f32::INFINITY));
    assert_eq!(scale(&infinite, ScaleLayout::MX), Scales::E8m0 { block: 32, bytes: vec![0] });
    assert_eq!(scale(&infinite, ScaleLayout::NVFP4), Scales::E4m3 { block: 16, bytes: vec![0x7e] });
    assert_eq!(scale(&[f32::NAN, -3.0], ScaleLayout::PerTensor), Scales::PerTensor(0.5));
    assert_eq!(scale(&[f32::NAN; 2], ScaleLayout::PerTensor), Scales::PerTensor(1.0));
}

#[test]
fn c07_c08_codes_are_the_nearest_at_the_snapped_scale() {
    let (rows, k) = (3, 45);
    for (format, layout) in cases() {
        let x = Noise(3).floats(rows * k);
        let scales = scaled_quant_scale(&x, rows, k, format, layout).unwrap();
        let codes = scaled_quantize(&x, rows, k, format, &scales).unwrap();
        let matrix = ScaledMatrix { rows, k, format, codes: &codes, scales: &scales };
        let y = scaled_dequantize(&matrix).unwrap();
        for (i, (x, y)) in x.iter().zip(y).enumerate() {
            let (scale, x) = (scale_of(&scales, i / k, i % k, k), f64::from(*x));
            let values = (0..1u16 << format.bits()).map(|code| f64::from(format.decode(code as u8)));
            let least = values.filter(|v| v.is_finite()).map(|v| (v * scale - x).abs()).fold(1e9, f64::min);
            let found = (f64::from(y) - x).abs();
            assert!(found <= least + 1e-6 * x.abs(), "{format:?} {layout:?} {i}: {x} became {y}");
        }
    }
}

#[test]
fn c06_c07_scales_and_codes_are_those_of_numpy_and_ml_dtypes() {
    const JSON: &str = include_str!("../../../../../tests/golden/scaled.json");
    let json = golden_json(JSON);
    let x: Vec<f32> = golden_bytes(&json["x"]).as_chunks().0.iter().map(|b| f32::from_be_bytes(*b)).collect();
    for (name, format) in [
        ("F8E4M3", Minifloat::F8E4M3),
        ("F8E5M2", Minifloat::F8E5M2),
        ("F8E4M3FNUZ", Minifloat::F8E4M3FNUZ),
        ("F6E2M3", Minifloat::F6E2M3),
        ("F6E3M2", Minifloat::F6E3M2),
        ("F4E2M1", Minifloat::F4E2M1),
    ] {
        for (key, layout) in
            [("tensor", ScaleLayout::PerTensor), ("mx", ScaleLayout::MX), ("nvfp4", ScaleLayout::NVFP4)]
        {
            let case = &json["cases"][name][key];
            let scales = scaled_quant_scale(&x, 3, 45, format, layout).unwrap();
            let stored = match &scales {
                Scales::PerTensor(scale) => scale.to_be_bytes().to_vec(),
                Scales::E8m0 { bytes, .. } | Scales::E4m3 { bytes, .. } => bytes.clone(),
            };
            assert_eq!(stored, golden_bytes(&case["scales"]), "{name} {key}");
            let codes = scaled_quantize(&x, 3, 45, format, &scales).unwrap();
            assert_eq!(codes, golden_bytes(&case["codes"]), "{name} {key}");
        }
    }
}

#[test]
fn c07_e8m0_scales_never_clip() {
    // Amplitudes just above a power of two are where a logarithm in f32 would give a scale that is too small.
    for exponent in -100..100 {
        let x = [2f32.powi(exponent).next_up() * 6.0; 1];
        let scales = scaled_quant_scale(&x, 1, 1, Minifloat::F4E2M1, ScaleLayout::MX).unwrap();
        let codes = scaled_quantize(&x, 1, 1, Minifloat::F4E2M1, &scales).unwrap();
        assert_eq!(codes, [Minifloat::F4E2M1.encode(3.0)], "2^{exponent}: {scales:?}");
    }
}

#[test]
fn c07_a_scale_of_0_gives_code_0() {
    let x = [1e-6f32; 16];
    let scales = scaled_quant_scale(&x, 1, 16, Minifloat::F4E2M1, ScaleLayout::NVFP4).unwrap();
    assert_eq!(scales, Scales::E4m3 { block: 16, bytes: vec![0] });
    assert_eq!(scaled_quantize(&x, 1, 16, Minifloat::F4E2M1, &scales).unwrap(), [0; 16]);
    let negative = scaled_quantize(&[-1.0], 1, 1, Minifloat::F8E4M3, &Scales::PerTensor(0.0)).unwrap();
    assert_eq!(negative, [0]);
}

#[test]
fn c08_scales_lie_along_k_row_by_row() {
    // 1, in E4M3.
    let codes = [0x38; 2 * 5];
    let scales = Scales::E8m0 { block: 2, bytes: vec![127, 128, 129, 130, 131, 132] };
    let matrix = ScaledMatrix { rows: 2, k: 5, format: Minifloat::F8E4M3, codes: &codes, scales: &scales };
    let y = scaled_dequantize(&matrix).unwrap();
    assert_eq!(y, [1.0, 1.0, 2.0, 2.0, 4.0, 8.0, 8.0, 16.0, 16.0, 32.0]);
    let missing = Scales::default();
    let matrix = ScaledMatrix { scales: &missing, ..matrix };
    assert_eq!(scaled_dequantize(&matrix).unwrap(), [1.0; 10]);
}

#[test]
fn c08_nan_scales_and_codes_stay_nan() {
    let scales = Scales::E8m0 { block: 1, bytes: vec![255, 127] };
    let codes = [0x38, 0x7f];
    let matrix = ScaledMatrix { rows: 1, k: 2, format: Minifloat::F8E4M3, codes: &codes, scales: &scales };
    assert!(scaled_dequantize(&matrix).unwrap().iter().all(|y| y.is_nan()));
}

#[test]
fn c05_products_agree_with_f64() {
    let (m, n, k) = (3, 5, 45);
    let mut noise = Noise(11);
    for ((left, layout), (right, other)) in cases().zip(cases().skip(9).chain(cases())) {
        let (a, b, bias) = (noise.floats(m * k), noise.floats(n * k), noise.floats(n));
        let a_scales = scaled_quant_scale(&a, m, k, left, layout).unwrap();
        let b_scales = scaled_quant_scale(&b, n, k, right, other).unwrap();
        let a_codes = scaled_quantize(&a, m, k, left, &a_scales).unwrap();
        let b_codes = scaled_quantize(&b, n, k, right, &b_scales).unwrap();
        let lhs = ScaledMatrix { rows: m, k, format: left, codes: &a_codes, scales: &a_scales };
        let rhs = ScaledMatrix { rows: n, k, format: right, codes: &b_codes, scales: &b_scales };
        let plain = scaled_matmul(&lhs, &rhs, None).unwrap();
        let out = scaled_matmul(&lhs, &rhs, Some(&bias)).unwrap();
        for (at, (plain, out)) in plain.iter().zip(out).enumerate() {
            let (i, j) = (at / n, at % n);
            let terms = (0..k).map(|p| {
                let a = f64::from(left.decode(a_codes[i * k + p])) * scale_of(&a_scales, i, p, k);
                let b = f64::from(right.decode(b_codes[j * k + p])) * scale_of(&b_scales, j, p, k);
                (a * b, (a * b).abs())
            });
            let (sum, magnitude) = terms.fold((0.0, 0.0), |sums, term| (sums.0 + term.0, sums.1 + term.1));
            let bound = (k + 4) as f64 * 2f64.powi(-24) * magnitude;
            assert!((f64::from(*plain) - sum).abs() <= bound, "{left:?} {right:?}: {plain}, {sum}");
            assert_eq!(out, plain + bias[j]);
        }
    }
}

#[test]
fn c05_sums_are_in_order() {
    let custom = Minifloat::custom(7, 0, 63).unwrap();
    let scales = Scales::default();
    // 1 + 2^30 - 2^30, where 1 is lost.
    let codes = [63, 93, 93 | 0x80];
    let ones = [63; 3];
    let side = |codes| ScaledMatrix { rows: 1, k: 3, format: custom, codes, scales: &scales };
    assert_eq!(scaled_matmul(&side(&codes), &side(&ones), None).unwrap(), [0.0]);
    let turned = [93, 93 | 0x80, 63];
    assert_eq!(scaled_matmul(&side(&turned), &side(&ones), None).unwrap(), [1.0]);
}

#[test]
fn sizes_that_do_not_agree_are_errors() {
    let (format, scales) = (Minifloat::F6E2M3, Scales::default());
    let good = ScaledMatrix { rows: 2, k: 3, format, codes: &[1; 6], scales: &scales };
    let short = Scales::E8m0 { block: 2, bytes: vec![0; 3] };
    let no_block = Scales::E4m3 { block: 0, bytes: vec![] };
    for (bad, problem) in [
        (ScaledMatrix { codes: &[1; 5], ..good }, "5 elements"),
        (ScaledMatrix { rows: usize::MAX, ..good }, "overflows"),
        (ScaledMatrix { rows: 0, codes: &[], ..good }, "above 0"),
        (ScaledMatrix { codes: &[0, 0, 0, 0, 64, 0], ..good }, "code 4 is 0x40"),
        (ScaledMatrix { scales: &short, ..good }, "scales has 3 elements"),
        (ScaledMatrix { scales: &no_block, ..good }, "blocks of 0"),
    ] {
        for error in [
            scaled_dequantize(&bad).unwrap_err(),
            scaled_matmul(&bad, &good, None).unwrap_err(),
            scaled_matmul(&good, &bad, None).unwrap_err(),
        ] {
            assert!(error.code() == "bad-shape" && error.to_string().contains(problem), "{error}");
        }
    }
    let wider = ScaledMatrix { k: 2, rows: 3, ..good };
    assert!(
        scaled_matmul(&good, &wider, None).unwrap_err().to_string().contains("rows of 3 times rows of 2")
    );
    assert!(scaled_matmul(&good, &good, Some(&[0.0])).unwrap_err().to_string().contains("bias has 1"));
    assert!(scaled_quantize(&[0.0; 5], 2, 3, format, &scales).is_err());
    assert!(scaled_quantize(&[0.0; 6], 2, 3, format, &short).is_err());
    assert!(scaled_quant_scale(&[0.0; 5], 2, 3, format, ScaleLayout::PerTensor).is_err());
    assert!(scaled_quant_scale(&[0.0; 6], 2, 3, format, ScaleLayout::E8m0 { block: 0 }).is_err());
}
