use super::*;
use crate::codec::testing::Noise;

#[test]
fn c11_channels_are_the_indices_along_an_axis() {
    let shape = [2, 3, 4];
    for axis in 0..3 {
        let channels = Channels::along(&shape, axis).unwrap();
        assert_eq!((channels.count(), channels.elements()), (shape[axis], 24));
        let mut i = 0;
        for a in 0..2 {
            for b in 0..3 {
                for c in 0..4 {
                    assert_eq!(channels.of(i), [a, b, c][axis], "{a} {b} {c} along {axis}");
                    i += 1;
                }
            }
        }
    }
    let one = Channels::along(&[5, 1, 2], 1).unwrap();
    let whole = Channels::per_tensor(10);
    assert!((0..10).all(|i| one.of(i) == 0 && whole.of(i) == 0));
}

#[test]
fn c11_halves_round_away_from_zero_and_codes_saturate() {
    let x = [0.25, 0.75, -0.25, -0.75, 1.25, 63.4, 1e30, -1e30, f32::INFINITY, f32::NAN];
    let codes = quantize(&x, &Channels::per_tensor(10), &[0.5], &[0]).unwrap();
    assert_eq!(codes, [1, 2, -1, -2, 3, 127, 127, -128, 127, 0]);
    let codes = quantize(&x, &Channels::per_tensor(10), &[0.5], &[-100]).unwrap();
    assert_eq!(codes, [-99, -98, -101, -102, -97, 27, 127, -128, 127, -100]);
}

#[test]
fn c11_values_are_multiplied_by_the_reciprocal() {
    // The quotient is 7.4999995, the product 7.5.
    assert_eq!((2.25f32 / 0.3).round(), 7.0);
    assert_eq!(quantize(&[2.25], &Channels::per_tensor(1), &[0.3], &[0]).unwrap(), [8]);
}

#[test]
fn c11_zero_points_do_not_overflow() {
    let one = Channels::per_tensor(1);
    assert_eq!(quantize(&[1e30], &one, &[1.0], &[i32::MAX]).unwrap(), [127]);
    assert_eq!(quantize(&[1e30], &one, &[1.0], &[i32::MIN]).unwrap(), [-1]);
    assert_eq!(dequantize(&[127], &one, &[1.0], &[i32::MIN]).unwrap(), [2147483775f32]);
    assert_eq!(dequantize(&[-128], &one, &[0.5], &[i32::MAX]).unwrap(), [-1073741887f32]);
}

#[test]
fn c11_every_channel_has_its_scale_and_zero_point() {
    let (scales, zero_points) = ([0.5, 0.25, 2.0], [0, -7, 30]);
    let channels = Channels::along(&[2, 3, 4], 1).unwrap();
    let q = Noise(1).int8s(24);
    let x = dequantize(&q, &channels, &scales, &zero_points).unwrap();
    for (block, (q, x)) in q.chunks_exact(4).zip(x.chunks_exact(4)).enumerate() {
        let c = block % 3;
        for (q, x) in q.iter().zip(x) {
            assert_eq!(*x, (i32::from(*q) - zero_points[c]) as f32 * scales[c]);
        }
    }
    assert_eq!(quantize(&x, &channels, &scales, &zero_points).unwrap(), q);
}

#[test]
fn sizes_that_do_not_agree_are_errors() {
    for (shape, axis) in [(&[2, 3][..], 2), (&[], 0), (&[2, 0], 0), (&[usize::MAX, 2], 1)] {
        assert_eq!(Channels::along(shape, axis).unwrap_err().code(), "bad-shape", "{shape:?}");
    }
    let channels = Channels::along(&[2, 3], 1).unwrap();
    for (len, scales, zeros, what) in [(5, 3, 3, "x: 5"), (6, 2, 3, "scales: 2"), (6, 3, 1, "zero points: 1")]
    {
        let (x, q) = (vec![0.0; len], vec![0; len]);
        let (scales, zeros) = (vec![1.0; scales], vec![0; zeros]);
        let error = quantize(&x, &channels, &scales, &zeros).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
        assert!(dequantize(&q, &channels, &scales, &zeros).is_err());
    }
    assert_eq!(quantize(&[], &Channels::per_tensor(0), &[1.0], &[0]).unwrap(), [0i8; 0]);
}
