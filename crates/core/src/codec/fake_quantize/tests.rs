use super::*;
use crate::codec::testing::Noise;

#[test]
fn c12_values_become_the_nearest_that_codes_hold() {
    let channels = Channels::along(&[3, 40], 0).unwrap();
    for bits in 2..=8 {
        let limit = (1 << (bits - 1)) - 1;
        assert_eq!(q_max(bits).unwrap(), limit as f32);
        let x = Noise(bits.into()).floats(120);
        let FakeQuantized { y, scales } = fake_quantize(&x, &channels, bits, ScaleSource::PerBatch).unwrap();
        for ((x, y), scale) in x.chunks_exact(40).zip(y.chunks_exact(40)).zip(scales) {
            let absmax = x.iter().fold(0f32, |m, x| m.max(x.abs()));
            assert_eq!(scale, absmax / limit as f32);
            for (x, y) in x.iter().zip(y) {
                let values = (-limit..=limit).map(|code| code as f32 * scale);
                let least = values.clone().map(|value| (value - x).abs()).fold(f32::INFINITY, f32::min);
                assert!(values.clone().any(|value| value == *y), "{y} is a value of {bits} bits");
                assert!((y - x).abs() <= least + 1e-6 * scale, "{bits} bits: {x} became {y}");
            }
        }
    }
}

#[test]
fn c12_halves_round_away_from_zero_and_values_clamp() {
    let x = [0.25, -0.25, 0.75, 1e9, -1e9];
    let out = fake_quantize(&x, &Channels::per_tensor(5), 2, ScaleSource::Fixed(&[0.5])).unwrap();
    assert_eq!(out, FakeQuantized { y: vec![0.5, -0.5, 0.5, 0.5, -0.5], scales: vec![0.5] });
}

#[test]
fn c12_scales_have_a_least_value() {
    let channels = Channels::per_tensor(2);
    for source in [ScaleSource::PerBatch, ScaleSource::Fixed(&[-1.0]), ScaleSource::Fixed(&[f32::NAN])] {
        let out = fake_quantize(&[0.0, -0.0], &channels, 8, source).unwrap();
        assert_eq!(out, FakeQuantized { y: vec![0.0, 0.0], scales: vec![MIN_SCALE] });
    }
}

#[test]
fn c12_the_average_moves_and_is_the_scale() {
    let channels = Channels::along(&[2, 2], 0).unwrap();
    let mut state = [0.0, 0.5];
    let x = [1.0, -7.0, 3.5, 0.0];
    let ema = ScaleSource::Ema { decay: 0.75, state: &mut state };
    let out = fake_quantize(&x, &channels, 4, ema).unwrap();
    // 7 / 7 is taken as it is where there was nothing; 0.75 * 0.5 + 0.25 * 0.5.
    assert_eq!(state, [1.0, 0.5]);
    assert_eq!(out, FakeQuantized { y: vec![1.0, -7.0, 3.5, 0.0], scales: vec![1.0, 0.5] });
    let ema = ScaleSource::Ema { decay: 0.75, state: &mut state };
    let out = fake_quantize(&[21.0, 0.0, 0.0, 7.0], &channels, 4, ema).unwrap();
    assert_eq!(state, [1.5, 0.625]);
    assert_eq!(out, FakeQuantized { y: vec![10.5, 0.0, 0.0, 4.375], scales: vec![1.5, 0.625] });
}

#[test]
fn c12_what_cannot_be_is_an_error_and_leaves_the_state() {
    let channels = Channels::along(&[2, 2], 0).unwrap();
    for bits in [0, 1, 9, u32::MAX] {
        let error = fake_quantize(&[0.0; 4], &channels, bits, ScaleSource::PerBatch).unwrap_err();
        assert!(error.to_string().contains("codes have 2 to 8"), "{error}");
        assert!(fake_quantize_backward(&[0.0; 4], &[0.0; 4], &channels, bits, &[1.0; 2], Ste::Tanh).is_err());
    }
    let mut state = [0.25, 0.5];
    for decay in [-0.1, 1.1, f32::NAN] {
        let source = ScaleSource::Ema { decay, state: &mut state };
        let error = fake_quantize(&[1.0; 4], &channels, 8, source).unwrap_err();
        assert!(error.code() == "bad-shape" && error.to_string().contains("decay"), "{error}");
    }
    let source = ScaleSource::Ema { decay: 0.5, state: &mut state };
    assert!(fake_quantize(&[1.0; 3], &channels, 8, source).is_err());
    assert_eq!(state, [0.25, 0.5]);
    let source = ScaleSource::Ema { decay: 0.5, state: &mut state[..1] };
    assert!(fake_quantize(&[1.0; 4], &channels, 8, source).is_err());
    assert!(fake_quantize(&[1.0; 4], &channels, 8, ScaleSource::Fixed(&[1.0; 3])).is_err());
    let backward = |x: &[f32], dy: &[f32], scales: &[f32]| {
        fake_quantize_backward(x, dy, &channels, 8, scales, Ste::Identity).map_err(|error| error.to_string())
    };
    assert!(backward(&[0.0; 3], &[0.0; 4], &[1.0; 2]).unwrap_err().contains("x: 3"));
    assert!(backward(&[0.0; 4], &[0.0; 5], &[1.0; 2]).unwrap_err().contains("dy: 5"));
    assert!(backward(&[0.0; 4], &[0.0; 4], &[1.0; 1]).unwrap_err().contains("scales: 1"));
}

/// What an estimator is the derivative of, in f64.
fn stand_in(ste: Ste, x: f64, scale: f64, q_max: f64) -> f64 {
    let limit = q_max * scale;
    match ste {
        Ste::Identity => x,
        Ste::ClippedIdentity => x.clamp(-limit, limit),
        Ste::Tanh => scale * (x / scale).tanh(),
        // The integral of 1 - |x| / limit, constant beyond.
        Ste::HardTanh => {
            let x = x.clamp(-limit, limit);
            x - x * x.abs() / (2.0 * limit)
        }
    }
}

#[test]
fn c13_estimators_are_the_derivatives_of_what_they_stand_for() {
    for ste in [Ste::Identity, Ste::ClippedIdentity, Ste::Tanh, Ste::HardTanh] {
        for (bits, scale) in [(2, 0.5f32), (4, 0.125), (8, 0.01)] {
            let q_max = q_max(bits).unwrap();
            let x: Vec<f32> = (-41..=41).map(|i| i as f32 / 31.0 * q_max * scale).collect();
            let dy = Noise(2).floats(x.len());
            let channels = Channels::per_tensor(x.len());
            let dx = fake_quantize_backward(&x, &dy, &channels, bits, &[scale], ste).unwrap();
            for ((x, dy), dx) in x.iter().zip(dy).zip(dx) {
                let (x, dy, s, q) = (f64::from(*x), f64::from(dy), f64::from(scale), f64::from(q_max));
                let h = 1e-5 * s;
                if (x.abs() - q * s).abs() < 2.0 * h {
                    // A kink.
                    continue;
                }
                let slope = (stand_in(ste, x + h, s, q) - stand_in(ste, x - h, s, q)) / (2.0 * h);
                let error = (f64::from(dx) - dy * slope).abs();
                assert!(error < 3e-5, "{ste:?} {bits} bits at {x}: {dx}, expected {}", dy * slope);
            }
        }
    }
}

#[test]
fn c13_a_clipped_gradient_passes_up_to_the_limit() {
    let x = [63.5, -63.5, 63.5f32.next_up(), f32::NAN, f32::INFINITY];
    let dx = fake_quantize_backward(
        &x,
        &[2.0, 3.0, 4.0, 5.0, f32::INFINITY],
        &Channels::per_tensor(5),
        8,
        &[0.5],
        Ste::ClippedIdentity,
    );
    assert_eq!(dx.unwrap(), [2.0, 3.0, 0.0, 0.0, 0.0]);
}

#[test]
fn c12_c13_the_backward_pass_has_the_scale_of_the_forward_pass() {
    // The average of the past is small, so that of this batch would clip nothing.
    let (channels, mut state) = (Channels::per_tensor(3), [0.25]);
    let x = [0.5, 1.0, 7.0];
    let source = ScaleSource::Ema { decay: 0.8, state: &mut state };
    let out = fake_quantize(&x, &channels, 4, source).unwrap();
    let clipped = out.scales[0] * 7.0;
    assert!(clipped < 3.0 && out.y[2] == clipped, "the forward pass clips 7 to {clipped}");
    let gradient = |scales: &[f32], ste| fake_quantize_backward(&x, &[1.0; 3], &channels, 4, scales, ste);
    assert_eq!(gradient(&out.scales, Ste::ClippedIdentity).unwrap(), [1.0, 1.0, 0.0]);
    assert_eq!(gradient(&out.scales, Ste::HardTanh).unwrap()[2], 0.0);
    assert_eq!(gradient(&[1.0], Ste::ClippedIdentity).unwrap(), [1.0; 3], "with this batch's scale");
}
