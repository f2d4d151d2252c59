//! The shaders as they are embedded: without comments and indentation, which would be a third of them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Where the shaders lie, and what puts them together.
const FOLDERS: [&str; 2] = ["lib", "ops"];
const ASSEMBLY: &str = "src/shader.rs";

fn main() -> io::Result<()> {
    let shaders = Path::new("../../shaders");
    let embedded = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("shaders");
    let assembly = fs::read_to_string(ASSEMBLY)?;
    let mut hasher = DefaultHasher::new();
    assembly.hash(&mut hasher);
    for folder in FOLDERS {
        fs::create_dir_all(embedded.join(folder))?;
        let files = fs::read_dir(shaders.join(folder))?;
        let mut names: Vec<_> =
            files.map(|file| file.map(|file| file.file_name())).collect::<io::Result<_>>()?;
        names.sort();
        for name in names {
            let text = bare(&fs::read_to_string(shaders.join(folder).join(&name))?);
            text.hash(&mut hasher);
            fs::write(embedded.join(folder).join(&name), text)?;
        }
    }
    println!("cargo:rerun-if-changed={}", shaders.display());
    println!("cargo:rerun-if-changed={ASSEMBLY}");
    println!("cargo:rustc-env=LOWBIT_SHADERS={:016x}", hasher.finish());
    Ok(())
}

/// The lines of a shader that are not comments alone, without indentation.
fn bare(text: &str) -> String {
    let lines = text.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.flat_map(|line| [line, "\n"]).collect()
}
