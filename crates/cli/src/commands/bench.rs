//! `lowbit bench`: speed of prefill and decode, medians.

use crate::args::{DeviceArgs, ModelArgs};
use crate::error::Result;
use crate::model::{Job, Loaded, RunsOn};
use crate::{model, output};
use lowbit_core::backend::Backend;
use lowbit_engine::timed::{Op, Timed};
use lowbit_engine::{Model, Session};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Bench {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Prompt lengths
    #[arg(long, value_delimiter = ',', default_value = "128,512")]
    prefill: Vec<NonZeroUsize>,
    /// Tokens decoded one by one, after an empty cache
    #[arg(long, value_delimiter = ',', default_value = "64")]
    decode: Vec<NonZeroUsize>,
    /// Prompt tokens that are run together
    #[arg(long, default_value = "512")]
    chunk: NonZeroUsize,
    /// Runs of each, of which the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Show which share of the time each op of the forward pass takes, on the CPU
    #[arg(long, conflicts_with = "device")]
    ops: bool,
}

/// The speed of one task.
#[derive(serde::Serialize)]
struct Speed {
    /// `pp128`: prefill of 128 tokens; `tg64`: 64 tokens decoded.
    name: String,
    /// The median, tokens per second.
    tok_s: f64,
    /// Every run in order, tokens per second.
    runs: Vec<f64>,
    /// Weights read per second by the median, in GB; for decode only.
    #[serde(skip_serializing_if = "Option::is_none")]
    weights_gb_s: Option<f64>,
    /// With `--ops`: the share of each in the time of all runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    ops: Option<Vec<Share>>,
}

/// An op of the forward pass and its share of the time, 0 to 1.
#[derive(Debug, PartialEq, serde::Serialize)]
struct Share {
    op: &'static str,
    share: f64,
}

impl Bench {
    pub fn run(&self) -> Result<()> {
        let source = model::open(&self.model.model)?;
        let mut arguments = self.model.clone();
        let longest = self.prefill.iter().chain(&self.decode).copied().max().map_or(1, NonZeroUsize::get);
        arguments.context = Some(arguments.context.unwrap_or(longest));
        let task = Measure { bench: self, weight_bytes: source.matrix_bytes() };
        if self.ops {
            let loaded = source.load_on(&arguments, Timed::new)?;
            task.measure(loaded, |backend| backend.take().to_vec())
        } else {
            source.run(self.device, &arguments, task)
        }
    }
}

/// The tasks, and the bytes of weights that a token reads.
struct Measure<'a> {
    bench: &'a Bench,
    weight_bytes: usize,
}

/// What `--json` shows.
#[derive(serde::Serialize)]
struct Report<'a> {
    model: &'a str,
    #[serde(flatten)]
    runs_on: RunsOn,
    chunk: NonZeroUsize,
    load_s: f64,
    weight_bytes: usize,
    results: Vec<Speed>,
}

impl Job for Measure<'_> {
    type Output = ();

    fn run_on<B: Backend>(self, loaded: Loaded<B>) -> Result<()> {
        self.measure(loaded, |_| Vec::new())
    }
}

impl Measure<'_> {
    /// Runs every task; `spent` says how long each op has taken since the last time, as far as that is measured.
    fn measure<B: Backend>(
        self,
        mut loaded: Loaded<B>,
        spent: impl Fn(&B) -> Vec<(Op, Duration)>,
    ) -> Result<()> {
        let Self { bench: Bench { model, prefill, decode, chunk, repeat, .. }, weight_bytes } = self;
        let mut session = loaded.model.session()?;
        let mut speeds = Vec::new();
        let tasks = prefill.iter().map(|&n| ("pp", n.get(), chunk.get()));
        for (kind, n, chunk) in tasks.chain(decode.iter().map(|&n| ("tg", n.get(), 1))) {
            let runs = (0..*repeat).map(|_| run(&mut loaded.model, &mut session, n, chunk));
            let runs = runs.collect::<Result<Vec<f64>>>()?;
            let tok_s = median(&runs);
            let gb_s = tok_s * weight_bytes as f64 / 1e9;
            let weights_gb_s = (kind == "tg").then_some(gb_s);
            let wall: f64 = runs.iter().map(|tok_s| n as f64 / tok_s).sum();
            let ops = shares(&spent(loaded.model.backend()), wall);
            let speed = Speed { name: format!("{kind}{n}"), tok_s, runs, weights_gb_s, ops };
            if !model.json {
                speed.print()?;
            }
            speeds.push(speed);
        }
        if !model.json {
            return Ok(());
        }
        output::json(&Report {
            model: &model.model,
            runs_on: loaded.runs_on,
            chunk: *chunk,
            load_s: loaded.load_s,
            weight_bytes,
            results: speeds,
        })
    }
}

/// Tokens per second of `n` tokens from an empty cache, `chunk` at a time, with the last one's logits each time.
fn run<B: Backend>(model: &mut Model<B>, session: &mut Session<B>, n: usize, chunk: usize) -> Result<f64> {
    let vocab_size = model.config().vocab_size;
    let ids: Vec<u32> = (0..n).map(|i| (i * 7919 % vocab_size) as u32).collect();
    let mut logits = Vec::new();
    session.clear();
    let start = Instant::now();
    for ids in ids.chunks(chunk) {
        model.run(session, ids, ids.len() - 1..ids.len(), &mut logits, None)?;
    }
    Ok(n as f64 / start.elapsed().as_secs_f64())
}

/// The share of every op in `wall` seconds, and of what is no op; nothing when no ops were measured.
fn shares(spent: &[(Op, Duration)], wall: f64) -> Option<Vec<Share>> {
    let share = |op, seconds: f64| Share { op, share: seconds / wall };
    let mut shares: Vec<Share> =
        spent.iter().map(|(op, time)| share(op.name(), time.as_secs_f64())).collect();
    let rest = 1.0 - shares.iter().map(|share| share.share).sum::<f64>();
    shares.push(share("other", rest.max(0.0) * wall));
    (!spent.is_empty()).then_some(shares)
}

fn median(runs: &[f64]) -> f64 {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

impl Speed {
    fn print(&self) -> Result<()> {
        let weights = self.weights_gb_s.map_or_else(String::new, |gb| format!(", {gb:.1} GB/s of weights"));
        output::line(&format!("{:6} {:8.1} tok/s{weights}", self.name, self.tok_s))?;
        let ops = self.ops.iter().flatten();
        ops.into_iter().try_for_each(|Share { op, share }| {
            output::line(&format!("       {op:16} {:5.1} %", 100.0 * share))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn shares_of_a_time() {
        assert_eq!(shares(&[], 2.0), None);
        let spent = [(Op::Qkv, Duration::from_millis(500)), (Op::Head, Duration::from_secs(1))];
        let found: Vec<_> = shares(&spent, 2.0).unwrap_or_default();
        let expected = [("qkv", 0.25), ("head", 0.5), ("other", 0.25)];
        assert_eq!(found, expected.map(|(op, share)| Share { op, share }));
    }
}
