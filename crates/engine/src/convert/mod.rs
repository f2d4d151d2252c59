//! Other people's models to artifacts, and artifacts to GGUF files.
//!
//! ```text
//! header of a GGUF file, or of a Hugging Face folder  --gguf / hugging_face-->  Plan
//! Plan: steps in the order of the source, each  bytes of the source --pack--> pieces of the data region
//! ```
//!
//! A [`Plan`] neither reads nor writes. [`to_file`] drives it between two files and [`InMemory`] into one region of memory
//! that is the loaded model at once, be the bytes from a file or from a network. A step's source is at most
//! [`STEP_BYTES`] (or 16 rows, or a matrix of GPTQ or AWQ, whose rows cannot be told apart), so memory is bounded whatever
//! the size of the model.

mod gguf;
mod hugging_face;
mod memory;
mod plan;
mod rounder;
mod tokenizer;

#[cfg(not(target_family = "wasm"))]
mod export;
#[cfg(not(target_family = "wasm"))]
mod file;

#[cfg(not(target_family = "wasm"))]
pub use export::{Exported, to_gguf};
#[cfg(not(target_family = "wasm"))]
pub use file::{Progress, Summary, in_memory, reads, to_file, to_file_rounded};
pub use gguf::gguf;
pub use hugging_face::{HuggingFace, Shard, hugging_face};
pub use memory::InMemory;
pub use plan::{Packing, Plan, STEP_BYTES, Step};
pub use rounder::{Packed, Rounder};
pub use tokenizer::tokenizer_json;

use crate::arch::ModelConfig;
use crate::{Error, Result};
use lowbit_core::Format;
use lowbit_core::activation::Activations;
use lowbit_core::container::{Manifest, Source, VERSION};
use std::collections::BTreeMap;

/// The precision of activations that packed models ask for when nothing else is chosen.
pub const DEFAULT_ACTIVATIONS: Activations = Activations::A16;

/// Name of the document that holds the tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";

/// Name of the document that holds all bytes of a GGUF file but the tensors', for [`Options::reversible`].
pub const SOURCE: &str = "source.gguf";

/// How a model is packed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// What becomes of matrices of floats, and of quantised ones where these are requantised.
    pub weights: Weights,
    /// What shares a scale.
    pub scheme: Scheme,
    /// Formats of matrices by name, in place of what `weights` says.
    pub formats: BTreeMap<String, Format>,
    /// Whether matrices that are quantised already are quantised again, which loses more; otherwise they are kept as they are.
    pub requantize: bool,
    /// What the manifest says of how the model was packed, beside this library's version.
    pub note: String,
    /// The precision of activations that the model asks for; `None`: [`DEFAULT_ACTIVATIONS`].
    pub activations: Option<Activations>,
    /// Every tensor of a GGUF file is kept as it is, and so is the rest of the file, as the document [`SOURCE`]: the same
    /// file can be made again.
    pub reversible: bool,
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

impl Options {
    /// The format that is asked for a matrix by its name, if one is.
    fn asked(&self, name: &str) -> Option<Format> {
        let of_bits = || {
            self.weights.formats().map(|[outermost, inner]| if is_outer(name) { outermost } else { inner })
        };
        self.formats.get(name).copied().or_else(of_bits)
    }

    /// The format, with scales of blocks, that a matrix is rounded to whose weights would be kept in the format `kept`; `None`
    /// where they are.
    pub fn rounds_to(&self, name: &str, kept: Format) -> Option<Format> {
        let may_change =
            !self.reversible && self.scheme == Scheme::Block && (kept.is_float() || self.requantize);
        self.asked(name).filter(|asked| may_change && *asked != kept)
    }

    /// What the manifest says of who packed the model, and how.
    fn packer(&self) -> String {
        let requantized = if self.requantize { "requantized with loss" } else { "" };
        let how: Vec<&str> = [requantized, &self.note].into_iter().filter(|part| !part.is_empty()).collect();
        let version = format!("lowbit {}", env!("CARGO_PKG_VERSION"));
        if how.is_empty() { version } else { format!("{version} ({})", how.join(", ")) }
    }
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
    /// 6 bits; embedding table and output matrix 8 bits, as with all that follow.
    Q6,
    /// 5 bits.
    Q5,
    /// 4 bits.
    Q4,
    /// 3 bits.
    Q3,
    /// 2 bits.
    Q2,
}

impl Weights {
    /// The format of embedding table and output matrix, and of all other matrices; `None` where it depends on the source.
    fn formats(self) -> Option<[Format; 2]> {
        match self {
            Self::Auto | Self::Keep => None,
            Self::Q8 => Some([Format::Q8; 2]),
            Self::Q6 => Some([Format::Q8, Format::Q6]),
            Self::Q5 => Some([Format::Q8, Format::Q5]),
            Self::Q4 => Some([Format::Q8, Format::Q4]),
            Self::Q3 => Some([Format::Q8, Format::Q3]),
            Self::Q2 => Some([Format::Q8, Format::Q2m]),
        }
    }
}

/// Whether a matrix is the embedding table or the output matrix.
fn is_outer(name: &str) -> bool {
    name.starts_with("token_embd") || name.starts_with("output")
}

/// What a source says about the model, besides its tensors.
struct Description {
    config: ModelConfig,
    chat_template: Option<String>,
    sampling: crate::SamplingOptions,
    tokenizer: Vec<u8>,
    licence: String,
    /// Parts of the first file that are kept as they are.
    rest: Vec<std::ops::Range<u64>>,
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
                packer: options.packer(),
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
