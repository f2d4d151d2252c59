//! The supported architectures: each is a configuration, a list of tensors and one forward pass.

pub mod llama;
mod rope;

pub use llama::{Llama, LlamaConfig, SpecialTokens};
pub use rope::{RopeConfig, RopeScaling};

use crate::{Error, Result};
use lowbit_core::PackedMatrix;
use lowbit_core::backend::Backend;
use lowbit_core::container::Artifact;

/// An architecture as importers and loaders see it.
#[derive(Clone, Copy, Debug)]
pub struct ArchSpec {
    /// The name in artifacts; also GGUF's `general.architecture`.
    pub name: &'static str,
    /// Hugging Face's `architectures[0]` in config.json.
    pub hf_class: &'static str,
    /// Checks a configuration and lists the tensors it needs, in execution order.
    pub tensors: fn(&serde_json::Value) -> Result<Vec<TensorSpec>>,
}

/// All architectures.
pub const ARCHS: &[ArchSpec] =
    &[ArchSpec { name: "llama", hf_class: "LlamaForCausalLM", tensors: llama::tensors_of }];

/// The architecture called `name`.
pub fn arch(name: &str) -> Result<&'static ArchSpec> {
    ARCHS.iter().find(|a| a.name == name).ok_or_else(|| Error::Architecture {
        name: name.to_owned(),
        known: ARCHS.iter().map(|a| a.name).collect::<Vec<_>>().join(", "),
    })
}

/// A tensor that a model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in artifacts and in GGUF files.
    pub name: String,
    /// Its name in Hugging Face checkpoints.
    pub hf_name: String,
    /// What it is and its size.
    pub kind: TensorKind,
}

/// The two kinds of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorKind {
    /// A packed matrix of `n` output and `k` input features.
    Matrix {
        /// Output features.
        n: usize,
        /// Input features.
        k: usize,
    },
    /// An f32 vector.
    Vector {
        /// Elements.
        len: usize,
    },
}

impl std::fmt::Display for TensorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Matrix { n, k } => write!(f, "a matrix of {n} x {k}"),
            Self::Vector { len } => write!(f, "a vector of {len}"),
        }
    }
}

/// Where the tensors of a model on a device come from. Each is asked for once.
pub trait Weights<B: Backend> {
    /// The matrix `name` on the device, and its size.
    fn matrix(&self, name: &str, backend: &B) -> lowbit_core::Result<(TensorKind, B::Matrix)>;
    /// The f32 vector `name`.
    fn vector(&self, name: &str) -> lowbit_core::Result<Vec<f32>>;
}

impl<B: Backend> Weights<B> for Artifact {
    fn matrix(&self, name: &str, backend: &B) -> lowbit_core::Result<(TensorKind, B::Matrix)> {
        move_to(backend, self.matrix(name)?)
    }

    fn vector(&self, name: &str) -> lowbit_core::Result<Vec<f32>> {
        self.vector(name)
    }
}

/// Moves a matrix to a device.
pub fn move_to<B: Backend>(
    backend: &B,
    matrix: PackedMatrix,
) -> lowbit_core::Result<(TensorKind, B::Matrix)> {
    let kind = TensorKind::Matrix { n: matrix.n, k: matrix.k };
    Ok((kind, backend.matrix(matrix)?))
}

fn check(field: &'static str, holds: bool, problem: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Config { field, problem: problem() }) }
}
