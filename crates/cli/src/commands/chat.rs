//! `lowbit chat`: a conversation in the terminal.

use crate::args::{AnswerArgs, ModelArgs};
use crate::error::{Error, Result};
use crate::{answer, model, output};
use lowbit_engine::Message;
use std::io::{BufRead, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

#[derive(clap::Args)]
pub struct Chat {
    #[command(flatten)]
    model: ModelArgs,
    /// System prompt [default: the chat template's]
    #[arg(long)]
    system: Option<String>,
    #[command(flatten)]
    answer: AnswerArgs,
}

/// What Ctrl-C does: ends the program while it waits for a question (and when pressed twice), ends the answer else.
#[derive(Clone, Default)]
struct Interrupt(Arc<AtomicU8>);

const WAITING: u8 = 0;
const ANSWERING: u8 = 1;
const ABORTED: u8 = 2;
/// Exit status of a program ended by Ctrl-C.
const INTERRUPTED: i32 = 130;

impl Interrupt {
    fn install() -> Result<Self> {
        let state = Self::default();
        let shared = state.clone();
        let on_interrupt = move || {
            let aborted = shared.0.compare_exchange(ANSWERING, ABORTED, Ordering::SeqCst, Ordering::SeqCst);
            if aborted.is_err() {
                std::process::exit(INTERRUPTED);
            }
        };
        ctrlc::set_handler(on_interrupt)
            .map_err(|e| Error::Usage(format!("Ctrl-C cannot be caught: {e}")))?;
        Ok(state)
    }

    fn set(&self, state: u8) {
        self.0.store(state, Ordering::SeqCst);
    }

    fn aborted(&self) -> bool {
        self.0.load(Ordering::SeqCst) == ABORTED
    }
}

impl Chat {
    pub fn run(&self) -> Result<()> {
        let interrupt = Interrupt::install()?;
        let mut loaded = model::load(&self.model)?;
        let model = &mut loaded.model;
        let mut session = model.session()?;
        let mut messages: Vec<Message> = Vec::new();
        messages.extend(self.system.as_ref().map(|text| Message::new("system", text.clone())));
        while let Some(question) = self.ask()? {
            messages.push(Message::new("user", question));
            interrupt.set(ANSWERING);
            let mut generation = model.chat(&mut session, &messages, self.answer.options())?;
            let show = |piece: &str| if self.model.json { Ok(()) } else { output::text(piece) };
            let (text, reason) =
                answer::stream(&mut generation, model, &mut session, show, || interrupt.aborted())?;
            interrupt.set(WAITING);
            self.report(&text, reason, &generation)?;
            messages.push(Message::new("assistant", text));
        }
        Ok(())
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
