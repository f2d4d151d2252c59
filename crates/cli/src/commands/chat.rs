//! `lowbit chat`: a conversation in the terminal.

use crate::args::{AnswerArgs, DeviceArgs, ModelArgs};
use crate::error::{Error, Result};
use crate::interrupt::Answering;
use crate::model::{Job, Loaded};
use crate::{answer, model, output};
use lowbit_core::backend::Backend;
use lowbit_engine::{Message, Model, Session};
use std::io::{BufRead, IsTerminal};

#[derive(clap::Args)]
pub struct Chat {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// System prompt [default: the chat template's]
    #[arg(long)]
    system: Option<String>,
    #[command(flatten)]
    answer: AnswerArgs,
}

impl Chat {
    pub fn run(&self) -> Result<()> {
        model::open(&self.model.model)?.run(self.device, &self.model, self)
    }
}

impl Job for &Chat {
    type Output = ();

    fn run_on<B: Backend>(self, mut loaded: Loaded<B>) -> Result<()> {
        let model = &mut loaded.model;
        let mut session = model.session()?;
        let mut messages: Vec<Message> = Vec::new();
        messages.extend(self.system.as_ref().map(|text| Message::new("system", text.clone())));
        let mut unanswered = 0;
        while let Some(question) = self.ask()? {
            messages.push(Message::new("user", question));
            match self.answer(model, &mut session, &messages) {
                Ok(text) => messages.push(Message::new("assistant", text)),
                // A question that is too long, say, must not end the conversation.
                Err(Error::Engine(error)) => {
                    messages.pop();
                    unanswered += 1;
                    crate::show_error(&Error::Engine(error), self.model.json);
                }
                Err(error) => return Err(error),
            }
        }
        match unanswered {
            0 => Ok(()),
            n => Err(Error::Unanswered(n)),
        }
    }
}

impl Chat {
    /// Answers the last of `messages` and returns the answer's text.
    fn answer<B: Backend>(
        &self,
        model: &mut Model<B>,
        session: &mut Session<B>,
        messages: &[Message],
    ) -> Result<String> {
        let answering = Answering::begin();
        let mut generation = model.chat(session, messages, self.answer.options())?;
        let show = |piece: &str| if self.model.json { Ok(()) } else { output::text(piece) };
        let (text, reason) = answer::stream(&mut generation, model, session, show, || answering.aborted())?;
        drop(answering);
        self.report(&text, reason, &generation)?;
        Ok(text)
    }

    /// The next question; `None` at the end of the input.
    fn ask(&self) -> Result<Option<String>> {
        let stdin = std::io::stdin();
        loop {
            if stdin.is_terminal() && !self.model.json {
                output::text("> ")?;
            }
            let mut line = String::new();
            let read = stdin.lock().read_line(&mut line);
            let n = read.map_err(|source| Error::Io { path: "standard input".to_owned(), source })?;
            match line.trim() {
                _ if n == 0 => return Ok(None),
                "" => {}
                question => return Ok(Some(question.to_owned())),
            }
        }
    }

    fn report(
        &self,
        text: &str,
        reason: lowbit_engine::FinishReason,
        generation: &lowbit_engine::Generation,
    ) -> Result<()> {
        use lowbit_engine::FinishReason as Reason;
        if self.model.json {
            return output::json(&serde_json::json!({
                "text": text,
                "tokens": generation.tokens(),
                "finish_reason": reason,
                "stats": generation.stats(),
            }));
        }
        output::line(match reason {
            Reason::Aborted => " [stopped]",
            Reason::Length => " [the limit of tokens is reached]",
            Reason::Context => " [the context is full]",
            Reason::Stop | Reason::StopString => "",
        })
    }
}
