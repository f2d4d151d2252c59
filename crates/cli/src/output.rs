//! Standard output, where a closed pipe is an ordinary end.

use crate::error::{Error, Result};
use std::io::Write;

/// Writes `text` as it is.
pub fn text(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(closed)
}

/// Writes `text` and a line end.
pub fn line(line: &str) -> Result<()> {
    text(&format!("{line}\n"))
}

/// What a file says, on one line: what could steer a terminal is spelt out.
pub fn one_line(said: &str) -> String {
    let mut line = String::with_capacity(said.len());
    for c in said.chars() {
        match c {
            '\n' => line.push(' '),
            c if c.is_control() => line.extend(c.escape_debug()),
            c => line.push(c),
        }
    }
    line
}

/// Writes a value as one line of JSON.
pub fn json(value: &impl serde::Serialize) -> Result<()> {
    let value = serde_json::to_string(value)
        .map_err(|e| Error::Io { path: "standard output".to_owned(), source: e.into() })?;
    line(&value)
}

fn closed(source: std::io::Error) -> Error {
    match source.kind() {
        std::io::ErrorKind::BrokenPipe => Error::BrokenPipe,
        _ => Error::Io { path: "standard output".to_owned(), source },
    }
}
