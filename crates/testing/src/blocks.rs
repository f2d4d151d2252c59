//! Floats to GGML blocks, the simple way.

use half::{bf16, f16};

const BLOCK: usize = 32;

/// The number of a type in GGUF files. Panics on a name other than those of [`encode`].
pub fn type_id(name: &str) -> u32 {
    match name {
        "F32" => 0,
        "F16" => 1,
        "Q4_0" => 2,
        "Q4_1" => 3,
        "Q5_0" => 6,
        "Q5_1" => 7,
        "Q8_0" => 8,
        "BF16" => 30,
        _ => panic!("no encoder for {name}"),
    }
}

/// Encodes `values`, whole blocks of 32 for block types, as the type called `name`.
pub fn encode(name: &str, values: &[f32]) -> Vec<u8> {
    match name {
        "F32" => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        "F16" => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        "BF16" => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        _ => {
            assert!(values.len().is_multiple_of(BLOCK), "{} values are not whole blocks", values.len());
            values.chunks_exact(BLOCK).flat_map(|block| encode_block(name, block)).collect()
        }
    }
}

fn encode_block(name: &str, x: &[f32]) -> Vec<u8> {
    match name {
        "Q8_0" => {
            let (scale, codes) = symmetric(x, 127.0, -127, 127);
            scale.to_le_bytes().into_iter().chain(codes.iter().map(|&q| q as u8)).collect()
        }
        "Q4_0" => {
            let (scale, codes) = symmetric(x, 8.0, -8, 7);
            [&scale.to_le_bytes()[..], &nibbles(&codes, 8)].concat()
        }
        "Q5_0" => {
            let (scale, codes) = symmetric(x, 16.0, -16, 15);
            [&scale.to_le_bytes()[..], &high_bits(&codes, 16), &nibbles(&codes, 16)].concat()
        }
        "Q4_1" => {
            let (scale, min, codes) = affine(x, 15);
            [&scale.to_le_bytes()[..], &min.to_le_bytes(), &nibbles(&codes, 0)].concat()
        }
        "Q5_1" => {
            let (scale, min, codes) = affine(x, 31);
            [&scale.to_le_bytes()[..], &min.to_le_bytes(), &high_bits(&codes, 0), &nibbles(&codes, 0)]
                .concat()
        }
        _ => panic!("no encoder for {name}"),
    }
}

fn symmetric(x: &[f32], levels: f32, min: i32, max: i32) -> (f16, Vec<i32>) {
    let scale = f16::from_f32(x.iter().fold(0f32, |m, v| v.abs().max(m)) / levels);
    let inverse = if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() };
    (scale, x.iter().map(|v| ((v * inverse).round() as i32).clamp(min, max)).collect())
}

fn affine(x: &[f32], levels: i32) -> (f16, f16, Vec<i32>) {
    let low = x.iter().copied().fold(f32::INFINITY, f32::min);
    let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (scale, min) = (f16::from_f32((high - low) / levels as f32), f16::from_f32(low));
    let inverse = if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() };
    let code = |v: &f32| (((v - min.to_f32()) * inverse).round() as i32).clamp(0, levels);
    (scale, min, x.iter().map(code).collect())
}

fn nibbles(codes: &[i32], offset: i32) -> [u8; 16] {
    std::array::from_fn(|i| {
        let nibble = |q: i32| ((q + offset) & 15) as u8;
        nibble(codes[i]) | nibble(codes[i + 16]) << 4
    })
}

fn high_bits(codes: &[i32], offset: i32) -> [u8; 4] {
    let bits =
        codes.iter().enumerate().fold(0u32, |bits, (i, q)| bits | (((q + offset) >> 4 & 1) as u32) << i);
    bits.to_le_bytes()
}
