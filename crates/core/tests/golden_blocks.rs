//! Imported blocks have the values that the `gguf` package of Python gives them (tests/golden/ggml_blocks.py), and come out
//! again as its bytes.

#![allow(clippy::unwrap_used)]

use lowbit_core::pack::{GgmlType, Origin, Planes, matrix_from_ggml};
use std::collections::BTreeMap;

#[derive(serde::Deserialize)]
struct Case {
    bytes: String,
    values: String,
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .as_chunks::<2>()
        .0
        .iter()
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn values_are_those_of_the_gguf_package() {
    let json = include_str!("../../../tests/golden/ggml_blocks.json");
    let cases: BTreeMap<String, Case> = serde_json::from_str(json).unwrap();
    let packable: Vec<_> =
        lowbit_core::pack::GGML_TYPES.iter().filter(|t| t.format.is_some()).map(|t| t.name).collect();
    assert!(packable.iter().all(|name| cases.contains_key(*name)), "a case for each of {packable:?}");
    for (name, case) in cases {
        let ty = GgmlType::from_name(&name).unwrap();
        let (mut bytes, values) = (unhex(&case.bytes), unhex(&case.values));
        let values = values.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
        // Rows of one block, so that every lane of a tile is used at some place.
        let k = ty.block().max(32);
        let n = values.len() / k;
        let origin = Origin { file: "golden", tensor: &name };
        let matrix = matrix_from_ggml(ty, n, k, &bytes, origin).unwrap();
        let mut found = vec![0.0; n * k];
        for (row, found) in found.chunks_exact_mut(k).enumerate() {
            matrix.dequantize_row(row, found);
        }
        for (i, (found, expected)) in found.iter().zip(values).enumerate() {
            // Zeros are equal, whatever their sign.
            assert_eq!(*found, expected, "{name} value {i}");
        }
        let (mut planes, mut back) = (Planes::new(matrix.format, 0, k).unwrap(), Vec::new());
        planes.pack_ggml(ty, n, &bytes, origin).unwrap();
        planes.unpack_ggml(ty, n, &mut back, origin).unwrap();
        if name == "NVFP4" {
            // A scale that is no number counts as 0, and becomes it.
            for block in bytes.chunks_exact_mut(36) {
                block[..4].iter_mut().filter(|scale| **scale == 0x7f).for_each(|scale| *scale = 0);
            }
        }
        // Several bytes hold the same digits to base 3; one of them is written.
        if name != "TQ1_0" {
            assert_eq!(back, bytes, "{name}");
        }
        let mut again = Planes::new(matrix.format, 0, k).unwrap();
        again.pack_ggml(ty, n, &back, origin).unwrap();
        assert_eq!(again.all(), planes.all(), "{name}");
    }
}
