//! Where fetched and packed models are kept: `$LOWBIT_CACHE`, or `lowbit` in the system's folder for caches.

use crate::error::{Error, Result};
use etcetera::BaseStrategy;
use std::path::PathBuf;

/// The folder, made if need be.
pub fn dir() -> Result<PathBuf> {
    let dir = match std::env::var_os("LOWBIT_CACHE").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => etcetera::choose_base_strategy()
            .map_err(|_| Error::Usage("there is no home directory; set LOWBIT_CACHE to a folder".to_owned()))?
            .cache_dir()
            .join("lowbit"),
    };
    std::fs::create_dir_all(&dir).map_err(|e| Error::io(&dir, e))?;
    Ok(dir)
}
