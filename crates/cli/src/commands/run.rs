//! `lowbit run`: one answer.

use crate::args::{AnswerArgs, ModelArgs, PromptArgs};
use crate::error::Result;
use crate::{answer, model, output};
use lowbit_engine::Generation;

#[derive(clap::Args)]
pub struct Run {
    #[command(flatten)]
    model: ModelArgs,
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
    device: model::Device,
}

impl Run {
    pub fn run(&self) -> Result<()> {
        let mut loaded = model::load(&self.model)?;
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
