//! `lowbit compare`: how far a model is from a reference, position by position.
//!
//! The text is cut into windows as `lowbit perplexity` does. Both models run every window; at every position but the last the
//! distributions over the next token are compared.

use super::perplexity::{ROWS, Windows};
use crate::args::{activations, threads};
use crate::compare::{Distance, Distances};
use crate::error::{Error, Result};
use crate::model::{self, Source};
use crate::{input, output};
use lowbit_core::activation::Activations;
use lowbit_core::backend::{Backend, CpuBackend};
use lowbit_core::simd::Isa;
use lowbit_engine::log_probs::LogProbs;
use lowbit_engine::oracle::Oracle;
use lowbit_engine::{LoadOptions, Model};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Compare {
    /// The reference: an artifact, a GGUF file, a Hugging Face folder, or the name `smollm2`
    reference: String,
    /// The model that is compared with it
    model: String,
    /// UTF-8 text
    #[arg(long)]
    file: PathBuf,
    #[command(flatten)]
    windows: Windows,
    /// Run the reference on the f32 reference backend: exact, and slow
    #[arg(long)]
    exact: bool,
    /// Precision of the activations of both [default: each model's]
    #[arg(long, value_parser = activations())]
    act: Option<Activations>,
    /// Threads, 1 to 255 [default: the machine's cores]
    #[arg(long, value_parser = threads())]
    threads: Option<usize>,
    /// One JSON document on standard output
    #[arg(long)]
    json: bool,
}

impl Compare {
    pub fn run(&self) -> Result<()> {
        let text = input::file(&self.file)?;
        let [a, b] = [&self.reference, &self.model].map(|name| model::open(name));
        let (a, b) = (a?, b?);
        let model = self.load(&b, self.on_cpu(&b)?)?;
        let found = match self.exact {
            true => self.compare(self.load(&a, Oracle::default())?, model, &text)?,
            false => self.compare(self.load(&a, self.on_cpu(&a)?)?, model, &text)?,
        };
        let summary = found.summary();
        if self.json {
            return output::json(&summary);
        }
        output::line(&format!(
            "KL {:.3e} mean, {:.3e} median, {:.3e} at 99 %, {:.3e} most",
            summary.kl.mean, summary.kl.median, summary.kl.percentile_99, summary.kl.max
        ))?;
        output::line(&format!(
            "the same likeliest token at {:.2} % of {} positions; centred RMS of the logits {:.5}",
            100.0 * summary.same_top,
            summary.positions,
            summary.centred_rms
        ))?;
        output::line(&format!(
            "perplexity {:.4} of the reference, {:.4} of the model",
            summary.perplexity_of_reference, summary.perplexity
        ))
    }

    fn on_cpu(&self, source: &Source) -> Result<CpuBackend> {
        let act = self.act.unwrap_or(source.artifact.header().manifest.activations);
        let threads = self.threads.unwrap_or_else(lowbit_core::parallel::cores);
        Ok(CpuBackend::new(Isa::best(), threads, act)?)
    }

    fn load<B: Backend>(&self, source: &Source, backend: B) -> Result<Model<B>> {
        let options = LoadOptions { context: Some(self.windows.chunk as usize) };
        Ok(Model::load(&source.artifact, backend, options)?)
    }

    /// The refusal of models that have what no distribution can be compared over.
    fn incomparable(&self, what: &str) -> Error {
        let (reference, model) = (&self.reference, &self.model);
        Error::Usage(format!(
            "{reference} and {model} have {what}: probabilities of different tokens cannot be compared; give models of one \
             tokenizer, or compare their texts by `lowbit perplexity`"
        ))
    }

    fn compare<A: Backend, B: Backend>(
        &self,
        mut a: Model<A>,
        mut b: Model<B>,
        text: &str,
    ) -> Result<Distances> {
        let windows = self.windows.cut(&a, text)?;
        let sizes = [a.config().vocab_size, b.config().vocab_size];
        if sizes[0] != sizes[1] {
            return Err(self.incomparable(&format!("vocabularies of {} and {} tokens", sizes[0], sizes[1])));
        }
        if self.windows.cut(&b, text)? != windows {
            return Err(self.incomparable("different tokenizers, which give the text different tokens"));
        }
        let mut distances = Distances::default();
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        for ids in &windows {
            let (mut of_a, mut of_b) = (a.session()?, b.session()?);
            let mut sums = [0.0; 2];
            for (rows, targets) in ids.chunks(ROWS).zip(ids[1..].chunks(ROWS)) {
                a.run(&mut of_a, rows, 0..targets.len(), &mut expected, None)?;
                b.run(&mut of_b, rows, 0..targets.len(), &mut found, None)?;
                let pairs = expected.chunks_exact(sizes[0]).zip(found.chunks_exact(sizes[0]));
                for ((expected, found), &target) in pairs.zip(targets) {
                    sums[0] -= LogProbs::new(expected)?.of(target)?;
                    sums[1] -= LogProbs::new(found)?.of(target)?;
                    distances.add(Distance::between(expected, found)?);
                }
            }
            distances.end_window(sums.map(|sum| sum / (ids.len() - 1) as f64));
        }
        Ok(distances)
    }
}
