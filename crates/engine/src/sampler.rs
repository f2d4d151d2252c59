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
use std::cmp::Ordering;
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

/// A token that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    id: u32,
    logit: f32,
}

impl Candidate {
    /// Most probable first, of equals the lower id.
    fn order(a: &Self, b: &Self) -> Ordering {
        b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
    }
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
        let chosen = self.choose(logits);
        self.penalised = penalised;
        chosen
    }

    fn choose(&mut self, logits: &[f32]) -> Result<u32> {
        let best = argmax(logits)?;
        if self.sampling.temperature == 0.0 {
            return Ok(best);
        }
        self.collect(logits, logits[best as usize]);
        Ok(self.draw(logits[best as usize]))
    }

    /// Step 1, into `out`.
    fn penalise(&self, logits: &[f32], out: &mut Vec<f32>) {
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.sampling;
        out.clear();
        out.extend_from_slice(logits);
        let mut ids: Vec<u32> = self.window.iter().copied().collect();
        ids.sort_unstable();
        for same in ids.chunk_by(|a, b| a == b) {
            let Some(logit) = out.get_mut(same[0] as usize) else { continue };
            if *logit > 0.0 {
                *logit /= repetition_penalty;
            } else {
                *logit *= repetition_penalty;
            }
            *logit -= same.len() as f32 * frequency_penalty + presence_penalty;
        }
    }

    /// Steps 2 to 4: fills `candidates`, most probable first, or by id when nothing had to be sorted.
    fn collect(&mut self, logits: &[f32], best: f32) {
        let Sampling { top_k, top_p, min_p, .. } = self.sampling;
        let limit = if top_k == 0 { logits.len() } else { top_k.min(logits.len()) };
        if top_p < 1.0 {
            self.collect_top_p(logits, best, limit);
        } else if limit < logits.len() {
            largest(logits, limit, &mut self.candidates);
        } else {
            self.candidates.clear();
            self.candidates.extend((0..).zip(logits).map(|(id, &logit)| Candidate { id, logit }));
        }
        if min_p > 0.0 {
            self.candidates.retain(|c| weight(c.logit, best, 1.0) >= f64::from(min_p));
        }
    }

    /// Steps 2 and 3. Without a top-k it takes more and more of the largest logits until they suffice, so that the whole
    /// vocabulary is sorted only when it must be.
    fn collect_top_p(&mut self, logits: &[f32], best: f32, limit: usize) {
        let share = |logit: f32| weight(logit, best, 1.0);
        let all = limit == logits.len();
        let mut taken = if all { limit.min(256) } else { limit };
        largest(logits, taken, &mut self.candidates);
        let total: f64 = if all {
            logits.iter().map(|&logit| share(logit)).sum()
        } else {
            self.candidates.iter().map(|c| share(c.logit)).sum()
        };
        let enough = f64::from(self.sampling.top_p) * total;
        loop {
            let mut sum = 0.0;
            let last = self.candidates.iter().position(|c| {
                sum += share(c.logit);
                sum >= enough
            });
            if let Some(last) = last {
                return self.candidates.truncate(last + 1);
            }
            if taken == limit {
                return;
            }
            taken = limit.min(taken * 8);
            largest(logits, taken, &mut self.candidates);
        }
    }

    /// Step 5. `candidates` holds `best` and so is not empty.
    fn draw(&mut self, best: f32) -> u32 {
        let temperature = self.sampling.temperature;
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(|c| weight(c.logit, best, temperature)));
        let total: f64 = self.weights.iter().sum();
        let mut rest = self.random.unit() * total;
        let mut chosen = self.candidates[0].id;
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
    const LANES: usize = 16;
    let mut largest = [f32::NEG_INFINITY; LANES];
    let mut nan = [false; LANES];
    let (rows, rest) = logits.as_chunks::<LANES>();
    for row in rows {
        for lane in 0..LANES {
            nan[lane] |= row[lane].is_nan();
            largest[lane] = if row[lane] > largest[lane] { row[lane] } else { largest[lane] };
        }
    }
    let best = largest.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    if nan.contains(&true) || rest.iter().any(|x| x.is_nan()) || !best.is_finite() {
        return Err(unusable(logits));
    }
    let at = logits.iter().position(|&x| x == best).unwrap_or_default();
    Ok(at as u32)
}

fn unusable(logits: &[f32]) -> Error {
    let strange = |x: &f32| x.is_nan() || *x == f32::INFINITY;
    let problem = match logits.iter().position(strange) {
        Some(id) => format!("that of token {id} is {}", logits[id]),
        None => format!("none of {} is a finite number", logits.len()),
    };
    Error::Logits { problem }
}

/// The `k` largest of `logits`, largest first, in time linear in their number. `k` is at least 1.
fn largest(logits: &[f32], k: usize, out: &mut Vec<Candidate>) {
    let keep = |out: &mut Vec<Candidate>| {
        if out.len() > k {
            out.select_nth_unstable_by(k - 1, Candidate::order);
            out.truncate(k);
        }
    };
    out.clear();
    // Ids rise, so a later logit must exceed the k-th largest so far to be among the k.
    let mut threshold = None;
    for (id, &logit) in (0..).zip(logits) {
        if threshold.is_none_or(|least| logit > least) {
            out.push(Candidate { id, logit });
            if out.len() == 2 * k {
                keep(out);
                threshold = Some(out[k - 1].logit);
            }
        }
    }
    keep(out);
    out.sort_unstable_by(Candidate::order);
}

/// The `n` largest of `logits` with their ids, largest first, of equals the lower id.
pub(crate) fn top(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    let mut found = Vec::new();
    if n > 0 {
        largest(logits, n.min(logits.len()).max(1), &mut found);
    }
    found.into_iter().map(|c| (c.id, c.logit)).collect()
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
