//! `lowbit perplexity`: how surprised the model is by a text.
//!
//! The text is tokenised as a whole, without special tokens, and cut into windows of `--chunk` tokens. Every window is run
//! from an empty cache; its tokens from the second on are scored. The perplexity is `exp` of the mean of the windows'
//! mean negative log-likelihoods.

use crate::args::{DeviceArgs, ModelArgs};
use crate::error::{Error, Result};
use crate::model::{Job, Loaded};
use crate::{input, model, output};
use lowbit_core::backend::Backend;
use lowbit_engine::Model;
use lowbit_engine::log_probs::LogProbs;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Perplexity {
    /// UTF-8 text
    file: PathBuf,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    windows: Windows,
    /// Run the f32 reference backend instead: exact, and slow
    #[arg(long, conflicts_with_all = ["isa", "threads", "act", "device"])]
    exact: bool,
}

/// The windows that a text is cut into.
#[derive(clap::Args, Clone, Copy)]
pub struct Windows {
    /// Tokens of a window
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(2..))]
    pub chunk: u32,
    /// The most windows
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    chunks: u32,
}

impl Windows {
    /// The tokens of every window.
    pub fn cut<B: Backend>(self, model: &Model<B>, text: &str) -> Result<Vec<Vec<u32>>> {
        let ids = model.codec().tokenizer().encode(text, false);
        let windows = ids.chunks_exact(self.chunk as usize).take(self.chunks as usize);
        if windows.len() == 0 {
            return Err(Error::Usage(format!("the text has {} tokens, fewer than one window", ids.len())));
        }
        Ok(windows.map(<[u32]>::to_vec).collect())
    }
}

impl Perplexity {
    pub fn run(&self) -> Result<()> {
        let text = input::file(&self.file)?;
        let chunk = self.windows.chunk as usize;
        let mut arguments = self.model.clone();
        arguments.context = Some(arguments.context.unwrap_or(chunk));
        let source = model::open(&arguments.model)?;
        let job = Likelihoods { windows: self.windows, text: &text };
        let nll = match self.exact {
            true => job.run_on(source.load_exact(&arguments)?)?,
            false => source.run(self.device, &arguments, job)?,
        };
        let perplexity = (nll.iter().sum::<f64>() / nll.len() as f64).exp();
        if self.model.json {
            return output::json(&serde_json::json!({
                "perplexity": perplexity,
                "nll_per_chunk": nll,
                "tokens": nll.len() * (chunk - 1),
            }));
        }
        output::line(&format!("perplexity {perplexity:.4} over {} windows of {chunk} tokens", nll.len()))
    }
}

/// The mean negative log-likelihood of every window of a text.
struct Likelihoods<'a> {
    windows: Windows,
    text: &'a str,
}

impl Job for Likelihoods<'_> {
    type Output = Vec<f64>;

    fn run_on<B: Backend>(self, mut loaded: Loaded<B>) -> Result<Vec<f64>> {
        let windows = self.windows.cut(&loaded.model, self.text)?;
        windows.iter().map(|ids| window(&mut loaded.model, ids)).collect()
    }
}

/// Rows whose logits are held at once.
pub const ROWS: usize = 64;

fn window<B: Backend>(model: &mut Model<B>, ids: &[u32]) -> Result<f64> {
    let mut session = model.session()?;
    let vocab_size = model.config().vocab_size;
    let mut logits = Vec::new();
    let mut sum = 0.0;
    for (rows, targets) in ids.chunks(ROWS).zip(ids[1..].chunks(ROWS)) {
        model.run(&mut session, rows, 0..targets.len(), &mut logits, None)?;
        for (logits, &target) in logits.chunks_exact(vocab_size).zip(targets) {
            sum -= LogProbs::new(logits)?.of(target)?;
        }
    }
    Ok(sum / (ids.len() - 1) as f64)
}
