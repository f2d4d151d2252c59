//! Logarithms of probabilities, in f64: `log_softmax(logits)`.

use crate::sampler::argmax;
use crate::{Error, Result};
use lowbit_core::candidates::top_k;

/// The log-softmax of one position's logits, `[vocab_size]`.
#[derive(Clone, Copy, Debug)]
pub struct LogProbs<'a> {
    logits: &'a [f32],
    /// `log(sum(exp(logits)))`
    log_sum: f64,
}

impl<'a> LogProbs<'a> {
    /// # Errors
    /// When a logit is NaN or `+inf`, or when none is finite.
    pub fn new(logits: &'a [f32]) -> Result<Self> {
        let best = f64::from(logits[argmax(logits)? as usize]);
        let sum: f64 = logits.iter().map(|&logit| libm::exp(f64::from(logit) - best)).sum();
        Ok(Self { logits, log_sum: best + libm::log(sum) })
    }

    /// The logarithm of the probability of `id`; `-inf` for a token that cannot be chosen.
    ///
    /// # Errors
    /// When `id` is no token of the vocabulary.
    pub fn of(&self, id: u32) -> Result<f64> {
        match self.logits.get(id as usize) {
            Some(&logit) => Ok(f64::from(logit) - self.log_sum),
            None => Err(Error::Token { id, vocab_size: self.logits.len() }),
        }
    }

    /// The `n` most probable tokens, most probable first (of equals the lower id), with their logarithms.
    pub fn top(&self, n: usize) -> Vec<(u32, f64)> {
        let mut top = Vec::new();
        top_k(self.logits, n, &mut top);
        top.iter().map(|c| (c.id, f64::from(c.logit) - self.log_sum)).collect()
    }

    /// Kullback-Leibler divergence of `other` from this distribution, in nats: `sum(p * (log p - log q))`.
    ///
    /// # Errors
    /// When the vocabularies differ in size.
    pub fn kl_divergence(&self, other: &LogProbs<'_>) -> Result<f64> {
        if self.logits.len() != other.logits.len() {
            let problem = format!("{} of one model, {} of the other", self.logits.len(), other.logits.len());
            return Err(Error::Logits { problem });
        }
        let term = |(&l, &m): (&f32, &f32)| {
            let (p, q) = (f64::from(l) - self.log_sum, f64::from(m) - other.log_sum);
            if p == f64::NEG_INFINITY { 0.0 } else { libm::exp(p) * (p - q) }
        };
        Ok(self.logits.iter().zip(other.logits).map(term).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_logarithm_of_the_softmax() {
        // Logits of probabilities 1/8, 1/2, 3/8, shifted by a large constant.
        let logits = [1f64, 4.0, 3.0].map(|x| (libm::log(x) + 300.0) as f32);
        let log_probs = LogProbs::new(&logits).unwrap();
        for (id, p) in [0.125, 0.5, 0.375].into_iter().enumerate() {
            assert!((log_probs.of(id as u32).unwrap() - libm::log(p)).abs() < 1e-4);
        }
        let top = log_probs.top(2);
        assert_eq!(top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(top[0].1, log_probs.of(1).unwrap());
        assert_eq!(log_probs.top(9).len(), 3);
        assert!(log_probs.top(0).is_empty());
        assert_eq!(log_probs.of(3).unwrap_err().code(), "unknown-token");
        assert_eq!(LogProbs::new(&[f32::NAN]).unwrap_err().code(), "bad-logits");
    }

    #[test]
    fn divergence_of_two_coins() {
        let coin = |p: f64| [libm::log(p) as f32, libm::log(1.0 - p) as f32];
        let (fair, bent) = (coin(0.5), coin(0.25));
        let (fair, bent) = (LogProbs::new(&fair).unwrap(), LogProbs::new(&bent).unwrap());
        let expected = 0.5 * libm::log(0.5 / 0.25) + 0.5 * libm::log(0.5 / 0.75);
        assert!((fair.kl_divergence(&bent).unwrap() - expected).abs() < 1e-6);
        assert_eq!(fair.kl_divergence(&fair).unwrap(), 0.0);
        assert!(fair.kl_divergence(&LogProbs::new(&[0.0]).unwrap()).is_err());
    }

    #[test]
    fn an_impossible_token_diverges_nothing() {
        let logits = [0.0, f32::NEG_INFINITY];
        let log_probs = LogProbs::new(&logits).unwrap();
        assert_eq!(log_probs.of(1).unwrap(), f64::NEG_INFINITY);
        assert_eq!(log_probs.kl_divergence(&log_probs).unwrap(), 0.0);
    }
}
