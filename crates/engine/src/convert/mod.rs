//! Other people's models to artifacts.
//!
//! ```text
//! header of a GGUF file, or of a Hugging Face folder  --gguf / hugging_face-->  Plan
//! Plan: steps in the order of the source, each  bytes of the source --pack--> pieces of the data region
//! ```
//!
//! A [`Plan`] neither reads nor writes. [`to_file`] drives it between two files and [`InMemory`] into one region of memory
//! that is the loaded model at once, be the bytes from a file or from a network. A step's source is at most
//! [`STEP_BYTES`] (or 16 rows), so memory is bounded whatever the size of the model.

mod gguf;
mod hugging_face;
mod memory;
mod plan;
mod tokenizer;

#[cfg(not(target_family = "wasm"))]
mod file;

#[cfg(not(target_family = "wasm"))]
pub use file::{Progress, Summary, in_memory, to_file};
pub use gguf::gguf;
pub use hugging_face::{HuggingFace, Shard, hugging_face};
pub use memory::InMemory;
pub use plan::{Packing, Plan, STEP_BYTES, Step};
pub use tokenizer::tokenizer_json;

use crate::arch::ModelConfig;
use crate::{Error, Result};
use lowbit_core::activation::Activations;
use lowbit_core::container::{Manifest, Source, VERSION};

/// The precision of activations that packed models ask for when nothing else is chosen.
pub const DEFAULT_ACTIVATIONS: Activations = Activations::A16;

/// Name of the document that holds the tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";

/// How a model is packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// What becomes of matrices of floats; quantised ones are always kept as they are.
    pub weights: Weights,
    /// What shares a scale.
    pub scheme: Scheme,
    /// The precision of activations that the model asks for; `None`: [`DEFAULT_ACTIVATIONS`].
    pub activations: Option<Activations>,
}

/// What shares a scale in matrices that are quantised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// 32 weights of a row; matrices that are quantised already are kept as they are.
    #[default]
    Block,
    /// A row. All matrices are quantised, whatever they were.
    Channel,
    /// A row, with an integer for 32 weights. All matrices are quantised.
    Progressive,
}

/// What becomes of matrices of floats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// Kept in GGUF files, 8 bits in Hugging Face folders.
    #[default]
    Auto,
    /// Kept.
    Keep,
    /// 8 bits.
    Q8,
    /// 4 bits; embedding table and output matrix 8 bits.
    Q4,
}

/// What a source says about the model, besides its tensors.
struct Description {
    config: ModelConfig,
    chat_template: Option<String>,
    sampling: crate::SamplingOptions,
    tokenizer: Vec<u8>,
    licence: String,
}

impl Description {
    fn manifest(&self, file: &str, options: &Options) -> Manifest {
        Manifest {
            version: VERSION,
            architecture: self.config.architecture().to_owned(),
            config: serde_json::json!(self.config),
            matrices: Default::default(),
            tokenizer: Some(TOKENIZER.to_owned()),
            chat_template: self.chat_template.clone(),
            sampling: self.sampling.to_manifest(),
            activations: options.activations.unwrap_or(DEFAULT_ACTIVATIONS),
            source: Source {
                file: file.rsplit(['/', '\\']).next().unwrap_or(file).to_owned(),
                sha256: String::new(),
                licence: self.licence.clone(),
                packer: format!("lowbit {}", env!("CARGO_PKG_VERSION")),
            },
            chunk_size: 0,
            chunks: Vec::new(),
        }
    }
}

/// Names the file in errors of the configuration.
fn in_file<T>(file: &str, result: Result<T>) -> Result<T> {
    result.map_err(|error| match error {
        Error::Config { field, problem } => lowbit_core::Error::malformed(file, field, problem).into(),
        other => other,
    })
}

/// The supported names of a table of architectures, for messages.
fn unsupported_architecture(file: &str, field: &str, name: &str, known: Vec<&str>) -> Error {
    let what = format!("architecture {name:?}");
    let hint = format!("use a model of: {}", known.join(", "));
    lowbit_core::Error::unsupported(file, field, what, hint).into()
}

#[cfg(test)]
mod tests;
