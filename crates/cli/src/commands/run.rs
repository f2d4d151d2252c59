//! `lowbit run`: one answer.

use crate::args::{AnswerArgs, Device, DeviceArgs, ModelArgs, PromptArgs};
use crate::error::Result;
use crate::model::Loaded;
use crate::{answer, model, output};
use lowbit_core::backend::Backend;
use lowbit_engine::Generation;

#[derive(clap::Args)]
pub struct Run {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    answer: AnswerArgs,
}

#[derive(serde::Serialize)]
struct Report<'a, D> {
    tokens: &'a [u32],
    text: &'a str,
    finish_reason: lowbit_engine::FinishReason,
    #[serde(flatten)]
    stats: lowbit_engine::Stats,
    load_s: f64,
    #[serde(flatten)]
    device: D,
}

impl Run {
    pub fn run(&self) -> Result<()> {
        let source = model::open(&self.model.model)?;
        match self.device.device {
            Device::Cpu => self.answer(source.load(&self.model)?),
            Device::Gpu => self.answer(source.load_on_gpu(&self.model)?),
        }
    }

    fn answer<B: Backend>(&self, mut loaded: Loaded<B, impl serde::Serialize>) -> Result<()> {
        let model = &mut loaded.model;
        let prompt = self.prompt.encode(model)?;
        let mut session = model.session()?;
        let mut generation = Generation::new(model, &mut session, prompt, self.answer.options())?;
        let show = |piece: &str| if self.model.json { Ok(()) } else { output::text(piece) };
        let (text, reason) = answer::stream(&mut generation, model, &mut session, show, || false)?;
        if !self.model.json {
            return output::text("\n");
        }
        output::json(&Report {
            tokens: generation.tokens(),
            text: &text,
            finish_reason: reason,
            stats: generation.stats(),
            load_s: loaded.load_s,
            device: loaded.device,
        })
    }
}
