//! `lowbit compare-logits`: how far the logits after a prompt are from a reference.

use crate::args::{Device, DeviceArgs, ModelArgs, PromptArgs};
use crate::compare::Distance;
use crate::error::{Error, Result};
use crate::{model, npy, output};
use lowbit_core::backend::Backend;
use lowbit_engine::{Model, logits_sha256};
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
        let found = match (self.exact, self.device.device) {
            (true, _) => self.logits(&mut model::load_exact(&self.model)?)?,
            (_, Device::Cpu) => self.logits(&mut model::load(&self.model)?.model)?,
            (_, Device::Gpu) => {
                self.logits(&mut model::open(&self.model.model)?.load_on_gpu(&self.model)?.model)?
            }
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

    fn logits<B: Backend>(&self, model: &mut Model<B>) -> Result<Vec<f32>> {
        let ids = self.prompt.encode(model)?;
        let mut session = model.session()?;
        let mut logits = Vec::new();
        model.run(&mut session, &ids, ids.len().saturating_sub(1)..ids.len(), &mut logits, None)?;
        Ok(logits)
    }
}
