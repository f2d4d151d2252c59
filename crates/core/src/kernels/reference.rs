//! The naive oracle of the kernels: plain loops that follow the accuracy contract word for word. Never optimised.

use crate::activation::Activations;
use crate::format::{BLOCK_K, Codes, PackedMatrix, SUPER_K, ScaleForm, TILE_N};

/// A quantised block of a row: codes and their scale.
pub(crate) struct Block {
    pub codes: Vec<i32>,
    pub scale: f32,
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
            Block { codes, scale }
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
    let field = |plane: &[u8], bits: usize| {
        let Some(of_word) = 32usize.checked_div(bits) else { return 0 };
        let word = &plane[((block * bits + k / of_word) * TILE_N + lane) * 4..][..4];
        let (byte, field) = (word[k % 4], k % of_word / 4);
        i32::from(byte >> (bits * field)) & ((1 << bits) - 1)
    };
    let [low, high] = w.format.spec().codes.fields();
    field(&w.w, low) | field(&w.x, high) << low
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

/// Element `i` of a plane of halves.
fn half(plane: &[u8], i: usize) -> f32 {
    half::f16::from_le_bytes([plane[2 * i], plane[2 * i + 1]]).to_f32()
}

/// Scale and min of column `n` in group `g` of its row.
fn scale(w: &PackedMatrix, n: usize, g: usize) -> (f32, f32) {
    let spec = w.format.spec();
    let groups = w.k.div_ceil(BLOCK_K) * (BLOCK_K / spec.group);
    let at = (n / TILE_N * groups + g) * TILE_N + n % TILE_N;
    let sub = |plane: &[u8]| f32::from(plane[at] as i8);
    let of_super = |parts: usize, part: usize| {
        let at = (n / TILE_N * (w.k / SUPER_K) + g * spec.group / SUPER_K) * parts + part;
        half(&w.d, at * TILE_N + n % TILE_N)
    };
    match spec.scale {
        ScaleForm::None => (1.0, 0.0),
        ScaleForm::F16 => (half(&w.s, at), 0.0),
        ScaleForm::F16Min => (half(&w.s, at), half(&w.m, at)),
        ScaleForm::Super => (of_super(1, 0) * sub(&w.s), 0.0),
        ScaleForm::SuperMin => (of_super(2, 0) * sub(&w.s), of_super(2, 1) * sub(&w.m)),
    }
}

/// `y[n]` for one row `x`.
pub(crate) fn matmul_row(x: &[f32], w: &PackedMatrix, activations: Activations) -> Vec<f32> {
    let spec = w.format.spec();
    if spec.codes == Codes::Float {
        return (0..w.n).map(|n| (0..w.k).fold(0.0, |sum, k| sum + x[k] * float(w, n, k))).collect();
    }
    let row = quantize(x, activations);
    let of_sum = spec.codes.summed();
    let column = |n: usize| {
        let mut acc = 0.0f32;
        for (b, block) in row.iter().enumerate() {
            let terms = block.codes.chunks(of_sum).enumerate().map(|(i, codes)| {
                let first = b * BLOCK_K + i * of_sum;
                let products = (first..).zip(codes).map(|(k, a)| a * code(w, n, k));
                let (p, sum): (i32, i32) = (products.sum(), codes.iter().sum());
                let (s, m) = scale(w, n, first / spec.group);
                let term = (p - spec.offset * sum) as f32 * s;
                if spec.scale.has_min() { term + sum as f32 * m } else { term }
            });
            let term = terms.reduce(|a, b| a + b).unwrap_or_default();
            acc += term * block.scale;
        }
        acc
    };
    (0..w.n).map(column).collect()
}
