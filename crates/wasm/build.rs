//! Link arguments of the module. They stand here, not in RUSTFLAGS, so that a change does not rebuild std.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_FAMILY").as_deref() != Ok("wasm") {
        return;
    }
    println!("cargo:rustc-link-arg-cdylib=-zstack-size=1048576");
    println!("cargo:rustc-link-arg-cdylib=--max-memory=4294967296");
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if features.split(',').any(|feature| feature == "atomics") {
        for arg in [
            "--shared-memory",
            "--import-memory",
            "--export=__wasm_init_tls",
            "--export=__tls_size",
            "--export=__tls_align",
            "--export=__tls_base",
        ] {
            println!("cargo:rustc-link-arg-cdylib={arg}");
        }
    }
}
