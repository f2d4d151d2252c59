//! Texts from files and from standard input.

use crate::error::{Error, Result};
use lowbit_core::import::MAX_DOCUMENT;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The text itself, or standard input for `-`.
pub fn text_or_stdin(text: &str) -> Result<String> {
    if text != "-" {
        return Ok(text.to_owned());
    }
    read(Path::new("standard input"), io::stdin().lock())
}

/// The text of a file.
pub fn file(path: &Path) -> Result<String> {
    read(path, File::open(path).map_err(|e| Error::io(path, e))?)
}

fn read(path: &Path, from: impl Read) -> Result<String> {
    let mut text = String::new();
    // A device has no end.
    from.take(MAX_DOCUMENT + 1).read_to_string(&mut text).map_err(|e| Error::io(path, e))?;
    if text.len() as u64 > MAX_DOCUMENT {
        let problem = format!("is longer than {} MiB; give a shorter text", MAX_DOCUMENT >> 20);
        return Err(Error::io(path, io::Error::new(io::ErrorKind::FileTooLarge, problem)));
    }
    Ok(text)
}
