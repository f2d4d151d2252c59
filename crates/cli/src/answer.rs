//! Runs an answer to its end.

use crate::error::Result;
use lowbit_core::backend::Backend;
use lowbit_engine::{Event, FinishReason, Generation, Model, Session};

/// Runs `generation` to its end, or until `aborted` says so between two steps; `show` gets the text as it comes.
/// Returns all of the text and the reason of the end.
pub fn stream<B: Backend>(
    generation: &mut Generation,
    model: &mut Model<B>,
    session: &mut Session<B>,
    mut show: impl FnMut(&str) -> Result<()>,
    aborted: impl Fn() -> bool,
) -> Result<(String, FinishReason)> {
    let mut all = String::new();
    loop {
        let event = if aborted() { generation.abort() } else { generation.step(model, session)? };
        let (text, end) = match event {
            Event::Prefill { .. } => continue,
            Event::Token { text, .. } => (text, None),
            Event::Done { reason, text } => (text, Some(reason)),
        };
        show(&text)?;
        all.push_str(&text);
        if let Some(reason) = end {
            return Ok((all, reason));
        }
    }
}
