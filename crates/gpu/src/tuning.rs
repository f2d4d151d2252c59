//! Which variants are the quickest for a model on a device: found by trying, as far as the time for that goes.

mod record;
#[cfg(test)]
mod tests;

pub use record::{Choice, Key, Origin, Record};

use crate::backend::GpuBackend;
use crate::executor::Executor;
use crate::kernels::{Extensions, Features, Kernels, Products};
use lowbit_core::backend::StepTime;
use std::task::{Poll, ready};
use std::time::Duration;

/// A variant takes the place of another one only when its time is at most this part of the other's: what is measured
/// varies from one moment to the next.
const MARGIN: f64 = 0.95;
/// Rows from which GEMM is the quicker, first to be tried upwards, then downwards.
const MORE_ROWS: [usize; 2] = [64, 128];
const FEWER_ROWS: [usize; 2] = [16, 8];
/// Where GEMM was slower at all rows that were tried, it begins with twice as many.
const MANY_ROWS: usize = 256;
/// Splits of attention other than the default.
const SPLITS: [usize; 3] = [256, 512, 64];
/// Tokens of a prompt, and as many of an answer: what two ways to compute products are judged by.
const TOKENS: f64 = 128.0;

/// A step that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The variants it uses.
    pub kernels: Kernels,
    /// Rows of the step; 0 for one that computes nothing, but whose end is awaited as well.
    pub rows: usize,
    /// The position of the first row.
    pub pos: usize,
}

/// The search for the quickest variants: what was tried, and what follows from it.
pub struct Tuning {
    fixed: Kernels,
    /// What the device offers.
    features: Features,
    /// The position at which attention is tried.
    depth: usize,
    /// What trials may take together, but for the first.
    budget: Duration,
    spent: Duration,
    times: Vec<(Trial, Duration)>,
}

impl Tuning {
    /// What trials may take, but for the first, unless someone has more time: loading waits for them.
    pub const BUDGET: Duration = Duration::from_millis(500);

    /// Nothing was tried: the choice is the fixed one. `features` has `dot4` where the device multiplies signed bytes and the
    /// model's activations may be such, which is then the fixed choice; floats are always allowed. Extensions are used only
    /// where they were the quicker.
    pub fn new(features: Features, depth: usize, budget: Duration) -> Self {
        let products = if features.dot4 { Products::Dot4 } else { Products::Float };
        let fixed = Kernels { products, ..Kernels::default() };
        Self { fixed, features, depth, budget, spent: Duration::ZERO, times: Vec::new() }
    }

    /// Makes the trials that are left, and returns when the choice is made; pending while the device works, and then to be
    /// called again. `measure` times a step of a model on the device.
    ///
    /// # Errors
    /// Those of `measure`. What was tried before is not lost.
    pub fn poll<E: Executor, T>(
        &mut self,
        device: &mut GpuBackend<E>,
        mut measure: impl FnMut(&mut GpuBackend<E>, Trial) -> Poll<Result<StepTime, T>>,
    ) -> Poll<Result<(), T>> {
        while let Some(trial) = self.next() {
            device.set_kernels(trial.kernels);
            let timing = ready!(measure(device, trial))?;
            self.record(trial, timing);
        }
        device.set_kernels(self.kernels());
        Poll::Ready(Ok(()))
    }

    /// The trial to be made next; none when the choice is made or there is no time left.
    fn next(&self) -> Option<Trial> {
        self.missing().filter(|trial| self.is_basic(*trial) || self.spent < self.budget)
    }

    /// Whether a trial is one of those that tell what a token takes. They are made in any case, and do not count: mostly
    /// they compile what the fixed choice needs, and the slower a device is, the more its estimate matters.
    fn is_basic(&self, trial: Trial) -> bool {
        [decode(self.fixed), idle(self.fixed)].contains(&trial)
    }

    /// The trial on which the choice depends next.
    fn missing(&self) -> Option<Trial> {
        let mut missing = None;
        self.choose(&mut |trial| {
            let known = self.time(trial);
            if known.is_none() {
                missing.get_or_insert(trial);
            }
            known
        });
        missing
    }

    fn record(&mut self, trial: Trial, StepTime { step, spent }: StepTime) {
        if !self.is_basic(trial) {
            self.spent += spent;
        }
        self.times.push((trial, step));
    }

    fn time(&self, trial: Trial) -> Option<f64> {
        self.times.iter().find(|(tried, _)| *tried == trial).map(|(_, step)| step.as_secs_f64())
    }

    /// The choice as far as it could be made; the fixed one for all else.
    pub fn kernels(&self) -> Kernels {
        self.choose(&mut |trial| self.time(trial))
    }

    /// Whether all was tried that the choice depends on.
    pub fn is_complete(&self) -> bool {
        self.missing().is_none()
    }

    /// What the trials took, but for the first.
    pub fn spent(&self) -> Duration {
        self.spent
    }

    /// What a token takes of a model that has `share` times the weights of the one that was timed, if that was tried.
    pub fn token(&self, share: f64) -> Option<Duration> {
        let Kernels { products, extensions: Extensions { subgroups, .. }, .. } = self.kernels();
        let extensions = Extensions { subgroups, ..Extensions::NONE };
        let step = self.time(decode(Kernels { products, extensions, ..self.fixed }))?;
        let seconds = self.time(idle(self.fixed))? + share * step;
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// The choice that follows from the times of trials. What was not tried leaves things as they are.
    fn choose(&self, time: &mut dyn FnMut(Trial) -> Option<f64>) -> Kernels {
        let mut best = self.fixed;
        // For what a token takes, and first of all.
        let _ = (time(decode(best)), time(idle(best)));
        if best.products != Products::Float {
            let other = Kernels { products: Products::Float, ..best };
            if is_quicker(conversation(other, time), conversation(best, time)) {
                best = other;
            }
        }
        let other = self.extended(best, Extensions { subgroups: true, ..best.extensions });
        if other != best && is_quicker(time(decode(other)), time(decode(best))) {
            best = other;
        }
        best.gemm_rows = gemm_rows(best, time);
        let mut deep = |kernels| time(Trial { kernels, rows: 1, pos: self.depth });
        let other = self.extended(best, Extensions { f16: true, ..best.extensions });
        if other != best && is_quicker(deep(other), deep(best)) {
            best = other;
        }
        if self.depth < best.split {
            return best;
        }
        for split in SPLITS {
            let other = Kernels { split, ..best };
            if is_quicker(deep(other), deep(best)) {
                best = other;
            }
        }
        best
    }

    /// The same variants with these extensions, as far as the device offers them.
    fn extended(&self, kernels: Kernels, extensions: Extensions) -> Kernels {
        Kernels { extensions: extensions.only(self.features.extensions), ..kernels }
    }
}

fn decode(kernels: Kernels) -> Trial {
    Trial { kernels, rows: 1, pos: 0 }
}

fn idle(kernels: Kernels) -> Trial {
    Trial { kernels, rows: 0, pos: 0 }
}

/// The time of a step of `rows` rows, with GEMM or without.
fn prefill(
    kernels: Kernels,
    rows: usize,
    gemm: bool,
    time: &mut dyn FnMut(Trial) -> Option<f64>,
) -> Option<f64> {
    let gemm_rows = if gemm { rows } else { usize::MAX };
    time(Trial { kernels: Kernels { gemm_rows, ..kernels }, rows, pos: 0 })
}

/// The time of a prompt and an answer.
fn conversation(kernels: Kernels, time: &mut dyn FnMut(Trial) -> Option<f64>) -> Option<f64> {
    let rows = kernels.gemm_rows;
    let prompt = prefill(kernels, rows, true, time)? * TOKENS / rows as f64;
    Some(prompt + time(decode(kernels))? * TOKENS)
}

/// The number of rows from which GEMM is the quicker.
fn gemm_rows(kernels: Kernels, time: &mut dyn FnMut(Trial) -> Option<f64>) -> usize {
    let mut gemm_and_not = |rows| [true, false].map(|gemm| prefill(kernels, rows, gemm, time));
    let mut is_slow = |rows| {
        let [gemm, gemv] = gemm_and_not(rows);
        is_quicker(gemv, gemm)
    };
    if is_slow(kernels.gemm_rows) {
        return MORE_ROWS.into_iter().find(|rows| !is_slow(*rows)).unwrap_or(MANY_ROWS);
    }
    let mut is_quick = |rows: &usize| {
        let [gemm, gemv] = gemm_and_not(*rows);
        is_quicker(gemm, gemv)
    };
    FEWER_ROWS.into_iter().take_while(&mut is_quick).last().unwrap_or(kernels.gemm_rows)
}

/// Whether one time is clearly shorter than another.
fn is_quicker(one: Option<f64>, other: Option<f64>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one < MARGIN * other)
}
