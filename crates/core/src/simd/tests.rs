//! Every ISA equals [`Scalar`], bit for bit, on every method.

use super::{LANES, Scalar, Simd};

/// Bits of the lanes of `v`.
fn bits<S: Simd>(s: S, v: S::F32) -> [u32; LANES] {
    let mut out = [0.0; LANES];
    s.store(v, &mut out);
    out.map(f32::to_bits)
}

fn ints<S: Simd>(s: S, v: S::I32) -> [i32; LANES] {
    let mut out = [0; LANES];
    s.store_i32(v, &mut out);
    out
}

/// Finite floats of all magnitudes, signed zeros, denormals, ties and values at the limits of f16.
fn floats() -> Vec<[f32; LANES]> {
    let special = [
        0.0,
        -0.0,
        0.5,
        1.5,
        2.5,
        -0.5,
        f32::MIN_POSITIVE,
        1e-45,
        -3e-41,
        65504.0,
        65519.9,
        65520.0,
        -1e9,
        5.960_464_5e-8,
        2.980_232_2e-8,
        6.103_515_6e-5,
    ];
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state
    };
    let mut rows = vec![special];
    rows.extend((0..200).map(|_| std::array::from_fn(|_| f32::from_bits(next() & 0xbfff_ffff))));
    // Around the halves: exponents from below the smallest denormal to above the largest half.
    rows.extend((0..400).map(|_| {
        std::array::from_fn(|_| {
            let exponent = 127 - 26 + next() % 44;
            f32::from_bits((next() & 0x807f_ffff) | (exponent << 23))
        })
    }));
    rows
}

fn check<S: Simd>(s: S) {
    let rows = floats();
    for pair in rows.windows(2) {
        let (x, y) = (&pair[0], &pair[1]);
        let (a, b) = (s.load(x), s.load(y));
        assert_eq!(bits(s, s.add(a, b)), bits(Scalar, Scalar.add(*x, *y)), "add {x:?} {y:?}");
        assert_eq!(bits(s, s.sub(a, b)), bits(Scalar, Scalar.sub(*x, *y)), "sub {x:?} {y:?}");
        assert_eq!(bits(s, s.mul(a, b)), bits(Scalar, Scalar.mul(*x, *y)), "mul {x:?} {y:?}");
        assert_eq!(bits(s, s.max(a, b)), bits(Scalar, Scalar.max(*x, *y)), "max {x:?} {y:?}");
        assert_eq!(bits(s, s.min(a, b)), bits(Scalar, Scalar.min(*x, *y)), "min {x:?} {y:?}");
        assert_eq!(bits(s, s.abs(a)), bits(Scalar, Scalar.abs(*x)), "abs {x:?}");
        assert_eq!(bits(s, s.round(a)), bits(Scalar, Scalar.round(*x)), "round {x:?}");
        assert_eq!(s.reduce_add(a).to_bits(), Scalar.reduce_add(*x).to_bits(), "reduce_add {x:?}");
        assert_eq!(s.reduce_max(a).to_bits(), Scalar.reduce_max(*x).to_bits(), "reduce_max {x:?}");

        let divisor = y.map(|y| if y == 0.0 { 3.0 } else { y });
        let quotient = s.div(a, s.load(&divisor));
        assert_eq!(bits(s, quotient), bits(Scalar, Scalar.div(*x, divisor)), "div {x:?} {divisor:?}");

        let (mut half, mut expected) = ([0; LANES], [0; LANES]);
        s.store_f16(a, &mut half);
        Scalar.store_f16(*x, &mut expected);
        assert_eq!(half, expected, "store_f16 {x:?}");

        let integral = x.map(|x| (x % 1e9).round_ties_even());
        let converted = s.f32_to_i32(s.load(&integral));
        assert_eq!(ints(s, converted), Scalar.f32_to_i32(integral), "f32_to_i32 {integral:?}");
    }
    for x in &rows {
        let x = x.map(|x| x.to_bits() as i32);
        let a = s.load_i32(&x);
        let one = s.splat_i32(0x0123_4567);
        assert_eq!(ints(s, a), x);
        assert_eq!(ints(s, s.add_i32(a, one)), Scalar.add_i32(x, [0x0123_4567; LANES]));
        assert_eq!(ints(s, s.sub_i32(one, a)), Scalar.sub_i32([0x0123_4567; LANES], x));
        assert_eq!(ints(s, s.shl_i32::<23>(a)), Scalar.shl_i32::<23>(x));
        assert_eq!(bits(s, s.i32_to_f32(a)), bits(Scalar, Scalar.i32_to_f32(x)), "i32_to_f32 {x:?}");
        assert_eq!(bits(s, s.bits_to_f32(a)), x.map(|x| x as u32));
    }
    assert_eq!(bits(s, s.splat(1.25)), [1.25f32.to_bits(); LANES]);
    // The tree: any other order of these sums gives another number.
    let tree: [f32; LANES] = std::array::from_fn(|i| 1.0 + 0.1 * i as f32 * 10f32.powi(i as i32 - 8));
    assert_eq!(s.reduce_add(s.load(&tree)).to_bits(), Scalar.reduce_add(tree).to_bits());

    // Every finite half.
    for start in (0..=u16::MAX).step_by(LANES) {
        let halves: [u16; LANES] = std::array::from_fn(|i| start + i as u16);
        if halves[0] & 0x7c00 == 0x7c00 {
            continue;
        }
        let wide = s.load_f16(&halves);
        assert_eq!(bits(s, wide), bits(Scalar, Scalar.load_f16(&halves)), "load_f16 {halves:?}");
        let mut back = [0; LANES];
        s.store_f16(wide, &mut back);
        assert_eq!(back, halves);
    }
}

#[test]
fn scalar_max_and_min_return_their_second_operand_when_equal() {
    check(Scalar);
    assert_eq!(bits(Scalar, Scalar.max([0.0; LANES], [-0.0; LANES])), [(-0.0f32).to_bits(); LANES]);
    assert_eq!(bits(Scalar, Scalar.min([-0.0; LANES], [0.0; LANES])), [0; LANES]);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn avx2_equals_scalar() {
    super::Avx2::new().into_iter().for_each(check);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn avx512_equals_scalar() {
    super::Avx512::new().into_iter().for_each(check);
}

#[cfg(target_arch = "aarch64")]
#[test]
fn neon_equals_scalar() {
    super::Neon::new().into_iter().for_each(check);
    super::NeonDotprod::new().into_iter().for_each(check);
    super::NeonI8mm::new().into_iter().for_each(check);
}

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
#[test]
fn wasm_equals_scalar() {
    check(super::Wasm::new());
}

#[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
#[test]
fn wasm_relaxed_equals_scalar() {
    check(super::WasmRelaxed::new());
}
