//! Float weights to codes: one float scale for a whole row (schemes S2 and S3).

use super::{BLOCK_K, Format, MAX_STEP};

/// A quantised row of `k` weights: `w = scale * step * code`, with a step for 32 weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelRow {
    /// The scale.
    pub scale: f32,
    /// `[k/32]`: 1 where the format has no steps.
    pub steps: Vec<u8>,
    /// `[k]`: signed codes, the offset not yet added.
    pub codes: Vec<i8>,
}

/// Quantises a row as `format` ([`Format::C4`], [`Format::C8`] or [`Format::P4`]) has it, with the scale, of those that are
/// tried, that leaves the smallest squared error.
///
/// `None` when a weight is not finite, or so large that codes would not be, and for other formats.
pub fn quantize_channel(format: Format, weights: &[f32]) -> Option<ChannelRow> {
    /// Beyond it not all of `scale * step * code` are finite.
    const LARGEST: f32 = f32::MAX / 4.0;
    let absmax = absmax(weights);
    if !weights.iter().all(|w| w.is_finite()) || absmax > LARGEST {
        return None;
    }
    let row = match format {
        Format::C4 => clipped(weights, absmax),
        Format::C8 => Fit::new::<127>(weights, absmax / 127.0, |_, _| [1; 3]),
        Format::P4 => progressive(weights),
        _ => return None,
    };
    Some(if row.scale.is_normal() { row.into_row() } else { Fit::zeros(weights.len()).into_row() })
}

/// One scale: of some that clip more and more, the best.
fn clipped(weights: &[f32], absmax: f32) -> Fit {
    /// The code, before rounding, that the weight of largest magnitude gets; above 8 it is clipped.
    const FIRST: f32 = 7.0;
    const CLIPS: usize = 32;
    const GROWTH: f32 = 1.035;
    let clips = (0..CLIPS).scan(FIRST, |clip, _| Some(std::mem::replace(clip, *clip * GROWTH)));
    // The largest weight gets the code -8, which has no positive twin.
    let sign = if weights.contains(&absmax) { -1.0 } else { 1.0 };
    best(clips.map(|clip| refined(weights, sign * absmax / clip, &|_, _| [1; 3])))
}

/// A scale and steps. The best scale of every block is found first; of all scales that make steps of these, the best is kept.
fn progressive(weights: &[f32]) -> Fit {
    /// The step, before rounding, of the block with the largest scale.
    const LARGEST: [f32; 6] = [15.0, 14.0, 15.8, 17.0, 19.0, 22.0];
    let of_blocks: Vec<f32> = weights.chunks(BLOCK_K).map(block_scale).collect();
    let largest = absmax(&of_blocks);
    let steps = |b: usize, scale: f32| {
        let nearest = (of_blocks[b] / scale).round();
        [-1.0, 0.0, 1.0].map(|away| (nearest + away).clamp(1.0, f32::from(MAX_STEP)) as u8)
    };
    best(LARGEST.into_iter().map(|most| refined(weights, largest / most, &steps)))
}

/// The positive scale of a block that leaves the smallest error.
fn block_scale(weights: &[f32]) -> f32 {
    const CLIPS: [f32; 6] = [7.0, 7.5, 8.0, 8.5, 9.0, 9.6];
    let absmax = absmax(weights);
    best(CLIPS.into_iter().map(|clip| refined(weights, absmax / clip, &|_, _| [1; 3]))).scale
}

/// What a scale gives, or the one that is best for its codes.
fn refined(weights: &[f32], scale: f32, steps: &dyn Fn(usize, f32) -> [u8; 3]) -> Fit {
    let first = Fit::new::<8>(weights, scale, steps);
    let second = Fit::new::<8>(weights, first.least_squares(weights), steps);
    if second.error < first.error { second } else { first }
}

fn best(fits: impl Iterator<Item = Fit>) -> Fit {
    let none = Fit { error: f32::INFINITY, ..Fit::zeros(0) };
    fits.fold(none, |best, fit| if fit.error < best.error { fit } else { best })
}

/// Codes for a scale.
struct Fit {
    scale: f32,
    steps: Vec<u8>,
    codes: Vec<i8>,
    /// Sum of squared differences, in units of the scale's square.
    error: f32,
}

impl Fit {
    fn zeros(k: usize) -> Self {
        Self { scale: 0.0, steps: vec![1; k.div_ceil(BLOCK_K)], codes: vec![0; k], error: 0.0 }
    }

    /// The codes of at least `-MAX` that are nearest with `scale` and, of the `steps` of each block, the best.
    fn new<const MAX: i8>(weights: &[f32], scale: f32, steps: impl Fn(usize, f32) -> [u8; 3]) -> Self {
        let mut fit = Self { scale, ..Self::zeros(weights.len()) };
        if !scale.is_normal() {
            fit.error = weights.iter().map(|w| w * w).sum();
            return fit;
        }
        for (b, (weights, codes)) in weights.chunks(BLOCK_K).zip(fit.codes.chunks_mut(BLOCK_K)).enumerate() {
            let mut least = f32::INFINITY;
            let mut last = 0;
            for step in steps(b, scale) {
                if std::mem::replace(&mut last, step) == step {
                    continue;
                }
                let (found, error) = nearest::<MAX>(weights, scale * f32::from(step));
                if error < least {
                    least = error;
                    fit.steps[b] = step;
                    codes.copy_from_slice(&found[..weights.len()]);
                }
            }
            fit.error += least;
        }
        fit
    }

    /// The scale that leaves the smallest squared error for these codes.
    fn least_squares(&self, weights: &[f32]) -> f32 {
        let (mut product, mut norm) = (0.0, 0.0);
        for ((weights, codes), step) in
            weights.chunks(BLOCK_K).zip(self.codes.chunks(BLOCK_K)).zip(&self.steps)
        {
            for (w, code) in weights.iter().zip(codes) {
                let integer = f64::from(i32::from(*code) * i32::from(*step));
                product += f64::from(*w) * integer;
                norm += integer * integer;
            }
        }
        if norm == 0.0 { 0.0 } else { (product / norm) as f32 }
    }

    fn into_row(self) -> ChannelRow {
        let Self { scale, steps, codes, .. } = self;
        ChannelRow { scale, steps, codes }
    }
}

/// The nearest codes of at least `-MAX` of a block, and the sum of squared differences.
fn nearest<const MAX: i8>(weights: &[f32], scale: f32) -> ([i8; BLOCK_K], f32) {
    let most = if MAX == 8 { 7.0 } else { f32::from(MAX) };
    let inverse = 1.0 / scale;
    let (mut codes, mut error) = ([0; BLOCK_K], 0.0);
    for (code, w) in codes.iter_mut().zip(weights) {
        let nearest = (w * inverse).round_ties_even().clamp(-f32::from(MAX), most);
        error += (w - scale * nearest).powi(2);
        *code = nearest as i8;
    }
    (codes, error)
}

fn absmax(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0, |m, w| w.abs().max(m))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights with outliers, of blocks of different magnitudes.
    fn weights(k: usize) -> Vec<f32> {
        let value = |i: usize| ((i * 7919 % 1009) as f32 / 504.5 - 1.0).powi(3);
        (0..k).map(|i| value(i) * (1 + i / BLOCK_K % 5) as f32 * 0.1).collect()
    }

    fn error(row: &ChannelRow, weights: &[f32]) -> f32 {
        let step = |i: usize| f32::from(row.steps[i / BLOCK_K]);
        let value = |i: usize| row.scale * step(i) * f32::from(row.codes[i]);
        weights.iter().enumerate().map(|(i, w)| (w - value(i)).powi(2)).sum()
    }

    #[test]
    fn clipping_beats_the_largest_weight_and_steps_beat_clipping() {
        let weights = weights(300);
        let of = |format| quantize_channel(format, &weights).unwrap();
        let plain = Fit::new::<8>(&weights, absmax(&weights) / 7.0, |_, _| [1; 3]).into_row();
        let [c4, p4, c8] = [Format::C4, Format::P4, Format::C8].map(of);
        let errors = [&plain, &c4, &p4, &c8].map(|row| error(row, &weights));
        assert!(errors.is_sorted_by(|a, b| a > b), "{errors:?}");
        assert!(errors[2] < 0.5 * errors[1], "{errors:?}");
        for row in [c4, p4] {
            assert!(row.codes.iter().all(|code| (-8..=7).contains(code)));
            assert!(row.steps.iter().all(|step| (1..=MAX_STEP).contains(step)));
            assert_eq!((row.steps.len(), row.codes.len()), (10, 300));
        }
    }

    #[test]
    fn representable_rows_come_back_exactly() {
        let code = |i: usize| (i * 5 % 16) as f32 - 8.0;
        let step = |i: usize| [15.0, 4.0, 9.0][i / BLOCK_K % 3];
        let c4: Vec<f32> = (0..96).map(|i| code(i) * 0.125).collect();
        let p4: Vec<f32> = (0..96).map(|i| code(i) * step(i) * 0.125).collect();
        for (format, weights) in [(Format::C4, c4), (Format::P4, p4)] {
            let row = quantize_channel(format, &weights).unwrap();
            assert_eq!(error(&row, &weights), 0.0, "{format:?}: {} {:?}", row.scale, row.steps);
        }
    }

    #[test]
    fn zeros_and_extremes() {
        for format in [Format::C4, Format::C8, Format::P4] {
            for small in [0.0, 1e-39] {
                let row = quantize_channel(format, &[small; 40]).unwrap();
                assert_eq!(row, ChannelRow { scale: 0.0, steps: vec![1; 2], codes: vec![0; 40] });
            }
            for bad in [f32::NAN, f32::INFINITY, f32::MAX] {
                assert_eq!(quantize_channel(format, &[0.5, bad]), None, "{format:?} {bad}");
            }
        }
        assert_eq!(quantize_channel(Format::Q4, &[1.0]), None);
    }
}
