//! Rules of the source tree that no compiler checks: which crate may use which, how long a file may be, where `unsafe`
//! may stand, and that documents link to files that exist.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// Lines of a source file.
const MAX_LINES: usize = 600;

/// How source files end; manifests and documents have rules of their own.
const SOURCES: [&str; 10] =
    ["Cargo.toml", ".md", ".rs", ".ts", ".tsx", ".mjs", ".js", ".css", ".html", ".wgsl"];

/// Every crate with the crates of this workspace that it may use.
const LAYERS: [(&str, &[&str]); 6] = [
    ("testing", &[]),
    ("core", &[]),
    ("engine", &["lowbit-core"]),
    ("wasm", &["lowbit-core", "lowbit-engine", "lowbit-gpu"]),
    ("gpu", &["lowbit-core"]),
    ("cli", &["lowbit-core", "lowbit-engine", "lowbit-gpu"]),
];

/// Where `unsafe` may stand.
const UNSAFE_ALLOWED: [&str; 3] =
    ["crates/core/src/simd/", "crates/core/src/kernels/", "crates/core/src/parallel"];

/// The only crate with `unsafe`; the others forbid it.
const UNSAFE_CRATE: &str = "crates/core/";

/// Every breach, one line each: file, line and rule.
pub fn breaches(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (name, allowed) in LAYERS {
        let manifest = std::fs::read_to_string(root.join("crates").join(name).join("Cargo.toml"))?;
        found.extend(check_layer(name, allowed, &manifest));
    }
    for name in sources(root)? {
        let text = std::fs::read_to_string(root.join(&name))?;
        if name.ends_with(".md") {
            found.extend(check_links(root, &name, &text));
            continue;
        }
        found.extend(check_file(&name, &text));
        if let Some(folder) = name.strip_suffix("Cargo.toml").filter(|folder| !folder.is_empty()) {
            found.extend(check_crate(root, folder, &text)?);
        }
    }
    Ok(found)
}

/// Tests may use more than the crate itself does.
fn check_layer(name: &str, allowed: &[&str], manifest: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_tests = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            in_tests = line.contains("dev-dependencies");
        }
        let used = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if used.starts_with("lowbit-") && !in_tests && !allowed.contains(&used) {
            found.push(format!("crates/{name}/Cargo.toml: lowbit-{name} must not use {used}"));
        }
    }
    found
}

/// Every crate takes the workspace's lints, and all but one forbid `unsafe`.
fn check_crate(root: &Path, folder: &str, manifest: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    if !manifest.contains("[lints]\nworkspace = true") {
        found.push(format!("{folder}Cargo.toml: [lints] workspace = true is missing"));
    }
    let names = ["src/lib.rs", "src/main.rs"].map(|name| format!("{folder}{name}"));
    for name in names.iter().filter(|name| root.join(name).exists()) {
        let safe = std::fs::read_to_string(root.join(name))?.contains("#![forbid(unsafe_code)]");
        if !safe && folder != UNSAFE_CRATE {
            found.push(format!("{name}: #![forbid(unsafe_code)] is missing"));
        }
    }
    Ok(found)
}

fn check_file(name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let lines = text.lines().count();
    if lines > MAX_LINES {
        found.push(format!("{name}: {lines} lines; split files over {MAX_LINES}"));
    }
    if name.ends_with(".rs") && !UNSAFE_ALLOWED.iter().any(|place| name.starts_with(place)) {
        for (index, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if opens_unsafe(code) {
                found.push(format!(
                    "{name}:{}: unsafe may stand only in {}",
                    index + 1,
                    UNSAFE_ALLOWED.join(", ")
                ));
            }
        }
    }
    found
}

/// Relative links of a Markdown file that lead nowhere.
fn check_links(root: &Path, name: &str, text: &str) -> Vec<String> {
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next());
    let relative = targets.filter(|target| !target.is_empty() && !target.contains("://"));
    relative
        .filter(|target| !root.join(folder).join(target).exists())
        .map(|target| format!("{name}: links to {target}, which does not exist"))
        .collect()
}

/// Whether a line of code opens an unsafe block, function, trait or impl.
fn opens_unsafe(code: &str) -> bool {
    let keyword = concat!("unsa", "fe");
    ["{", "fn", "impl", "trait", "extern"].iter().any(|next| code.contains(&format!("{keyword} {next}")))
}

/// The source files that git knows or would add, relative to the root.
fn sources(root: &Path) -> Result<Vec<String>> {
    let list = ["ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"];
    let output = Command::new("git").args(list).current_dir(root).output().context("git ls-files")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    }
    let names = String::from_utf8(output.stdout)?;
    let is_source = |name: &&str| SOURCES.iter().any(|end| name.ends_with(end)) && root.join(name).is_file();
    Ok(names.lines().filter(is_source).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_layer_is_found() {
        let manifest =
            "[dependencies]\nlowbit-core.workspace = true\nlowbit-engine = { path = \"../engine\" }\n";
        assert_eq!(check_layer("core", &["lowbit-core"], manifest).len(), 1);
        assert!(check_layer("wasm", &["lowbit-core", "lowbit-engine"], manifest).is_empty());
    }

    #[test]
    fn long_files_and_stray_unsafe_are_found() {
        let block = concat!("let x = unsa", "fe { y };\n");
        assert_eq!(check_file("crates/core/src/pack/mod.rs", block).len(), 1);
        assert!(check_file("crates/core/src/simd/avx2.rs", block).is_empty());
        assert!(check_file("crates/core/src/pack/mod.rs", &format!("// {block}")).is_empty());
        assert_eq!(check_file("web/src/index.ts", &"x\n".repeat(MAX_LINES + 1)).len(), 1);
    }

    #[test]
    fn a_dead_link_is_found() {
        let text =
            "[a](ARCHITECTURE.md#seams), [b](https://example.org/x), [c](#here), ![d](docs/nowhere.png)";
        let found = check_links(&crate::root(), "README.md", text);
        assert_eq!(found, ["README.md: links to docs/nowhere.png, which does not exist"]);
    }

    #[test]
    fn a_crate_without_lints_is_found() {
        let root = crate::root();
        assert_eq!(check_crate(&root, "xtask/", "[package]\n").expect("readable").len(), 1);
        assert!(check_crate(&root, "xtask/", "[lints]\nworkspace = true\n").expect("readable").is_empty());
        assert!(
            check_crate(&root, "crates/core/", "[lints]\nworkspace = true\n").expect("readable").is_empty()
        );
    }

    #[test]
    fn the_sources_of_this_crate_are_seen() {
        let files = sources(&crate::root()).expect("a git checkout");
        assert!(files.iter().any(|file| file == "xtask/src/source_rules.rs"));
    }
}
