//! How far one logit vector is from another.

use lowbit_engine::log_probs::LogProbs;
use lowbit_engine::sampler::argmax;

/// Distances of two logit vectors.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Distance {
    /// Kullback-Leibler divergence of the softmax of `found` from that of `expected`, in nats.
    pub kl: f64,
    /// Root mean square of the differences.
    pub rms: f64,
    /// The same after subtracting the mean difference, which softmax ignores.
    pub centred_rms: f64,
    /// The largest difference.
    pub max_abs: f64,
    /// Whether both have the same largest logit.
    pub same_top: bool,
}

impl Distance {
    /// The distance of `found` from `expected`.
    ///
    /// # Errors
    /// When their lengths differ or one holds values that are no logits.
    pub fn between(expected: &[f32], found: &[f32]) -> lowbit_engine::Result<Self> {
        let (p, q) = (LogProbs::new(expected)?, LogProbs::new(found)?);
        let kl = p.kl_divergence(&q)?;
        let n = expected.len() as f64;
        let pairs = expected.iter().zip(found);
        let differences: Vec<f64> = pairs.map(|(e, f)| f64::from(*f) - f64::from(*e)).collect();
        let mean = differences.iter().sum::<f64>() / n;
        let rms = |centre: f64| (differences.iter().map(|d| (d - centre).powi(2)).sum::<f64>() / n).sqrt();
        Ok(Self {
            kl,
            rms: rms(0.0),
            centred_rms: rms(mean),
            max_abs: differences.iter().fold(0.0, |max, d| d.abs().max(max)),
            same_top: argmax(expected)? == argmax(found)?,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_shift_changes_only_the_plain_rms() {
        let a = [1.0, 2.0, 4.0];
        let d = Distance::between(&a, &a.map(|x| x + 0.5)).unwrap();
        assert_eq!((d.rms, d.centred_rms, d.max_abs, d.same_top), (0.5, 0.0, 0.5, true));
        assert!(d.kl.abs() < 1e-12);
    }

    #[test]
    fn kl_of_two_coins() {
        let logits = |p: f64| [p.ln() as f32, (1.0 - p).ln() as f32];
        let d = Distance::between(&logits(0.6), &logits(0.25)).unwrap();
        let expected = 0.6 * (0.6f64 / 0.25).ln() + 0.4 * (0.4f64 / 0.75).ln();
        assert!((d.kl - expected).abs() < 1e-6, "{}", d.kl);
        assert!(!d.same_top);
        assert!(Distance::between(&[1.0], &[1.0, 2.0]).is_err());
    }
}
