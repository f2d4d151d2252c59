//! Float weights to codes: one scale for 32 weights (scheme S1).

use super::BLOCK_K;
use half::f16;

/// Quantises a block to signed bytes in `-127..=127` with `scale = absmax / 127` as f16; `w = scale * code`.
///
/// `None` when a weight is not finite or the scale exceeds f16.
pub fn quantize_q8(weights: &[f32; BLOCK_K]) -> Option<(f16, [i8; BLOCK_K])> {
    let scale = f16::from_f32(absmax(weights)? / 127.0);
    if !scale.is_finite() {
        return None;
    }
    let codes = nearest::<-127, 127>(weights, scale.to_f32());
    Some((scale, codes))
}

/// Quantises a block to `-8..=7` with the f16 scale of either sign that leaves the smallest squared error among a
/// fixed list of clips, each refined once by least squares; `w = scale * code`. The stored code is `code + 8`.
///
/// `None` when a weight is not finite or the scale exceeds f16.
pub fn quantize_q4(weights: &[f32; BLOCK_K]) -> Option<(f16, [i8; BLOCK_K])> {
    /// The code, before rounding, that the weight of largest magnitude gets. Below 7 would waste range, above 8 clips.
    const CLIPS: [f32; 6] = [7.0, 7.5, 8.0, 8.5, 9.0, 9.6];
    let absmax = absmax(weights)?;
    let mut best = Candidate::new(weights, f16::ZERO);
    for clip in CLIPS {
        for sign in [-1.0, 1.0] {
            let first = Candidate::new(weights, f16::from_f32(sign * absmax / clip));
            let refined = Candidate::new(weights, least_squares(weights, &first.codes));
            for candidate in [first, refined] {
                if candidate.error < best.error {
                    best = candidate;
                }
            }
        }
    }
    // Weights so large that no scale is finite have left the starting candidate, all zeros, as the only one.
    (best.scale != f16::ZERO || absmax < 1.0).then_some((best.scale, best.codes))
}

struct Candidate {
    scale: f16,
    codes: [i8; BLOCK_K],
    /// Sum of squared differences; infinite for a scale that is not finite.
    error: f32,
}

impl Candidate {
    fn new(weights: &[f32; BLOCK_K], scale: f16) -> Self {
        let s = scale.to_f32();
        let codes = nearest::<-8, 7>(weights, s);
        let error = weights.iter().zip(codes).map(|(w, q)| (w - s * f32::from(q)).powi(2)).sum();
        Self { scale, codes, error: if scale.is_finite() { error } else { f32::INFINITY } }
    }
}

/// The scale that leaves the smallest squared error for given codes.
fn least_squares(weights: &[f32; BLOCK_K], codes: &[i8; BLOCK_K]) -> f16 {
    let pairs = || weights.iter().zip(codes).map(|(&w, &q)| (w, f32::from(q)));
    let norm: f32 = pairs().map(|(_, q)| q * q).sum();
    if norm == 0.0 {
        return f16::ZERO;
    }
    f16::from_f32(pairs().map(|(w, q)| w * q).sum::<f32>() / norm)
}

fn nearest<const MIN: i8, const MAX: i8>(weights: &[f32; BLOCK_K], scale: f32) -> [i8; BLOCK_K] {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    weights.map(|w| (w * inverse).round_ties_even().clamp(f32::from(MIN), f32::from(MAX)) as i8)
}

fn absmax(weights: &[f32; BLOCK_K]) -> Option<f32> {
    weights.iter().all(|w| w.is_finite()).then(|| weights.iter().fold(0.0, |m, w| w.abs().max(m)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp() -> [f32; BLOCK_K] {
        std::array::from_fn(|i| ((i * 37 % 32) as f32 - 15.3) * 0.02)
    }

    fn squared_error(weights: &[f32; BLOCK_K], scale: f16, codes: &[i8; BLOCK_K]) -> f32 {
        weights.iter().zip(codes).map(|(w, &q)| (w - scale.to_f32() * f32::from(q)).powi(2)).sum()
    }

    #[test]
    fn q8_is_within_half_a_step() {
        let (scale, codes) = quantize_q8(&ramp()).unwrap();
        for (w, q) in ramp().iter().zip(codes) {
            assert!((w - scale.to_f32() * f32::from(q)).abs() <= 0.51 * scale.to_f32());
        }
    }

    #[test]
    fn q4_beats_scaling_by_the_maximum() {
        let weights = ramp();
        let max = weights.iter().fold(0f32, |m, w| w.abs().max(m));
        let plain = f16::from_f32(max / 7.0);
        let plain_codes = nearest::<-8, 7>(&weights, plain.to_f32());
        let (scale, codes) = quantize_q4(&weights).unwrap();
        assert!(squared_error(&weights, scale, &codes) < squared_error(&weights, plain, &plain_codes));
    }

    #[test]
    fn representable_blocks_come_back_exactly() {
        let codes: [i8; BLOCK_K] = std::array::from_fn(|i| (i as i8 % 16) - 8);
        let weights = codes.map(|q| f32::from(q) * 0.125);
        let (scale, found) = quantize_q4(&weights).unwrap();
        assert_eq!((scale, found), (f16::from_f32(0.125), codes));
    }

    #[test]
    fn zeros_and_extremes() {
        let zeros = [0.0; BLOCK_K];
        assert_eq!(quantize_q4(&zeros), Some((f16::ZERO, [0; BLOCK_K])));
        assert_eq!(quantize_q8(&zeros), Some((f16::ZERO, [0; BLOCK_K])));
        let tiny = [1e-30; BLOCK_K];
        assert_eq!(quantize_q4(&tiny), Some((f16::ZERO, [0; BLOCK_K])));
        for bad in [f32::NAN, f32::INFINITY, 1e30] {
            let mut weights = ramp();
            weights[5] = bad;
            assert_eq!(quantize_q4(&weights), None, "{bad}");
            assert_eq!(quantize_q8(&weights), None, "{bad}");
        }
    }
}
