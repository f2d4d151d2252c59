use super::*;
use half::f16;

const ORIGIN: Origin<'static> = Origin { file: "test.gguf", tensor: "t" };

/// Bytes that look random but are the same in every run.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Rows of blocks with random codes and finite scales.
fn blocks(ty: GgmlType, rows: usize, k: usize) -> Vec<u8> {
    let mut bytes = noise(ty.bytes_of(rows * k).unwrap(), 7);
    let block = ty.bytes_of(32).unwrap();
    for block in bytes.chunks_exact_mut(block) {
        let scale = f16::from_f32((f32::from(block[0]) - 100.0) / 512.0).to_le_bytes();
        block[..2].copy_from_slice(&scale);
        if matches!(ty.name(), "Q4_1" | "Q5_1") {
            let min = f16::from_f32(f32::from(block[3]) / -64.0).to_le_bytes();
            block[2..4].copy_from_slice(&min);
        }
    }
    bytes
}

/// The definition of the block types, written the long way round.
fn ggml_value(ty: GgmlType, block: &[u8], k: usize) -> f32 {
    let half_at = |i: usize| f16::from_le_bytes([block[i], block[i + 1]]).to_f32();
    let nibble = |codes: &[u8]| i32::from(if k < 16 { codes[k] & 15 } else { codes[k - 16] >> 4 });
    let bit = |high: &[u8]| i32::from(high[k / 8] >> (k % 8) & 1) << 4;
    let d = half_at(0);
    match ty.name() {
        "Q4_0" => (nibble(&block[2..]) - 8) as f32 * d,
        "Q4_1" => nibble(&block[4..]) as f32 * d + half_at(2),
        "Q5_0" => ((nibble(&block[6..]) | bit(&block[2..6])) - 16) as f32 * d,
        "Q5_1" => (nibble(&block[8..]) | bit(&block[4..8])) as f32 * d + half_at(2),
        "Q8_0" => f32::from(block[2 + k] as i8) * d,
        other => panic!("{other}"),
    }
}

#[test]
fn block_types_keep_their_values() {
    for name in ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"] {
        let ty = GgmlType::from_name(name).unwrap();
        for (n, k) in [(1, 32), (16, 64), (19, 96), (48, 32)] {
            let bytes = blocks(ty, n, k);
            let matrix = matrix_from_ggml(ty, n, k, &bytes, ORIGIN).unwrap();
            let mut row = vec![0.0; k];
            for (r, bytes) in bytes.chunks_exact(ty.bytes_of(k).unwrap()).enumerate() {
                matrix.dequantize_row(r, &mut row);
                for (i, value) in row.iter().enumerate() {
                    let block = &bytes[ty.bytes_of(i / 32 * 32).unwrap()..];
                    assert_eq!(*value, ggml_value(ty, block, i % 32), "{name} {n}x{k} row {r} k {i}");
                }
            }
        }
    }
}

#[test]
fn codes_lie_where_the_format_says() {
    let ty = GgmlType::from_name("Q4_0").unwrap();
    let mut bytes = blocks(ty, 32, 64);
    bytes.chunks_exact_mut(18).for_each(|b| b[2..].fill(0));
    // Row 17, k = 32 + 13: block 1, high nibble of byte 13 is k = 29, low nibble k = 13.
    bytes[(17 * 2 + 1) * 18 + 2 + 13] = 0x0b;
    let matrix = matrix_from_ggml(ty, 32, 64, &bytes, ORIGIN).unwrap();
    // Tile 1, block 1, granule 1 (k 8..16), column 1, byte 13 % 4 = 1, high nibble because (13 >> 2) & 1 = 1.
    let at = ((2 + 1) * 4 + 1) * 64 + 4 + 1;
    assert_eq!(matrix.w[at], 0xb0);
    assert_eq!(matrix.w.iter().filter(|&&b| b != 0).count(), 1);
}

#[test]
fn slices_equal_the_whole() {
    for name in ["Q4_1", "Q5_0", "Q8_0"] {
        let ty = GgmlType::from_name(name).unwrap();
        let (n, k) = (40, 64);
        let bytes = blocks(ty, n, k);
        let whole = matrix_from_ggml(ty, n, k, &bytes, ORIGIN).unwrap();
        let mut planes = Planes::new(whole.format, 0, k).unwrap();
        for first in (0..n).step_by(16) {
            let rows = 16.min(n - first);
            let row_bytes = ty.bytes_of(k).unwrap();
            planes.pack_ggml(ty, rows, &bytes[first * row_bytes..][..rows * row_bytes], ORIGIN).unwrap();
            let at = planes.offsets(first).unwrap();
            for (whole, part, at) in [
                (&whole.w, &planes.w, at.w),
                (&whole.x, &planes.x, at.x),
                (&whole.s, &planes.s, at.s),
                (&whole.m, &planes.m, at.m),
            ] {
                assert_eq!(&whole[at..][..part.len()], &part[..], "{name} row {first}");
            }
        }
    }
}

#[test]
fn padding_is_the_offset_with_zero_scale() {
    let ty = GgmlType::from_name("Q5_0").unwrap();
    let matrix = matrix_from_ggml(ty, 1, 32, &blocks(ty, 1, 32), ORIGIN).unwrap();
    let padded = PackedMatrix { n: 16, ..matrix };
    let mut row = [1.0; 32];
    padded.dequantize_row(9, &mut row);
    assert_eq!(row, [0.0; 32]);
    assert_eq!(u32::from_le_bytes(padded.x[4 * 9..][..4].try_into().unwrap()), u32::MAX);

    let values: Vec<f32> = (0..40).map(|i| i as f32).collect();
    let matrix = matrix_from_f32(Format::Q4, 40, &values, ORIGIN).unwrap();
    assert_eq!((matrix.n, matrix.k, matrix.w.len()), (1, 40, 512));
    assert_eq!(matrix.w[256 + 64], 0x88, "k 40..48 is padding");
}

#[test]
fn floats_are_kept() {
    for (name, size) in [("F32", 4), ("F16", 2), ("BF16", 2)] {
        let ty = GgmlType::from_name(name).unwrap();
        let values: Vec<f32> = (0..20 * 33).map(|i| (i as f32 - 300.0) * 0.5).collect();
        let bytes: Vec<u8> = match size {
            4 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            _ if name == "F16" => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect(),
        };
        let mut expected = vec![];
        ty.floats(&bytes, &mut expected, ORIGIN).unwrap();
        let matrix = matrix_from_ggml(ty, 20, 33, &bytes, ORIGIN).unwrap();
        let mut row = [0.0; 33];
        for (r, expected) in expected.chunks_exact(33).enumerate() {
            matrix.dequantize_row(r, &mut row);
            assert_eq!(row, expected, "{name} row {r}");
        }
    }
}

#[test]
fn quantised_floats_are_near() {
    let values: Vec<f32> = (0..17 * 64).map(|i| ((i * 7919 % 1000) as f32 - 500.0) / 400.0).collect();
    for (format, step) in [(Format::Q4, 1.25 / 7.0), (Format::Q8, 1.25 / 127.0)] {
        let matrix = matrix_from_f32(format, 64, &values, ORIGIN).unwrap();
        let mut row = [0.0; 64];
        for (r, expected) in values.chunks_exact(64).enumerate() {
            matrix.dequantize_row(r, &mut row);
            for (a, b) in row.iter().zip(expected) {
                assert!((a - b).abs() < step, "{a} {b}");
            }
        }
    }
}

#[test]
fn rows_with_one_scale_are_their_codes_and_steps() {
    let values: Vec<f32> = (0..19 * 72).map(|i| ((i * 7919 % 1000) as f32 - 500.0) / 400.0).collect();
    for format in [Format::C4, Format::C8, Format::P4] {
        let matrix = matrix_from_f32(format, 72, &values, ORIGIN).unwrap();
        let mut row = [0.0; 72];
        for (r, values) in values.chunks_exact(72).enumerate() {
            matrix.dequantize_row(r, &mut row);
            let quantized = quantize_channel(format, values).unwrap();
            for (k, value) in row.iter().enumerate() {
                let integer = i32::from(quantized.codes[k]) * i32::from(quantized.steps[k / 32]);
                assert_eq!(*value, quantized.scale * integer as f32, "{format:?} row {r} k {k}");
            }
        }
        let padded = PackedMatrix { n: 32, ..matrix };
        padded.dequantize_row(31, &mut row);
        assert_eq!(row, [0.0; 72], "{format:?}");
    }
    assert!(matrix_from_f32(Format::P4, 32, &[f32::NAN; 32], ORIGIN).is_err());
}

#[test]
fn blocks_become_floats_again() {
    let ty = GgmlType::from_name("Q4_1").unwrap();
    let bytes = blocks(ty, 3, 64);
    let (mut found, mut row) = (vec![7.0], [0.0; 64]);
    floats_of(ty, 64, &bytes, &mut found, ORIGIN).unwrap();
    let matrix = matrix_from_ggml(ty, 3, 64, &bytes, ORIGIN).unwrap();
    for (r, found) in found[1..].chunks_exact(64).enumerate() {
        matrix.dequantize_row(r, &mut row);
        assert_eq!(row, found);
    }
    assert_eq!(found.len(), 1 + 3 * 64);
    assert!(floats_of(ty, 64, &bytes[1..], &mut found, ORIGIN).is_err());
}

#[test]
fn bad_scales_of_rows_and_rows_too_long_are_named() {
    let values: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let matrix = matrix_from_f32(Format::P4, 32, &values, ORIGIN).unwrap();
    let with = |s: &[u8], c: &[u8], k: usize| {
        let mut planes = matrix.planes().map(Bytes::clone);
        (planes[2], planes[5]) = (Bytes::copy_of(s), Bytes::copy_of(c));
        PackedMatrix::new("t", Format::P4, 1, k, planes).unwrap_err().to_string()
    };
    let damaged = with(&[16; 16], &matrix.c, 32);
    assert!(damaged.contains("plane S, element 0 is 16"), "{damaged}");
    let damaged = with(&matrix.s, &f32::INFINITY.to_le_bytes().repeat(16), 32);
    assert!(damaged.contains("plane C, element 0 is inf"), "{damaged}");
    for (format, weight) in [(Format::C4, 8), (Format::C8, 128), (Format::P4, 15 * 8)] {
        let fits = |k: usize| k * 127 * weight <= i32::MAX as usize;
        assert!(fits(format.max_k()) && !fits(format.max_k() + 32), "{format:?}");
    }
    let most = Format::P4.max_k();
    let long = with(&matrix.s, &matrix.c, most + 32);
    assert!(long.contains("at most") && long.contains(&most.to_string()), "{long}");
    assert_eq!(Format::Q4.max_k(), usize::MAX);
}

#[test]
fn bad_blocks_are_named() {
    let ty = GgmlType::from_name("Q4_1").unwrap();
    for (at, what) in [(1, "scale"), (3, "min")] {
        let mut bytes = blocks(ty, 2, 64);
        bytes[3 * 20 + at] = 0x7e;
        let error = matrix_from_ggml(ty, 2, 64, &bytes, ORIGIN).unwrap_err().to_string();
        assert!(
            error.contains("test.gguf: tensor t: slice row 1: block 1") && error.contains(what),
            "{error}"
        );
    }
    let error = matrix_from_ggml(ty, 2, 48, &[], ORIGIN).unwrap_err().to_string();
    assert!(error.contains("rows of 48 are not whole Q4_1 blocks"), "{error}");
    let error = matrix_from_ggml(ty, 2, 64, &[0; 79], ORIGIN).unwrap_err().to_string();
    assert!(error.contains("79 bytes"), "{error}");
    let grid = GgmlType::from_name("IQ2_XXS").unwrap();
    let error = matrix_from_ggml(grid, 1, 256, &[0; 66], ORIGIN).unwrap_err();
    assert_eq!(error.code(), "unsupported");
    assert!(matrix_from_f32(Format::Q4, 32, &[f32::NAN; 32], ORIGIN).is_err());
    assert!(matrix_from_f32(Format::F32, 32, &[f32::INFINITY; 32], ORIGIN).is_err());
}

/// Blocks of random bytes, but for the exponents of halves and floats: those are finite.
fn random_blocks(ty: GgmlType, rows: usize, k: usize, seed: u64) -> Vec<u8> {
    let mut bytes = noise(ty.bytes_of(rows * k).unwrap(), seed);
    let block = ty.bytes_of(ty.block()).unwrap();
    let halves: &[usize] = match ty.name() {
        "F16" | "Q4_0" | "Q5_0" | "Q8_0" | "IQ4_NL" | "IQ4_XS" | "Q1_0" => &[0],
        "Q4_1" | "Q5_1" | "Q4_K" | "Q5_K" => &[0, 2],
        "Q2_K" => &[80, 82],
        "Q3_K" => &[108],
        "Q6_K" => &[208],
        "TQ1_0" => &[52],
        "TQ2_0" => &[64],
        "BF16" | "F32" | "MXFP4" | "NVFP4" => &[],
        other => panic!("where are the halves of {other}?"),
    };
    for block in bytes.chunks_exact_mut(block) {
        // A finite half has an exponent below 31; bfloat16 and f32 one below 255.
        halves.iter().for_each(|at| block[at + 1] &= if block[at + 1] & 0x7c == 0x7c { 0xfb } else { 0xff });
        if matches!(ty.name(), "BF16" | "F32") {
            block[block.len() - 1] &= 0xbf;
        }
        match ty.name() {
            "MXFP4" => block[0] &= 0xfe,
            "NVFP4" => block[..4].iter_mut().for_each(|scale| *scale &= 0x7e),
            // The bytes that are written: those of numbers of five digits to base 3, or of four and a zero.
            "TQ1_0" => {
                for (i, byte) in block[..52].iter_mut().enumerate() {
                    let number = u16::from(*byte) % if i < 48 { 243 } else { 81 };
                    *byte = (number * if i < 48 { 1 } else { 3 } * 256).div_ceil(243) as u8;
                }
            }
            _ => {}
        }
    }
    bytes
}

#[test]
fn every_block_comes_back_byte_for_byte() {
    for spec in GGML_TYPES.iter().filter(|spec| spec.format.is_some()) {
        let ty = GgmlType::from_name(spec.name).unwrap();
        // Of two types of one format, the one that holds all of its codes.
        let of_format = if spec.name == "TQ1_0" { GgmlType::from_name("TQ2_0") } else { Some(ty) };
        assert_eq!(GgmlType::of_format(spec.format.unwrap()), of_format);
        for (seed, (n, blocks)) in [(1, 1), (16, 2), (19, 3), (48, 1)].into_iter().enumerate() {
            let k = ty.block().max(8) * blocks;
            let bytes = random_blocks(ty, n, k, seed as u64);
            let mut planes = Planes::new(spec.format.unwrap(), 0, k).unwrap();
            planes.pack_ggml(ty, n, &bytes, ORIGIN).unwrap();
            let mut back = vec![1; 7];
            planes.unpack_ggml(ty, n, &mut back, ORIGIN).unwrap();
            assert_eq!(back, bytes, "{} {n} x {k}", spec.name);
        }
    }
}

#[test]
fn the_extremes_come_back() {
    for (name, block) in [
        ("Q8_0", [&[0x00, 0x80][..], &[0x80; 32]].concat()),
        ("Q4_1", [&[0x00, 0x80, 0x00, 0x80][..], &[0xff; 16]].concat()),
        ("Q6_K", [&[0xff; 192][..], &[0x80; 16], &[0x01, 0x80]].concat()),
        ("F32", (-0f32).to_le_bytes().repeat(4)),
        ("F16", [0x00, 0x80, 0x01, 0x80, 0xff, 0x7b, 0xff, 0xfb].to_vec()),
    ] {
        let ty = GgmlType::from_name(name).unwrap();
        let k = ty.block().max(4);
        let mut planes = Planes::new(ty.format().unwrap(), 0, k).unwrap();
        planes.pack_ggml(ty, 1, &block, ORIGIN).unwrap();
        let mut back = Vec::new();
        planes.unpack_ggml(ty, 1, &mut back, ORIGIN).unwrap();
        assert_eq!(back, block, "{name}");
    }
}

#[test]
fn planes_that_no_block_can_hold_are_refused() {
    let pack = |name: &str| {
        let ty = GgmlType::from_name(name).unwrap();
        let mut planes = Planes::new(ty.format().unwrap(), 0, ty.block()).unwrap();
        planes.pack_ggml(ty, 2, &random_blocks(ty, 2, ty.block(), 3), ORIGIN).unwrap();
        (ty, planes)
    };
    let refusal = |ty: GgmlType, planes: &Planes| {
        planes.unpack_ggml(ty, 2, &mut Vec::new(), ORIGIN).unwrap_err().to_string()
    };
    for (name, scale, problem) in [
        ("Q2_K", 16, "scale 16 does not fit into 4 bits"),
        ("Q3_K", 32, "scale 32 does not fit into 6 bits"),
        ("Q3_K", 0x80, "scale -128 does not fit into 6 bits"),
        ("Q4_K", 64, "scale 64 does not fit into 6 bits"),
        ("Q5_K", 0xff, "scale -1 does not fit into 6 bits"),
    ] {
        let (ty, mut planes) = pack(name);
        planes.s[1] = scale;
        let message = refusal(ty, &planes);
        assert!(message.contains("tensor t: slice row 1: block 0") && message.contains(problem), "{message}");
    }
    for (name, min) in [("Q2_K", 1), ("Q4_K", 0x80), ("Q5_K", 0xc0)] {
        let (ty, mut planes) = pack(name);
        planes.m[1] = min;
        assert!(refusal(ty, &planes).contains("min "), "{name}");
    }
    let (ty, mut planes) = pack("Q4_0");
    planes.s[3] = 0x7c;
    assert!(refusal(ty, &planes).contains("slice row 1: block 0: scale is"));
    planes.s.pop();
    assert!(refusal(ty, &planes).contains("planes of q4 are not those of 2 rows of 32 as Q4_0"));
    let (ty, planes) = pack("Q4_1");
    assert!(refusal(GgmlType::from_name("Q4_0").unwrap(), &planes).contains("as Q4_0"));
    assert!(planes.unpack_ggml(ty, 17, &mut Vec::new(), ORIGIN).is_err());
    for name in ["F32", "F16", "BF16"] {
        let ty = GgmlType::from_name(name).unwrap();
        let mut planes = Planes::new(ty.format().unwrap(), 2, 8).unwrap();
        planes.w.fill(0xff);
        assert!(refusal(ty, &planes).contains("weight 0 is not finite"), "{name}");
    }
}

#[test]
fn rows_without_weights_are_refused() {
    let ty = GgmlType::from_name("Q4_0").unwrap();
    let mut planes = Planes::new(Format::Q4, 0, 0).unwrap();
    let error = planes.pack_ggml(ty, 1, &[], ORIGIN).unwrap_err().to_string();
    assert!(error.contains("rows of 0 are not whole Q4_0 blocks"), "{error}");
    assert!(planes.unpack_ggml(ty, 0, &mut Vec::new(), ORIGIN).is_err());
}
