use super::*;
use crate::codec::qmatmul::qmatmul;
use crate::codec::testing::Noise;

#[derive(Debug)]
struct Case {
    image: [usize; 4],
    weights: [usize; 4],
    conv: Conv2d,
}

fn cases() -> [Case; 6] {
    let plain = Conv2d::default();
    let case = |image, weights, conv| Case { image, weights, conv };
    [
        case([1, 3, 5, 6], [4, 3, 3, 3], plain),
        case([2, 4, 7, 5], [6, 2, 3, 2], Conv2d { groups: 2, padding: [1, 2], ..plain }),
        // One channel a group.
        case([1, 5, 6, 6], [10, 1, 3, 3], Conv2d { groups: 5, stride: [2, 1], padding: [1, 1], ..plain }),
        case(
            [1, 2, 9, 8],
            [3, 2, 2, 3],
            Conv2d { dilation: [3, 2], stride: [1, 3], padding: [0, 2], ..plain },
        ),
        // Outputs that see padding only.
        case([1, 1, 2, 2], [1, 1, 1, 1], Conv2d { padding: [3, 2], stride: [2, 2], ..plain }),
        case(
            [2, 6, 8, 7],
            [9, 2, 3, 3],
            Conv2d { groups: 3, stride: [2, 3], padding: [2, 1], dilation: [2, 1] },
        ),
    ]
}

/// Scatters every pixel of an image that is padded with the zero point to the outputs that see it.
fn scattered(case: &Case, x: &[i8], x_zero: i8, w: &[i8], w_zero: i8, bias: &[i32]) -> Vec<i32> {
    let ([batch, c_in, height, width], [c_out, c_of_group, kh, kw]) = (case.image, case.weights);
    let Conv2d { groups, stride: [sh, sw], padding: [ph, pw], dilation: [dh, dw] } = case.conv;
    let (tall, wide) = (height + 2 * ph, width + 2 * pw);
    let mut padded = vec![x_zero; batch * c_in * tall * wide];
    for (row, values) in x.chunks_exact(width).enumerate() {
        let (plane, row) = (row / height, row % height);
        padded[(plane * tall + row + ph) * wide + pw..][..width].copy_from_slice(values);
    }
    let (out_h, out_w) = ((tall - dh * (kh - 1) - 1) / sh + 1, (wide - dw * (kw - 1) - 1) / sw + 1);
    let mut out = vec![0; batch * c_out * out_h * out_w];
    for (i, pixel) in padded.iter().enumerate() {
        let (column, row, channel, b) =
            (i % wide, i / wide % tall, i / wide / tall % c_in, i / wide / tall / c_in);
        let group = channel / (c_in / groups);
        for tap in 0..kh * kw {
            let (ki, kj) = (tap / kw, tap % kw);
            if row < ki * dh || column < kj * dw || (row - ki * dh) % sh != 0 || (column - kj * dw) % sw != 0
            {
                continue;
            }
            let (ho, wo) = ((row - ki * dh) / sh, (column - kj * dw) / sw);
            if ho >= out_h || wo >= out_w {
                continue;
            }
            for co in group * (c_out / groups)..(group + 1) * (c_out / groups) {
                let weight = w[(co * c_of_group + channel % c_of_group) * kh * kw + tap];
                let product =
                    (i32::from(*pixel) - i32::from(x_zero)) * (i32::from(weight) - i32::from(w_zero));
                out[((b * c_out + co) * out_h + ho) * out_w + wo] += product;
            }
        }
    }
    for (i, out) in out.iter_mut().enumerate() {
        *out += bias[i / (out_h * out_w) % c_out];
    }
    out
}

/// Compares a convolution of made-up numbers with [`scattered`].
fn compare(case: &Case, noise: &mut Noise, x_zero: i8, w_zero: i8) {
    let x = noise.int8s(case.image.iter().product());
    let w = noise.int8s(case.weights.iter().product());
    let bias: Vec<i32> = (0..case.weights[0]).map(|_| noise.bits() as i32 >> 16).collect();
    let requant = Requant { multiplier: 2f32.powi(-10), zero_point: 3 };
    let found = qconv2d(
        &Int8Tensor { values: &x, shape: &case.image, zero_point: x_zero },
        &Int8Tensor { values: &w, shape: &case.weights, zero_point: w_zero },
        Some(&bias),
        &case.conv,
        requant,
    );
    let sums = scattered(case, &x, x_zero, &w, w_zero, &bias);
    let expected: Vec<i8> = sums.iter().map(|sum| requant.apply(i64::from(*sum))).collect();
    assert_eq!(found.unwrap(), expected, "{case:?}, zero points {x_zero} {w_zero}");
}

#[test]
fn c10_convolutions_agree_with_a_padded_image() {
    let mut noise = Noise(8);
    for case in cases() {
        for (x_zero, w_zero) in [(0, 0), (-77, 0), (100, -3)] {
            compare(&case, &mut noise, x_zero, w_zero);
        }
    }
}

#[test]
fn c10_small_convolutions_of_all_kinds_agree_with_a_padded_image() {
    let (mut noise, mut convolved) = (Noise(10), 0);
    for _ in 0..2000 {
        let mut to = |limit: u32| 1 + noise.below(limit) as usize;
        let (groups, c_of_group, of_group) = (to(3), to(2), to(2));
        let case = Case {
            image: [to(2), groups * c_of_group, to(6), to(6)],
            weights: [groups * of_group, c_of_group, to(4), to(4)],
            conv: Conv2d {
                groups,
                stride: [to(3), to(3)],
                padding: [to(4) - 1, to(4) - 1],
                dilation: [to(3), to(3)],
            },
        };
        // The kernel may not fit, and then nothing else is wrong.
        match case.conv.output_dims(case.image, case.weights) {
            Ok(_) => compare(&case, &mut noise, -9, 4),
            Err(error) => assert!(error.to_string().contains("does not fit"), "{error}"),
        }
        convolved += usize::from(case.conv.output_dims(case.image, case.weights).is_ok());
    }
    assert!((1000..2000).contains(&convolved), "{convolved}");
}

#[test]
fn c10_padding_is_the_zero_point() {
    let shape = [1, 1, 1, 1];
    let x = Int8Tensor { values: &[50], shape: &shape, zero_point: 50 };
    let w = Int8Tensor { values: &[1; 9], shape: &[1, 1, 3, 3], zero_point: 0 };
    let conv = Conv2d { padding: [1, 1], ..Conv2d::default() };
    let requant = Requant { multiplier: 1.0, zero_point: 0 };
    assert_eq!(
        qconv2d(&x, &w, None, &conv, requant).unwrap(),
        [0],
        "an image of zeros, seen with zeros around"
    );
}

#[test]
fn c10_a_kernel_of_one_pixel_is_a_product() {
    let (c_in, c_out, pixels) = (6, 4, 15);
    let mut noise = Noise(9);
    let (x, w) = (noise.int8s(c_in * pixels), noise.int8s(c_out * c_in));
    let requant = Requant { multiplier: 2f32.powi(-9), zero_point: -4 };
    let image = Int8Tensor { values: &x, shape: &[1, c_in, 3, 5], zero_point: 9 };
    let kernel = Int8Tensor { values: &w, shape: &[c_out, c_in, 1, 1], zero_point: -1 };
    let convolved = qconv2d(&image, &kernel, None, &Conv2d::default(), requant).unwrap();
    // W [c_out, c_in] times X [c_in, pixels].
    let left = Int8Tensor { shape: &[c_out, c_in], ..kernel };
    let right = Int8Tensor { shape: &[c_in, pixels], ..image };
    assert_eq!(convolved, qmatmul(&left, &right, None, requant).unwrap());
}

#[test]
fn c10_what_cannot_be_convolved_is_an_error() {
    let requant = Requant { multiplier: 1.0, zero_point: 0 };
    let plain = Conv2d::default();
    let error = |image: &[usize], weights: &[usize], conv: Conv2d| {
        let (x, w) = (vec![0; image.iter().product()], vec![0; weights.iter().product()]);
        let x = Int8Tensor { values: &x, shape: image, zero_point: 0 };
        let w = Int8Tensor { values: &w, shape: weights, zero_point: 0 };
        let error = qconv2d(&x, &w, None, &conv, requant).unwrap_err();
        assert_eq!(error.code(), "bad-shape");
        error.to_string()
    };
    // A convolution over one dimension, or three, is not one over two.
    assert!(error(&[1, 4, 8], &[2, 4, 3], plain).contains("4 dimensions"));
    assert!(error(&[1, 4, 8, 8], &[2, 4, 3], plain).contains("4 dimensions"));
    assert!(error(&[1, 4, 8, 8, 8], &[2, 4, 3, 3, 3], plain).contains("4 dimensions"));
    assert!(error(&[1, 4, 8, 8], &[3, 1, 3, 3], Conv2d { groups: 3, ..plain }).contains("3 groups of 4"));
    assert!(error(&[1, 4, 8, 8], &[3, 2, 3, 3], Conv2d { groups: 2, ..plain }).contains("channels to 3"));
    assert!(
        error(&[1, 4, 8, 8], &[2, 4, 3, 3], Conv2d { groups: 2, ..plain }).contains("4 channels a group")
    );
    assert!(error(&[1, 4, 8, 8], &[2, 4, 3, 3], Conv2d { groups: 0, ..plain }).contains("0 groups"));
    for conv in [Conv2d { stride: [0, 1], ..plain }, Conv2d { dilation: [1, 0], ..plain }] {
        assert!(error(&[1, 4, 8, 8], &[2, 4, 3, 3], conv).contains("above 0"));
    }
    let far = Conv2d { dilation: [1, 4], ..plain };
    assert!(error(&[1, 4, 8, 8], &[2, 4, 3, 3], far).contains("does not fit into 8"));
    for conv in [
        Conv2d { dilation: [usize::MAX, 1], ..plain },
        Conv2d { padding: [usize::MAX, 1], ..plain },
        Conv2d { padding: [usize::MAX / 2 - 4, 1], dilation: [usize::MAX, 1], ..plain },
    ] {
        assert!(error(&[1, 4, 8, 8], &[2, 4, 3, 3], conv).contains("does not fit"));
    }
    let wide = Conv2d { padding: [1 << 40, 1 << 40], ..plain };
    assert!(error(&[1, 4, 8, 8], &[2, 4, 3, 3], wide).contains("overflows"));
    assert!(plain.output_dims([1, 4, 8, 8], [2, 4, 0, 3]).is_err());
    assert_eq!(plain.output_dims([1, 4, 8, 8], [2, 4, 3, 3]).unwrap(), [1, 2, 6, 6]);
}
