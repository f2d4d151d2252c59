//! The artifact: one safetensors file with packed planes, a manifest and a hash of every chunk.
//!
//! File: 8-byte little-endian header length, JSON header padded with spaces so that the data region starts at a
//! multiple of 256, data. Planes are U8 tensors `<name>.W`, `.X`, `.S`, `.M` whose sizes are rounded up to multiples of
//! 256; vectors are F32 tensors and documents U8 tensors under their own names, each followed by a tensor `<name>.pad`
//! where its size is no multiple of 256. So everything begins at a multiple of 256, and there are no gaps.
//! `__metadata__["lowbit"]` is the [`Manifest`] as JSON. The SHA-256 of everything before the data region is the
//! artifact's fingerprint: whoever knows it can check every byte that arrives.

mod artifact;
mod header;
mod layout;

pub use artifact::{Artifact, vector};
pub use header::{Header, parse_header};
pub use layout::{Item, Layout, Place};

use crate::parallel::{Team, cores};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::OnceLock;

/// The version that this library writes, and whose major it reads.
pub const VERSION: [u32; 2] = [1, 2];

/// The key of the [`Manifest`] in the metadata of the safetensors header.
pub const MANIFEST_KEY: &str = "lowbit";

/// Bytes that are hashed together.
pub const CHUNK: usize = 8 << 20;

/// What `__metadata__["lowbit"]` says.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Manifest {
    /// `[major, minor]`; a reader refuses an unknown major.
    pub version: [u32; 2],
    /// `"llama"`, ...: a name in the engine's ARCHS.
    pub architecture: String,
    /// Hyper-parameters, as that architecture defines them.
    pub config: serde_json::Value,
    /// Every packed matrix by name.
    pub matrices: BTreeMap<String, MatrixEntry>,
    /// Name of the U8 tensor with the tokenizer (`tokenizer.json` of Hugging Face).
    pub tokenizer: Option<String>,
    /// Jinja chat template.
    pub chat_template: Option<String>,
    /// How its makers recommend to choose tokens, as the engine defines it; null where they do not.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub sampling: serde_json::Value,
    /// The precision of activations this model asks for.
    pub activations: crate::activation::Activations,
    /// Where the model comes from.
    pub source: Source,
    /// Size of a chunk in bytes.
    pub chunk_size: usize,
    /// SHA-256, in hexadecimal, of every chunk of the data region.
    pub chunks: Vec<String>,
}

/// One packed matrix.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct MatrixEntry {
    /// Weight format.
    pub format: crate::Format,
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
}

/// Where a model comes from.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Source {
    /// File name.
    pub file: String,
    /// SHA-256 of the file (or of the first shard), in hexadecimal; empty when it was not read whole.
    pub sha256: String,
    /// Licence as the source states it.
    pub licence: String,
    /// Name and version of the packer.
    pub packer: String,
}

/// SHA-256, in hexadecimal, of every `size` bytes of `data`, with all cores; the last piece may be shorter.
pub fn chunk_hashes(data: &[u8], size: usize) -> Vec<String> {
    let chunks: Vec<&[u8]> = data.chunks(size.max(1)).collect();
    let hashes: Vec<OnceLock<String>> = vec![OnceLock::new(); chunks.len()];
    Team::new(cores().min(chunks.len())).for_each_chunk(chunks.len(), 1, |_, range| {
        for i in range {
            hashes[i].get_or_init(|| sha256_hex(chunks[i]));
        }
    });
    hashes.into_iter().filter_map(OnceLock::into_inner).collect()
}

/// SHA-256 in hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
