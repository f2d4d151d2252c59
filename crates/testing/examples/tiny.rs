//! Writes the synthetic models of the end to end tests as GGUF files into the folder that is named.
#![allow(clippy::expect_used, reason = "a tool of the tests")]

use lowbit_testing::TinyModel;
use std::path::PathBuf;

fn main() {
    let folder = PathBuf::from(std::env::args().nth(1).expect("usage: tiny FOLDER"));
    let small = TinyModel { context_length: 512, ..TinyModel::default() };
    // Some 30 MB of weights: an artifact of several chunks.
    let chunks = TinyModel {
        d_model: 1024,
        n_heads: 16,
        n_kv_heads: 4,
        ffn_dim: 4096,
        matrix_type: "Q8_0",
        ..small.clone()
    };
    for (name, model) in [("small", small), ("chunks", chunks)] {
        std::fs::write(folder.join(format!("{name}.gguf")), model.gguf())
            .expect("the folder can be written to");
    }
}
