//! The choice of the next token from logits.
//!
//! # Order of operations
//!
//! That of llama.cpp's default chain:
//!
//! 1. *penalties* for tokens of the window: `l = l / r` if `l > 0`, else `l * r` (repetition `r`), then
//!    `l -= count * frequency + presence`;
//! 2. *top-k*: the `k` largest logits stay;
//! 3. *top-p*: the fewest of the most probable tokens whose probabilities add up to at least `p` stay;
//! 4. *min-p*: tokens at least `min_p` times as probable as the most probable one stay;
//! 5. *temperature*: `softmax(l / T)` over what has stayed, and one random number picks the token.
//!
//! Steps 2 to 4 look at the distribution before temperature. Temperature 0 takes the largest penalised logit instead of
//! steps 2 to 5. Of equal logits the lower token id counts as the larger.
//!
//! # The same everywhere
//!
//! The same logits, parameters and seed give the same tokens on every machine: probabilities are computed in f64 by a
//! portable `exp`, summed in a fixed order, and the random numbers are SplitMix64's.

use crate::{Error, Result};
use lowbit_core::candidates::{Candidate, first, top_k};
use std::collections::VecDeque;

/// How tokens are chosen. The default is greedy, and with a temperature what suits small chat models.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Sampling {
    /// At least 0. Below 1 the probable become more probable; 0 is greedy.
    pub temperature: f32,
    /// So many of the most probable tokens stay; 0: all.
    pub top_k: usize,
    /// Above 0, at most 1. The most probable tokens that make up this share stay; 1: all.
    pub top_p: f32,
    /// From 0 to 1. Tokens stay that are at least this fraction as probable as the most probable one; 0: all.
    pub min_p: f32,
    /// Above 0. Above 1 it disfavours tokens of the window; 1: off.
    pub repetition_penalty: f32,
    /// Taken from the logit of every token of the window; 0: off.
    pub presence_penalty: f32,
    /// Taken from the logit of a token once for every time it stands in the window; 0: off.
    pub frequency_penalty: f32,
    /// The penalties see this many of the last tokens, prompt included; 0: none.
    pub penalty_window: usize,
    /// Beginning of the sequence of random numbers.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 64,
            seed: 0,
        }
    }
}

impl Sampling {
    /// Always the most probable token.
    pub fn greedy() -> Self {
        Self::default()
    }

    /// # Errors
    /// Names the first parameter that has no meaning.
    pub fn validate(&self) -> Result<()> {
        let finite = "a finite number";
        let checks: [(&'static str, f32, bool, &'static str); 6] = [
            ("temperature", self.temperature, self.temperature >= 0.0, "a finite number of at least 0"),
            ("topP", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "more than 0, at most 1 (1: off)"),
            ("minP", self.min_p, (0.0..=1.0).contains(&self.min_p), "0 (off) to 1"),
            (
                "repetitionPenalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0,
                "a finite number above 0 (1: off)",
            ),
            ("presencePenalty", self.presence_penalty, true, finite),
            ("frequencyPenalty", self.frequency_penalty, true, finite),
        ];
        for (field, value, in_range, expected) in checks {
            if !(value.is_finite() && in_range) {
                return Err(Error::Sampling { field, value: value.into(), expected });
            }
        }
        Ok(())
    }

    fn penalises(&self) -> bool {
        self.penalty_window > 0
            && (self.repetition_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }

    /// Whether penalties never raise a logit.
    fn only_lowers(&self) -> bool {
        self.repetition_penalty >= 1.0 && self.presence_penalty >= 0.0 && self.frequency_penalty >= 0.0
    }

    /// The logit of a token that stands `times` times in the window.
    fn penalised(&self, logit: f32, times: usize) -> f32 {
        if times == 0 {
            return logit;
        }
        let scaled =
            if logit > 0.0 { logit / self.repetition_penalty } else { logit * self.repetition_penalty };
        scaled - (times as f32 * self.frequency_penalty + self.presence_penalty)
    }
}

/// Chooses tokens. Holds the random sequence and the window of the penalties.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: SplitMix64,
    window: VecDeque<u32>,
    penalised: Vec<f32>,
    candidates: Vec<Candidate>,
    weights: Vec<f64>,
}

/// A weight below `exp(-CUTOFF)` of the largest is taken as 0: it is lost in the rounding of any sum.
const CUTOFF: f32 = 45.0;

impl Sampler {
    /// # Errors
    /// As [`Sampling::validate`].
    pub fn new(sampling: Sampling) -> Result<Self> {
        sampling.validate()?;
        Ok(Self {
            random: SplitMix64(sampling.seed),
            sampling,
            window: VecDeque::new(),
            penalised: Vec::new(),
            candidates: Vec::new(),
            weights: Vec::new(),
        })
    }

    /// Tells the penalties of a token of the text, be it of the prompt or chosen.
    pub fn accept(&mut self, id: u32) {
        if !self.sampling.penalises() {
            return;
        }
        if self.window.len() == self.sampling.penalty_window {
            self.window.pop_front();
        }
        self.window.push_back(id);
    }

    /// How many of the largest of `vocab_size` logits are all that the choice depends on; nothing when it may depend on any.
    pub fn needs(&self, vocab_size: usize) -> Option<usize> {
        let Sampling { penalty_window, .. } = self.sampling;
        let kept = self.kept(vocab_size)?;
        if !self.sampling.penalises() {
            return Some(kept);
        }
        // Penalties change the tokens of the window only. Where they lower them, others come forward, but no more than
        // have fallen behind.
        self.sampling.only_lowers().then(|| kept.saturating_add(penalty_window).min(vocab_size))
    }

    /// Chooses from `logits`, `[vocab_size]`. `-inf` is a token that must not be chosen.
    ///
    /// # Errors
    /// When a logit is NaN or `+inf`, or when none is finite.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        let mut penalised = std::mem::take(&mut self.penalised);
        let logits = if self.sampling.penalises() {
            self.penalise(logits, &mut penalised);
            &penalised[..]
        } else {
            logits
        };
        let best = self.collect(logits);
        self.penalised = penalised;
        Ok(self.draw(best?))
    }

    /// Chooses from the first [`Self::needs`] logits in [`Candidate::order`] what [`Self::sample`] chooses from all.
    ///
    /// # Errors
    /// As in [`Self::sample`].
    pub fn sample_top(&mut self, top: &[Candidate]) -> Result<u32> {
        self.candidates.clear();
        self.candidates.extend_from_slice(top);
        if self.sampling.penalises() {
            let Self { sampling, window, candidates, .. } = self;
            for candidate in candidates.iter_mut() {
                let times = window.iter().filter(|id| **id == candidate.id).count();
                candidate.logit = sampling.penalised(candidate.logit, times);
            }
            candidates.sort_unstable_by(Candidate::order);
        }
        let best = self.truncate(self.kept(usize::MAX).unwrap_or(usize::MAX))?;
        Ok(self.draw(best))
    }

    /// Tokens that stay in step 2, or the one of greedy decoding; nothing when all do.
    fn kept(&self, vocab_size: usize) -> Option<usize> {
        let Sampling { temperature, top_k, .. } = self.sampling;
        let kept = if temperature == 0.0 { 1 } else { top_k };
        Some(kept).filter(|kept| (1..vocab_size).contains(kept))
    }

    /// Step 1, into `out`.
    fn penalise(&self, logits: &[f32], out: &mut Vec<f32>) {
        out.clear();
        out.extend_from_slice(logits);
        let mut ids: Vec<u32> = self.window.iter().copied().collect();
        ids.sort_unstable();
        for same in ids.chunk_by(|a, b| a == b) {
            let Some(logit) = out.get_mut(same[0] as usize) else { continue };
            *logit = self.sampling.penalised(*logit, same.len());
        }
    }

    /// Steps 2 to 4: fills `candidates`, most probable first, or by id when nothing had to be sorted. Returns the largest
    /// logit.
    fn collect(&mut self, logits: &[f32]) -> Result<f32> {
        if let Some(kept) = self.kept(logits.len()) {
            top_k(logits, kept, &mut self.candidates);
            return self.truncate(kept);
        }
        let best = usable(first(logits))?;
        if self.sampling.top_p < 1.0 {
            self.collect_top_p(logits, best);
        } else {
            self.candidates.clear();
            self.candidates.extend((0..).zip(logits).map(|(id, &logit)| Candidate { id, logit }));
        }
        self.truncate_min_p(best);
        Ok(best)
    }

    /// Steps 2 to 4 of `candidates` that are in order. Returns the largest logit.
    fn truncate(&mut self, kept: usize) -> Result<f32> {
        let best = usable(self.candidates.first().copied())?;
        self.candidates.truncate(kept);
        if self.sampling.top_p < 1.0 {
            let total = self.candidates.iter().map(|c| weight(c.logit, best, 1.0)).sum();
            self.truncate_top_p(best, total);
        }
        self.truncate_min_p(best);
        Ok(best)
    }

    /// Step 3 for all logits. It takes more and more of the largest until they suffice, so that the whole vocabulary is
    /// sorted only when it must be.
    fn collect_top_p(&mut self, logits: &[f32], best: f32) {
        let total = logits.iter().map(|&logit| weight(logit, best, 1.0)).sum();
        let mut taken = logits.len().min(256);
        loop {
            top_k(logits, taken, &mut self.candidates);
            if self.truncate_top_p(best, total) || taken == logits.len() {
                return;
            }
            taken = logits.len().min(taken * 8);
        }
    }

    /// Step 3 of `candidates`, of all of which the weights add up to `total`. Returns whether there are enough of them.
    fn truncate_top_p(&mut self, best: f32, total: f64) -> bool {
        let enough = f64::from(self.sampling.top_p) * total;
        let mut sum = 0.0;
        let last = self.candidates.iter().position(|c| {
            sum += weight(c.logit, best, 1.0);
            sum >= enough
        });
        self.candidates.truncate(last.map_or(usize::MAX, |last| last + 1));
        last.is_some()
    }

    /// Step 4 of `candidates`.
    fn truncate_min_p(&mut self, best: f32) {
        let min_p = f64::from(self.sampling.min_p);
        if min_p > 0.0 {
            self.candidates.retain(|c| weight(c.logit, best, 1.0) >= min_p);
        }
    }

    /// Step 5. `candidates` holds `best` and so is not empty.
    fn draw(&mut self, best: f32) -> u32 {
        let temperature = self.sampling.temperature;
        let mut chosen = self.candidates[0].id;
        if temperature == 0.0 {
            return chosen;
        }
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(|c| weight(c.logit, best, temperature)));
        let total: f64 = self.weights.iter().sum();
        let mut rest = self.random.unit() * total;
        for (candidate, &weight) in self.candidates.iter().zip(&self.weights) {
            if weight > 0.0 {
                chosen = candidate.id;
                rest -= weight;
                if rest < 0.0 {
                    break;
                }
            }
        }
        chosen
    }
}

/// `exp((logit - best) / temperature)`
fn weight(logit: f32, best: f32, temperature: f32) -> f64 {
    let below = (f64::from(logit) - f64::from(best)) / f64::from(temperature);
    if below < -f64::from(CUTOFF) { 0.0 } else { libm::exp(below) }
}

/// The index of the largest logit, of equals the first.
///
/// # Errors
/// When a logit is NaN or `+inf`, or when none is finite.
pub fn argmax(logits: &[f32]) -> Result<u32> {
    let first = first(logits);
    usable(first)?;
    Ok(first.map_or(0, |first| first.id))
}

/// The largest logit, which is that of the first of all tokens in order, if one can be chosen.
fn usable(first: Option<Candidate>) -> Result<f32> {
    match first {
        Some(Candidate { logit, .. }) if logit.is_finite() => Ok(logit),
        Some(Candidate { id, logit }) if logit != f32::NEG_INFINITY => {
            Err(Error::Logits { problem: format!("that of token {id} is {logit}") })
        }
        _ => Err(Error::Logits { problem: "none is a finite number".to_owned() }),
    }
}

/// The generator SplitMix64 (Steele, Lea and Flood, 2014): a Weyl sequence through a mixing function.
#[derive(Clone, Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0.0..1.0`, a multiple of 2^-53.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
