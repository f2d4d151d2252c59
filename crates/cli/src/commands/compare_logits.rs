//! `lowbit compare-logits`: how far the logits after a prompt are from a reference.

use crate::args::{DeviceArgs, ModelArgs, PromptArgs};
use crate::compare::Distance;
use crate::error::{Error, Result};
use crate::model::{Job, Loaded};
use crate::{model, npy, output};
use lowbit_core::backend::Backend;
use lowbit_engine::logits_sha256;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct CompareLogits {
    /// `.npy` file with one f32 a token of the vocabulary
    file: PathBuf,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Run the f32 reference backend instead: exact, and slow
    #[arg(long, conflicts_with_all = ["isa", "threads", "act", "device"])]
    exact: bool,
}

impl CompareLogits {
    pub fn run(&self) -> Result<()> {
        let expected = npy::read_f32(&self.file)?;
        let source = model::open(&self.model.model)?;
        let found = match self.exact {
            true => self.run_on(source.load_exact(&self.model)?)?,
            false => source.run(self.device, &self.model, self)?,
        };
        if expected.len() != found.len() {
            return Err(Error::Reference {
                path: self.file.display().to_string(),
                problem: format!("holds {} values, the model gives {}", expected.len(), found.len()),
            });
        }
        let distance = Distance::between(&expected, &found)?;
        if self.model.json {
            return output::json(&serde_json::json!({
                "distance": distance,
                "logits_sha256": logits_sha256(&found),
            }));
        }
        let Distance { kl, rms, centred_rms, max_abs, same_top } = distance;
        output::line(&format!(
            "KL {kl:.3e}, RMS {rms:.5}, centred RMS {centred_rms:.5}, largest {max_abs:.5}"
        ))?;
        output::line(if same_top { "the same first token" } else { "ANOTHER first token" })
    }
}

impl Job for &CompareLogits {
    /// The logits after the prompt.
    type Output = Vec<f32>;

    fn run_on<B: Backend>(self, Loaded { mut model, .. }: Loaded<B>) -> Result<Vec<f32>> {
        let ids = self.prompt.encode(&model)?;
        let mut session = model.session()?;
        let mut logits = Vec::new();
        model.run(&mut session, &ids, ids.len().saturating_sub(1)..ids.len(), &mut logits, None)?;
        Ok(logits)
    }
}
