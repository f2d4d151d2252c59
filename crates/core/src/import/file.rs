//! Files on a disk.

use crate::{Error, Result};
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Bytes of a document that is read whole, at most: a tokenizer, an index, a text. No sensible one is longer, and a file
/// that someone has mistaken for one must not fill the memory.
pub const MAX_DOCUMENT: u64 = 256 << 20;

/// Opens a regular file and says how long it is. Everything else is refused before it is opened: a pipe would wait for a
/// writer, and devices have neither an end nor positions.
///
/// # Errors
/// [`Error::Io`] when there is no such file, it may not be read, or it is something else than a regular file.
pub fn open(path: &Path) -> Result<(File, u64)> {
    let error = |source| Error::Io { path: path.display().to_string(), source };
    let metadata = fs::metadata(path).map_err(error)?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() { "is a folder" } else { "is a pipe or a device" };
        let problem = format!("{what}, expected a regular file; save the data to a file first");
        return Err(error(io::Error::new(io::ErrorKind::InvalidInput, problem)));
    }
    let file = File::open(path).map_err(error)?;
    let len = file.metadata().map_err(error)?.len();
    Ok((file, len))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::open;
    use std::path::Path;

    #[test]
    fn only_regular_files_are_opened() {
        let folder = std::env::temp_dir();
        assert!(open(&folder).unwrap_err().to_string().contains("is a folder"));
        assert!(open(&folder.join("lowbit-none")).unwrap_err().to_string().contains("lowbit-none"));
        let path = folder.join(format!("lowbit-open-{}", std::process::id()));
        std::fs::write(&path, b"12345").unwrap();
        assert_eq!(open(&path).unwrap().1, 5);
        std::fs::remove_file(path).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn devices_are_refused() {
        assert!(
            open(Path::new("/dev/zero"))
                .unwrap_err()
                .to_string()
                .contains("/dev/zero: is a pipe or a device")
        );
    }
}
