//! `lowbit run`: one answer.

use crate::args::{AnswerArgs, DeviceArgs, ModelArgs, PromptArgs};
use crate::error::Result;
use crate::model::{Job, Loaded, RunsOn};
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
struct Report<'a> {
    tokens: &'a [u32],
    text: &'a str,
    finish_reason: lowbit_engine::FinishReason,
    #[serde(flatten)]
    stats: lowbit_engine::Stats,
    load_s: f64,
    #[serde(flatten)]
    runs_on: RunsOn,
}

impl Run {
    pub fn run(&self) -> Result<()> {
        model::open(&self.model.model)?.run(self.device, &self.model, self)
    }
}

impl Job for &Run {
    type Output = ();

    fn run_on<B: Backend>(self, mut loaded: Loaded<B>) -> Result<()> {
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
            runs_on: loaded.runs_on,
        })
    }
}
