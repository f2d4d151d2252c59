//! `lowbit bench`: speed of prefill and decode, medians.

use crate::args::ModelArgs;
use crate::error::Result;
use crate::{model, output};
use lowbit_core::backend::Backend;
use lowbit_engine::{Model, Session};
use std::num::NonZeroUsize;
use std::time::Instant;

#[derive(clap::Args)]
pub struct Bench {
    #[command(flatten)]
    model: ModelArgs,
    /// Prompt lengths
    #[arg(long, value_delimiter = ',', default_values_t = [128, 512])]
    prefill: Vec<usize>,
    /// Tokens decoded one by one, after an empty cache
    #[arg(long, value_delimiter = ',', default_values_t = [64])]
    decode: Vec<usize>,
    /// Prompt tokens that are run together
    #[arg(long, default_value = "512")]
    chunk: NonZeroUsize,
    /// Runs of each, of which the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
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
}

impl Bench {
    pub fn run(&self) -> Result<()> {
        let source = model::open(&self.model.model)?;
        let weight_bytes = source.matrix_bytes();
        let mut arguments = self.model.clone();
        let longest = self.prefill.iter().chain(&self.decode).copied().max().unwrap_or(1);
        arguments.context = Some(arguments.context.unwrap_or(longest));
        let mut loaded = source.load(&arguments)?;
        let mut session = loaded.model.session()?;
        let mut speeds = Vec::new();
        let tasks = self.prefill.iter().map(|&n| ("pp", n, self.chunk.get()));
        for (kind, n, chunk) in tasks.chain(self.decode.iter().map(|&n| ("tg", n, 1))) {
            let runs = (0..self.repeat).map(|_| run(&mut loaded.model, &mut session, n, chunk));
            let runs = runs.collect::<Result<Vec<f64>>>()?;
            let tok_s = median(&runs);
            let gb_s = tok_s * weight_bytes as f64 / 1e9;
            let weights_gb_s = (kind == "tg").then_some(gb_s);
            let speed = Speed { name: format!("{kind}{n}"), tok_s, runs, weights_gb_s };
            if !self.model.json {
                speed.print()?;
            }
            speeds.push(speed);
        }
        if !self.model.json {
            return Ok(());
        }
        output::json(&serde_json::json!({
            "model": self.model.model,
            "isa": loaded.device.isa,
            "threads": loaded.device.threads,
            "act": loaded.device.act,
            "chunk": self.chunk,
            "load_s": loaded.load_s,
            "weight_bytes": weight_bytes,
            "results": speeds,
        }))
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
        output::line(&format!("{:6} {:8.1} tok/s{weights}", self.name, self.tok_s))
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
