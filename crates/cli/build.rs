//! Static programs for musl link without musl's development files.

use std::path::Path;

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name| std::env::var(name).unwrap_or_default();
    if variable("CARGO_CFG_TARGET_ENV") == "musl" {
        // What other systems have in this library is in musl's libc; libraries that load others ask for it by name. A
        // toolchain's own musl lacks the empty archive that stands for it.
        let folder = variable("OUT_DIR");
        std::fs::write(Path::new(&folder).join("libdl.a"), "!<arch>\n")?;
        println!("cargo::rustc-link-search=native={folder}");
    }
    Ok(())
}
