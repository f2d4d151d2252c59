//! Ctrl-C: ends the answer that is being written, and otherwise the program, which leaves no unfinished file behind.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// Exit status of a program ended by Ctrl-C.
const INTERRUPTED: i32 = 130;

const WAITING: u8 = 0;
const ANSWERING: u8 = 1;
const ABORTED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(WAITING);
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Begins to catch Ctrl-C; to be called once.
pub fn install() -> Result<()> {
    ctrlc::set_handler(interrupted).map_err(|e| Error::Usage(format!("Ctrl-C cannot be caught: {e}")))
}

fn interrupted() {
    if STATE.compare_exchange(ANSWERING, ABORTED, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
        return;
    }
    // The lock is kept: a file that is made from now on could not be removed.
    let mut unfinished = lock();
    unfinished.drain(..).for_each(|path| remove(&path));
    std::process::exit(INTERRUPTED);
}

fn lock() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remove(path: &Path) {
    let _ = std::fs::remove_file(path).or_else(|_| std::fs::remove_dir_all(path));
}

/// While it lives, Ctrl-C ends the answer instead of the program.
pub struct Answering(());

impl Answering {
    pub fn begin() -> Self {
        STATE.store(ANSWERING, Ordering::SeqCst);
        Self(())
    }

    pub fn aborted(&self) -> bool {
        STATE.load(Ordering::SeqCst) == ABORTED
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        STATE.store(WAITING, Ordering::SeqCst);
    }
}

/// A file or folder in the making, which Ctrl-C removes.
pub struct Unfinished(PathBuf);

impl Unfinished {
    /// Makes something that has a path.
    pub fn new<T>(make: impl FnOnce() -> Result<T>, path: impl FnOnce(&T) -> &Path) -> Result<(Self, T)> {
        let mut unfinished = lock();
        let made = make()?;
        let path = path(&made).to_owned();
        unfinished.push(path.clone());
        Ok((Self(path), made))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        lock().retain(|path| *path != self.0);
    }
}
