//! The real model comes back byte for byte.
//!
//! This test needs the default model, packed, at the path in `LOWBIT_TEST_MODEL`; `cargo xtask test` sees to it.

#![allow(clippy::unwrap_used)]

mod support;

use support::{folder, json};

/// SHA-256 of the GGUF file of the default model.
const SMOLLM2: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

#[test]
#[ignore = "needs LOWBIT_TEST_MODEL"]
fn the_default_model_comes_back() {
    let folder = folder("export-default");
    let [artifact, out] = ["model.lowbit", "model.gguf"].map(|name| folder.join(name));
    let (artifact, out) = (artifact.to_str().unwrap(), out.to_str().unwrap());
    // Its file is in the cache since the model was packed.
    json(&["pack", "smollm2", "-o", artifact, "--reversible"]);
    assert_eq!(json(&["export", artifact, "-o", out])["sha256"], SMOLLM2);

    // Without the rest of the file its header is another, which says the same: what is packed of it is the same.
    let packed =
        std::env::var("LOWBIT_TEST_MODEL").expect("LOWBIT_TEST_MODEL must name the packed default model");
    json(&["export", &packed, "-o", out]);
    json(&["pack", out, "-o", artifact]);
    let [a, b] = [packed.as_str(), artifact].map(|path| {
        let artifact = lowbit_core::container::Artifact::read(path.as_ref(), true).unwrap();
        (artifact.data().clone(), artifact.header().manifest.config.clone())
    });
    assert!(a.0.as_slice() == b.0.as_slice() && a.1 == b.1);
    std::fs::remove_dir_all(folder).unwrap();
}
