//! The naive oracle of the kernels: plain loops that follow the accuracy contract word for word. Never optimised.

use crate::activation::Activations;
use crate::format::{BLOCK_K, Codes, PackedMatrix, ScaleForm, TILE_N};

/// A quantised block of a row: codes, their scale, their sum.
pub(crate) struct Block {
    pub codes: Vec<i32>,
    pub scale: f32,
    pub sum: i32,
}

/// Quantises one row (finite values).
pub(crate) fn quantize(x: &[f32], activations: Activations) -> Vec<Block> {
    let max: f32 = match activations {
        Activations::A8 => 127.0,
        Activations::A16 => 16256.0,
    };
    x.chunks(BLOCK_K)
        .map(|x| {
            let m = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            let (r, scale) = if m > 0.0 && (max / m).is_finite() { (max / m, m / max) } else { (0.0, 1.0) };
            let codes: Vec<i32> =
                x.iter().map(|x| (x * r).round_ties_even().clamp(-max, max) as i32).collect();
            Block { sum: codes.iter().sum(), codes, scale }
        })
        .collect()
}

/// The stored code of column `n` and input `k`.
pub(crate) fn code(w: &PackedMatrix, n: usize, k: usize) -> i32 {
    let block = n / TILE_N * w.k.div_ceil(BLOCK_K) + k / BLOCK_K;
    let (lane, k) = (n % TILE_N, k % BLOCK_K);
    if w.format.spec().codes == Codes::I8 {
        return i32::from(w.w[block * 512 + k / 4 * 64 + lane * 4 + k % 4] as i8);
    }
    let byte = w.w[block * 256 + k / 8 * 64 + lane * 4 + k % 4];
    let low = i32::from(if k % 8 < 4 { byte & 15 } else { byte >> 4 });
    if w.format.spec().codes == Codes::U4 {
        return low;
    }
    let word = &w.x[block * 64 + lane * 4..][..4];
    let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    low | ((word >> (8 * (k % 4) + k / 4) & 1) << 4) as i32
}

/// The float of column `n` and input `k` of a raw format.
fn float(w: &PackedMatrix, n: usize, k: usize) -> f32 {
    let at = (n / TILE_N * w.k.next_multiple_of(BLOCK_K) + k) * TILE_N + n % TILE_N;
    let half = |i: usize| u16::from_le_bytes([w.w[i], w.w[i + 1]]);
    match w.format {
        crate::Format::F16 => half::f16::from_bits(half(at * 2)).to_f32(),
        crate::Format::Bf16 => half::bf16::from_bits(half(at * 2)).to_f32(),
        _ => f32::from_bits(u32::from(half(at * 4)) | u32::from(half(at * 4 + 2)) << 16),
    }
}

/// The scale or min of column `n` in block `b`.
fn scale(plane: &[u8], blocks: usize, n: usize, b: usize) -> f32 {
    let at = ((n / TILE_N * blocks + b) * TILE_N + n % TILE_N) * 2;
    half::f16::from_le_bytes([plane[at], plane[at + 1]]).to_f32()
}

/// `y[n]` for one row `x`.
pub(crate) fn matmul_row(x: &[f32], w: &PackedMatrix, activations: Activations) -> Vec<f32> {
    let spec = w.format.spec();
    if spec.codes == Codes::Float {
        return (0..w.n).map(|n| (0..w.k).fold(0.0, |sum, k| sum + x[k] * float(w, n, k))).collect();
    }
    let row = quantize(x, activations);
    let column = |n: usize| {
        let mut acc = 0.0f32;
        for (b, block) in row.iter().enumerate() {
            let p: i32 = block.codes.iter().enumerate().map(|(k, a)| a * code(w, n, b * BLOCK_K + k)).sum();
            let s = scale(&w.s, row.len(), n, b);
            let term = if spec.scale == ScaleForm::F16Min {
                p as f32 * s + block.sum as f32 * scale(&w.m, row.len(), n, b)
            } else {
                (p - spec.offset * block.sum) as f32 * s
            };
            acc += term * block.scale;
        }
        acc
    };
    (0..w.n).map(column).collect()
}
