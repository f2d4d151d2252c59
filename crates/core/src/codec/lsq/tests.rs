use super::*;
use crate::codec::fake_quantize::{ScaleSource, fake_quantize};
use crate::codec::testing::Noise;

#[test]
fn c13_the_forward_pass_is_fake_quantisation_with_fixed_scales() {
    let channels = Channels::along(&[4, 3], 1).unwrap();
    let x = Noise(1).floats(12);
    for scales in [[0.01, 0.1, 0.3], [0.0, -1.0, 1e-20]] {
        let expected = fake_quantize(&x, &channels, 4, ScaleSource::Fixed(&scales)).unwrap();
        assert_eq!(lsq(&x, &channels, 4, &scales).unwrap(), expected.y);
    }
}

/// `sum of dy * y` in f64 with the rounding error of `z` held fixed, as its gradient is that of the identity.
fn held(x: &[f32], dy: &[f32], scale: f64, q_max: f64, scale_of_rounding: f64) -> f64 {
    let y = x.iter().map(|x| {
        let fixed = f64::from(*x) / scale_of_rounding;
        let z = f64::from(*x) / scale;
        if fixed.abs() <= q_max { (z + fixed.round() - fixed) * scale } else { q_max.copysign(fixed) * scale }
    });
    y.zip(dy).map(|(y, dy)| y * f64::from(*dy)).sum()
}

#[test]
fn c13_gradients_agree_with_finite_differences() {
    let channels = Channels::along(&[2, 50], 0).unwrap();
    let (x, dy) = (Noise(3).floats(100), Noise(4).floats(100));
    for bits in [2, 4, 8] {
        let q_max = f64::from(q_max(bits).unwrap());
        // Some values are clipped, some are not.
        let scales = [0.4 / q_max as f32, 0.7 / q_max as f32];
        let gradients = lsq_backward(&x, &dy, &channels, bits, &scales).unwrap();
        for (c, scale) in scales.map(f64::from).into_iter().enumerate() {
            let (x, dy) = (&x[c * 50..][..50], &dy[c * 50..][..50]);
            let clipped = x.iter().filter(|x| f64::from(x.abs()) > q_max * scale).count();
            assert!(clipped > 0 && clipped < 50, "{clipped}");
            let h = 1e-6 * scale;
            let [up, down] = [scale + h, scale - h].map(|s| held(x, dy, s, q_max, scale));
            let slope = (up - down) / (2.0 * h);
            let found = f64::from(gradients.dscales[c]);
            assert!((found - slope).abs() < 1e-4 * (1.0 + slope.abs()), "{bits} bits: {found}, {slope}");
            for (i, (x, dy)) in x.iter().zip(dy).enumerate() {
                let [up, down] = [1.0, -1.0].map(|side| {
                    let limit = q_max * scale;
                    (f64::from(*x) + side * h).clamp(-limit, limit) * f64::from(*dy)
                });
                let found = f64::from(gradients.dx[c * 50 + i]);
                assert!((found - (up - down) / (2.0 * h)).abs() < 1e-6, "{bits} bits: {x}");
            }
        }
    }
}

#[test]
fn c13_clipped_values_move_with_the_scale() {
    // Here the forward pass itself has the slope that the gradient says.
    let channels = Channels::per_tensor(2);
    let x = [100.0, -100.0];
    let gradients = lsq_backward(&x, &[1.0, -2.0], &channels, 4, &[0.5]).unwrap();
    assert_eq!(gradients, LsqGradients { dx: vec![0.0, 0.0], dscales: vec![7.0 + 14.0] });
    let [low, high] = [0.5, 0.75].map(|scale| lsq(&x, &channels, 4, &[scale]).unwrap());
    assert_eq!(((high[0] - low[0]) - 2.0 * (high[1] - low[1])) / 0.25, 21.0);
}

#[test]
fn c13_the_limit_itself_is_not_clipped() {
    let x = [3.5, 3.5f32.next_up(), -3.5, f32::NAN];
    let gradients = lsq_backward(&x[..3], &[1.0; 3], &Channels::per_tensor(3), 4, &[0.5]).unwrap();
    assert_eq!(gradients, LsqGradients { dx: vec![1.0, 0.0, 1.0], dscales: vec![7.0] });
    let gradients = lsq_backward(&x, &[1.0; 4], &Channels::per_tensor(4), 4, &[0.5]).unwrap();
    assert!(gradients.dscales[0].is_nan());
}

#[test]
fn sizes_that_do_not_agree_are_errors() {
    let channels = Channels::along(&[2, 2], 0).unwrap();
    let (four, three, two) = ([0.0; 4], [0.0; 3], [1.0; 2]);
    for error in [
        lsq(&three, &channels, 4, &two).unwrap_err(),
        lsq(&four, &channels, 4, &three).unwrap_err(),
        lsq(&four, &channels, 9, &two).unwrap_err(),
        lsq_backward(&three, &four, &channels, 4, &two).unwrap_err(),
        lsq_backward(&four, &three, &channels, 4, &two).unwrap_err(),
        lsq_backward(&four, &four, &channels, 4, &three).unwrap_err(),
        lsq_backward(&four, &four, &channels, 1, &two).unwrap_err(),
    ] {
        assert_eq!(error.code(), "bad-shape");
    }
}
