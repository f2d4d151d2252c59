//! Where fetched and packed models are kept: `$LOWBIT_CACHE`, or `lowbit` in the system's folder for caches.

use crate::error::{Error, Result};
use etcetera::BaseStrategy;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The folder, made if need be.
pub fn dir() -> Result<PathBuf> {
    let dir = match std::env::var_os("LOWBIT_CACHE") {
        Some(dir) => PathBuf::from(dir),
        None => etcetera::choose_base_strategy()
            .map_err(|_| Error::Usage("there is no home directory; set LOWBIT_CACHE to a folder".to_owned()))?
            .cache_dir()
            .join("lowbit"),
    };
    std::fs::create_dir_all(&dir).map_err(|e| Error::io(&dir, e))?;
    Ok(dir)
}

/// Writes `path` through a file beside it, so that `path` is there either whole or not at all.
pub fn write_whole<T>(path: &Path, write: impl FnOnce(&Path, File) -> Result<T>) -> Result<T> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let file = File::create(&part).map_err(|e| Error::io(&part, e))?;
    let written = write(&part, file).and_then(|value| {
        std::fs::rename(&part, path).map_err(|e| Error::io(path, e))?;
        Ok(value)
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    written
}
