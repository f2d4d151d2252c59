//! The emulator of 64-bit Arm: the system's, or a newer one of Debian's that knows SME.

use crate::runner::{ask, program, step};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// From here on outer products are computed rightly and SME2 is known.
const KNOWS_SME: (u32, u32) = (10, 1);

/// Suites of Debian that have such an emulator, static, the nearest first.
const SUITES: [&str; 3] = ["trixie-backports", "testing", "sid"];

/// An emulator that is here.
#[derive(Clone, Debug)]
pub struct Emulator {
    /// What runs it.
    pub program: String,
    version: (u32, u32),
}

impl Emulator {
    /// The newest that is here.
    pub fn find() -> Option<&'static Self> {
        static FOUND: OnceLock<Option<Emulator>> = OnceLock::new();
        FOUND.get_or_init(Self::look).as_ref()
    }

    fn look() -> Option<Self> {
        let ours = ours().to_string_lossy().into_owned();
        let names = [ours.as_str(), "qemu-aarch64", "qemu-aarch64-static"];
        let found = names.into_iter().filter_map(|name| {
            Some(Self { program: name.to_owned(), version: version(&ask(name, &["--version"])?)? })
        });
        found.max_by_key(|emulator| emulator.version)
    }

    /// Whether it computes SME and SME2 rightly.
    pub fn knows_sme(&self) -> bool {
        self.version >= KNOWS_SME
    }

    /// A CPU with everything that it computes rightly.
    pub fn best_cpu(&self) -> &'static str {
        // The streaming mode of this one has no NEON, as that of real ones: code that forgets it is found.
        if self.knows_sme() { "max,sve=off,sme=on,sme_fa64=off,sme512=on" } else { "max,sme=off" }
    }
}

/// The version in what an emulator says of itself: `qemu-aarch64 version 11.1.3 (Debian ...)`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split("version ").nth(1)?.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The one that [`fetch`] puts here.
fn ours() -> PathBuf {
    crate::root().join("target/tools/qemu-aarch64")
}

/// Takes the emulator out of Debian's newest package, without installing that. The system's own lists of packages stay as
/// they are.
pub fn fetch() -> Result<()> {
    let mirror = mirror().context("no mirror of Debian is configured here")?;
    let dir = crate::root().join("target/tools/apt");
    let result = SUITES.iter().find_map(|suite| fetch_from(&mirror, suite, &dir).ok());
    let _ = std::fs::remove_dir_all(&dir);
    result.context("no suite of Debian has an emulator that knows SME")
}

fn fetch_from(mirror: &str, suite: &str, dir: &Path) -> Result<()> {
    for folder in ["lists/partial", "archives/partial", "none"] {
        std::fs::create_dir_all(dir.join(folder))?;
    }
    std::fs::write(dir.join("status"), "")?;
    let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
    std::fs::write(dir.join("sources.list"), format!("deb [signed-by={keyring}] {mirror} {suite} main\n"))?;
    let apt = |args: &[&str]| {
        let mut command = program("apt-get", &["-q"]);
        let at = |option: &str, path: &str| format!("-o{option}={}", dir.join(path).display());
        command.args([
            at("Dir::State::status", "status"),
            at("Dir::State::lists", "lists"),
            at("Dir::Cache::archives", "archives"),
            at("Dir::Cache::pkgcache", "pkgcache.bin"),
            at("Dir::Cache::srcpkgcache", "srcpkgcache.bin"),
            at("Dir::Etc::sourcelist", "sources.list"),
            at("Dir::Etc::sourceparts", "none"),
            at("Dir::Etc::preferencesparts", "none"),
        ]);
        command.args(["-oAcquire::Languages=none", "-oAPT::Sandbox::User=root"]).args(args).current_dir(dir);
        command
    };
    step(&format!("apt-get update, of {suite} alone"), &mut apt(&["update"]))?;
    step("apt-get download qemu-user", &mut apt(&["download", "qemu-user"]))?;
    let packages = std::fs::read_dir(dir)?.flatten().map(|file| file.path());
    let package =
        packages.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "deb"));
    let package = package.context("apt-get downloaded nothing")?;
    let unpacked = dir.join("unpacked");
    let mut unpack = program("dpkg-deb", &["-x"]);
    step("dpkg-deb -x", unpack.arg(&package).arg(&unpacked))?;
    let emulator = unpacked.join("usr/bin/qemu-aarch64");
    let found = ask(&emulator.to_string_lossy(), &["--version"]).as_deref().and_then(version);
    if found.is_none_or(|found| found < KNOWS_SME) {
        bail!("the emulator of {suite} is of version {found:?}");
    }
    std::fs::rename(&emulator, ours())?;
    Ok(())
}

/// The mirror that this system takes its packages from.
fn mirror() -> Option<String> {
    let new = std::fs::read_to_string("/etc/apt/sources.list.d/debian.sources").unwrap_or_default();
    let old = std::fs::read_to_string("/etc/apt/sources.list").unwrap_or_default();
    let of_new = new.lines().find_map(|line| line.strip_prefix("URIs:"));
    let of_old = || {
        let words = |line: &str| line.split(' ').find(|word| word.contains("://")).map(str::to_owned);
        old.lines().filter(|line| line.starts_with("deb ")).find_map(words)
    };
    of_new.and_then(|uris| uris.split_whitespace().next().map(str::to_owned)).or_else(of_old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared_as_numbers() {
        let text = "qemu-aarch64 version 11.1.3 (Debian 1:11.1.3+ds-1)\nCopyright (c) 2003-2026";
        assert_eq!(version(text), Some((11, 1)));
        assert!(version("qemu-aarch64 version 7.2.22").is_some_and(|old| old < KNOWS_SME));
        assert_eq!(version("no emulator"), None);
    }
}
