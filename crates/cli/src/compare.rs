//! How far logits are from others.

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

/// Distances at many positions.
#[derive(Clone, Debug, Default)]
pub struct Distances {
    positions: Vec<Distance>,
    /// The mean negative log-likelihoods of windows: of the reference, and of what is compared.
    nll: Vec<[f64; 2]>,
}

/// What distances at many positions say.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Summary {
    /// Positions that were compared.
    pub positions: usize,
    /// Kullback-Leibler divergence from the reference, in nats.
    pub kl: Spread,
    /// The share of positions with the same likeliest token.
    pub same_top: f64,
    /// Root of the mean square of the differences of the logits, each position's mean difference subtracted.
    pub centred_rms: f64,
    /// `exp` of the mean of the windows' mean negative log-likelihoods.
    pub perplexity_of_reference: f64,
    /// That of what is compared.
    pub perplexity: f64,
}

/// How values spread.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Spread {
    pub mean: f64,
    pub median: f64,
    pub percentile_99: f64,
    pub max: f64,
}

impl Distances {
    /// Adds that of a position.
    pub fn add(&mut self, distance: Distance) {
        self.positions.push(distance);
    }

    /// Adds the mean negative log-likelihoods of a window.
    pub fn end_window(&mut self, nll: [f64; 2]) {
        self.nll.push(nll);
    }

    /// What they say; of no positions, not a number.
    pub fn summary(&self) -> Summary {
        let mean = |of: &dyn Fn(&Distance) -> f64| {
            self.positions.iter().map(of).sum::<f64>() / self.positions.len() as f64
        };
        let mut kl: Vec<f64> = self.positions.iter().map(|distance| distance.kl).collect();
        kl.sort_by(f64::total_cmp);
        let quantile = |share: f64| {
            let last = kl.len().saturating_sub(1);
            kl.get((share * last as f64).round() as usize).copied().unwrap_or(f64::NAN)
        };
        let perplexity =
            |i: usize| (self.nll.iter().map(|nll| nll[i]).sum::<f64>() / self.nll.len() as f64).exp();
        Summary {
            positions: self.positions.len(),
            kl: Spread {
                mean: mean(&|distance| distance.kl),
                median: quantile(0.5),
                percentile_99: quantile(0.99),
                max: quantile(1.0),
            },
            same_top: mean(&|distance| f64::from(u8::from(distance.same_top))),
            centred_rms: mean(&|distance| distance.centred_rms.powi(2)).sqrt(),
            perplexity_of_reference: perplexity(0),
            perplexity: perplexity(1),
        }
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

    #[test]
    fn many_distances_are_summed_up() {
        let at = |kl: f64| Distance { kl, rms: 0.0, centred_rms: kl, max_abs: 0.0, same_top: kl < 2.0 };
        let mut distances = Distances::default();
        (0..=100).rev().for_each(|i| distances.add(at(f64::from(i))));
        distances.end_window([1.0, 3.0]);
        distances.end_window([3.0, 3.0]);
        let summary = distances.summary();
        let Spread { mean, median, percentile_99, max } = summary.kl;
        assert_eq!((mean, median, percentile_99, max), (50.0, 50.0, 99.0, 100.0));
        assert_eq!((summary.positions, summary.same_top), (101, 2.0 / 101.0));
        assert!((summary.perplexity_of_reference - 2f64.exp()).abs() < 1e-12);
        assert!((summary.centred_rms - (338350.0f64 / 101.0).sqrt()).abs() < 1e-9);
    }
}
