//! Finds a rustc that can build for wasm.

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The target of the module that runs in the page.
pub const TARGET: &str = "wasm32-unknown-unknown";

/// A compiler, and whether std must be built along.
pub struct Toolchain {
    rustc: PathBuf,
    build_std: bool,
}

impl Toolchain {
    /// The first that fits: `$RUSTC` or the default one with the target's std; the same with std's source; the
    /// distribution's /usr/bin/rustc. A module with threads always needs std built with atomics.
    pub fn find(threads: bool) -> Result<Self> {
        let default = std::env::var_os("RUSTC").map_or_else(|| "rustc".into(), PathBuf::from);
        for rustc in [default, "/usr/bin/rustc".into()] {
            if !threads && has_std(&rustc) {
                return Ok(Self { rustc, build_std: false });
            }
            if has_source(&rustc) {
                return Ok(Self { rustc, build_std: true });
            }
        }
        bail!(
            "no rustc here can build {TARGET}{}; run `cargo xtask setup`",
            if threads { " with threads" } else { "" }
        )
    }

    /// A cargo command that uses this compiler.
    pub fn cargo(&self) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.env("RUSTC", &self.rustc);
        // Admits -Z options on a stable compiler.
        cargo.env("RUSTC_BOOTSTRAP", "1");
        if self.build_std {
            cargo.args(["-Zbuild-std=std,panic_abort", "-Zbuild-std-features="]);
        }
        cargo
    }
}

fn ask(rustc: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new(rustc).args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn has_std(rustc: &Path) -> bool {
    let Some(dir) = ask(rustc, &["--print", "target-libdir", "--target", TARGET]) else { return false };
    std::fs::read_dir(dir)
        .is_ok_and(|files| files.flatten().any(|f| f.file_name().to_string_lossy().starts_with("libstd-")))
}

fn has_source(rustc: &Path) -> bool {
    ask(rustc, &["--print", "sysroot"])
        .is_some_and(|root| Path::new(&root).join("lib/rustlib/src/rust/library/Cargo.toml").exists())
}
