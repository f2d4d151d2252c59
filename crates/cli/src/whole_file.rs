//! Files that appear whole or not at all.

use crate::error::{Error, Result};
use crate::interrupt::Unfinished;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use tempfile::{Builder, NamedTempFile};

/// Writes the file `path` by `write`, which gets an empty file beside it with a name of its own. It takes the place of
/// `path` when all has been written; after an error or Ctrl-C nothing of it remains, and what was at `path` still is.
pub fn write<T>(path: &Path, write: impl FnOnce(&File) -> Result<T>) -> Result<T> {
    let target = target(path)?;
    let (unfinished, file) = Unfinished::new(|| beside(&target), NamedTempFile::path)?;
    let value = write(file.as_file())?;
    file.persist(&target).map_err(|e| Error::io(path, e.error))?;
    drop(unfinished);
    Ok(value)
}

/// Whether [`write()`] can begin with `path`; for what takes long before there is something to write.
pub fn check(path: &Path) -> Result<()> {
    beside(&target(path)?).map(drop)
}

/// Where the file goes: through links, and only where no folder, pipe or device is in the way.
fn target(path: &Path) -> Result<PathBuf> {
    let in_the_way = || {
        let problem = "is there already and is no regular file; choose another name for the output";
        Error::io(path, io::Error::new(io::ErrorKind::AlreadyExists, problem))
    };
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => path.canonicalize().map_err(|e| Error::io(path, e)),
        Ok(_) => Err(in_the_way()),
        Err(_) => Ok(path.to_owned()),
    }
}

/// An empty file in the same folder, removed when it is dropped.
fn beside(path: &Path) -> Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        let problem = format!("there is no folder {}; make it, or choose another place", folder.display());
        return Err(Error::io(path, io::Error::new(io::ErrorKind::NotFound, problem)));
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    let mut builder = Builder::new();
    builder.prefix(&name).suffix(".part");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As for any other file: what the user's mask leaves of it.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder).map_err(|e| Error::io(path, e))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn fill(mut file: &File, text: &str) -> Result<()> {
        file.write_all(text.as_bytes()).map_err(|e| Error::io(Path::new("test"), e))
    }

    #[test]
    fn writers_of_one_file_do_not_meet() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        write(&path, |first| {
            fill(first, "fir")?;
            write(&path, |second| fill(second, "second"))?;
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "second");
            fill(first, "st")
        })
        .unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first");
        assert_eq!(names(folder.path()), ["a.txt"]);
    }

    #[test]
    fn after_an_error_all_is_as_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, "before").unwrap();
        let fail = |file: &File| {
            fill(file, "after")?;
            assert_eq!(names(folder.path()).len(), 2);
            Err::<(), _>(Error::Usage("enough".to_owned()))
        };
        assert!(write(&path, fail).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "before");
        assert_eq!(names(folder.path()), ["a.txt"]);
    }

    #[test]
    fn what_is_no_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let message = write(folder.path(), |_| Ok(())).unwrap_err().to_string();
        assert!(message.contains("is no regular file"), "{message}");
        let path = folder.path().join("none/a.txt");
        let message = write(&path, |_| Ok(())).unwrap_err().to_string();
        assert!(message.contains("none/a.txt: there is no folder"), "{message}");
        assert_eq!(check(&path).unwrap_err().to_string(), message);
        assert!(check(folder.path()).is_err() && check(&folder.path().join("a.txt")).is_ok());
        assert_eq!(names(folder.path()), [""; 0]);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("a.txt"), folder.path().join("link"));
        std::fs::write(&path, "before").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write(&link, |file| fill(file, "after")).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "after");
        assert!(link.is_symlink());
    }
}
