use super::*;
use crate::codec::scale::decode_e8m0;
use crate::codec::testing::{golden_bytes, golden_json};

const KNOWN: [(&str, Minifloat); 7] = [
    ("F8E4M3", Minifloat::F8E4M3),
    ("F8E5M2", Minifloat::F8E5M2),
    ("F8E4M3FNUZ", Minifloat::F8E4M3FNUZ),
    ("F8E5M2FNUZ", Minifloat::F8E5M2FNUZ),
    ("F6E2M3", Minifloat::F6E2M3),
    ("F6E3M2", Minifloat::F6E3M2),
    ("F4E2M1", Minifloat::F4E2M1),
];

/// The field of a format in `minifloat.json`, in bytes.
fn golden(format: &str, field: &str) -> Vec<u8> {
    const JSON: &str = include_str!("../../../../../tests/golden/minifloat.json");
    golden_bytes(&golden_json(JSON)[format][field])
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_be_bytes(*b)).collect()
}

/// All formats without specials, with the lowest, a usual and the highest bias.
fn customs() -> impl Iterator<Item = Minifloat> {
    let sizes = (1..=7u32).flat_map(|e| (0..=7 - e).map(move |m| (e, m)));
    sizes.flat_map(|(e, m)| {
        let biases = [(1 << e) - 128, (1 << (e - 1)) - 1, 150 - m as i32];
        biases.map(|bias| Minifloat::custom(e, m, bias).unwrap())
    })
}

/// All codes with finite values.
fn finite(format: Minifloat) -> Vec<(u8, f32)> {
    let codes = 0..=((1u16 << format.bits()) - 1) as u8;
    codes.map(|code| (code, format.decode(code))).filter(|(_, value)| value.is_finite()).collect()
}

/// The rule of [`Minifloat::encode`], as a search.
fn nearest(format: Minifloat, finite: &[(u8, f32)], x: f32) -> u8 {
    // Nearer than that, differences are exact in f64 wherever they nearly agree.
    let limit = (2.0 * format.max_finite()).min(f32::MAX);
    let x = x.clamp(-limit, limit);
    let (mut best, mut least) = (0, f64::INFINITY);
    for &(code, value) in finite {
        let even = |code: u8| format.mantissa_bits() == 0 || code & 1 == 0;
        let distance = (f64::from(value) - f64::from(x)).abs();
        if distance < least || distance == least && even(code) && !even(best) {
            (best, least) = (code, distance);
        }
    }
    best
}

#[test]
fn c03_c05_codes_have_the_values_of_ml_dtypes() {
    for (name, format) in KNOWN {
        let values = floats(&golden(name, "values"));
        assert_eq!(values.len(), 1 << format.bits());
        for (code, expected) in (0..=255).zip(values) {
            let found = format.decode(code);
            let equal = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            assert!(equal, "{name} {code:#x}: {found}, expected {expected}");
        }
    }
    for (byte, expected) in (0..=255).zip(floats(&golden("E8M0", "values"))) {
        let found = decode_e8m0(byte);
        assert!(found == expected || found.is_nan() && expected.is_nan(), "{byte}: {found}, {expected}");
    }
}

#[test]
fn c05_values_get_the_codes_of_ml_dtypes() {
    for (name, format) in KNOWN {
        let (x, positive, negative) =
            (floats(&golden(name, "x")), golden(name, "positive"), golden(name, "negative"));
        let sign = 1 << (format.bits() - 1);
        for ((x, positive), negative) in x.iter().zip(positive).zip(negative) {
            assert_eq!(format.encode(*x), positive, "{name} {x:e}");
            // Negative zero is zero.
            let negative = if negative == sign { 0 } else { negative };
            assert_eq!(format.encode(-x), negative, "{name} {:e}", -x);
        }
    }
}

#[test]
fn c05_encoding_finds_the_nearest() {
    let formats = KNOWN.map(|(_, format)| format).into_iter();
    for format in formats.chain([Minifloat::custom(1, 6, 0).unwrap(), Minifloat::custom(7, 0, 63).unwrap()]) {
        let finite = finite(format);
        for high in 0..=u16::MAX {
            for low in [0, 1] {
                let x = f32::from_bits(u32::from(high) << 16 | low);
                let expected = if x.is_nan() { 0 } else { nearest(format, &finite, x) };
                assert_eq!(format.encode(x), expected, "{format:?} {x:e}");
            }
        }
    }
}

#[test]
fn c05_custom_formats_come_back_and_round_to_the_nearest() {
    for format in customs() {
        let finite = finite(format);
        assert_eq!(finite.len(), 1 << format.bits(), "all are finite: {format:?}");
        let sign = 1u8 << (format.bits() - 1);
        for &(code, value) in &finite {
            let back = if code == sign { 0 } else { code };
            assert_eq!(format.encode(value), back, "{format:?}");
            let next = finite.iter().map(|f| f.1).filter(|v| *v > value).fold(f32::INFINITY, f32::min);
            if next.is_finite() {
                // Halves first: the sum of the largest two is no f32.
                let middle = value / 2.0 + next / 2.0;
                for x in [value.next_up(), middle.next_down(), middle, middle.next_up(), next.next_down()] {
                    assert_eq!(format.encode(x), nearest(format, &finite, x), "{format:?} {x:e}");
                }
            }
        }
    }
}

#[test]
fn c05_encoding_saturates() {
    let largest = [448.0, 57344.0, 240.0, 57344.0, 7.5, 28.0, 6.0];
    for ((name, format), largest) in KNOWN.into_iter().zip(largest) {
        assert_eq!(format.max_finite(), largest, "{name}");
        for x in [largest, largest.next_up(), largest * 1.0625, largest * 2.0, f32::MAX, f32::INFINITY] {
            assert_eq!(format.decode(format.encode(x)), largest, "{name} {x}");
            assert_eq!(format.decode(format.encode(-x)), -largest, "{name} {x}");
        }
    }
}

#[test]
fn c05_nan_and_what_becomes_zero_are_code_0() {
    for (name, format) in KNOWN {
        let tiny = format.decode(1) / 2.0;
        for x in [f32::NAN, -f32::NAN, 0.0, -0.0, tiny, -tiny, f32::from_bits(1), -f32::from_bits(1)] {
            assert_eq!(format.encode(x), 0, "{name} {x}");
        }
        assert_eq!(format.encode(tiny.next_up()), 1, "{name}");
        assert_eq!(format.encode(-tiny.next_up()), 1 << (format.bits() - 1) | 1, "{name}");
    }
}

#[test]
fn c03_e4m3_has_finite_values_where_ieee_has_none() {
    for code in 0x78..=0x7e {
        let expected = 256.0 + 32.0 * f32::from(code - 0x78);
        assert_eq!(Minifloat::F8E4M3.decode(code), expected);
        assert_eq!(Minifloat::F8E4M3.decode(code | 0x80), -expected);
    }
    assert!(Minifloat::F8E4M3.decode(0x7f).is_nan() && Minifloat::F8E4M3.decode(0xff).is_nan());
}

#[test]
fn bits_above_a_code_are_ignored() {
    assert_eq!(Minifloat::F4E2M1.decode(0xf7), 6.0);
    assert_eq!(Minifloat::F6E2M3.decode(0xc1), 0.125);
}

#[test]
fn custom_formats_that_cannot_be_are_errors() {
    for (e, m, bias) in [(0, 3, 0), (8, 0, 0), (4, 4, 0), (u32::MAX, u32::MAX, 0), (1, 7, 0)] {
        assert_eq!(Minifloat::custom(e, m, bias).unwrap_err().code(), "bad-shape", "{e} {m}");
    }
    for (e, m, bias) in [(4, 3, -113), (4, 3, 148), (7, 0, -1), (2, 1, i32::MIN), (2, 1, i32::MAX)] {
        assert!(Minifloat::custom(e, m, bias).unwrap_err().to_string().contains("bias"), "{e} {m} {bias}");
    }
}
