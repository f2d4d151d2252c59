//! The supported architectures: each is a list of tensors and the forward pass of a layer, and what they share.

mod config;
mod gemma3;
mod llama;
mod rope;
mod tensors;
mod transformer;

pub use config::{ModelConfig, SpecialTokens};
pub use gemma3::Gemma3Config;
pub use rope::{RopeConfig, RopeScaling};
pub use transformer::{Observer, Transformer, Wanted};

use crate::{Error, Result};
use lowbit_core::PackedMatrix;
use lowbit_core::backend::{Backend, Norm, RopeStyle};
use lowbit_core::container::Artifact;

/// An architecture as importers and loaders see it.
#[derive(Clone, Copy, Debug)]
pub struct ArchSpec {
    /// The name in artifacts; also GGUF's `general.architecture`.
    pub name: &'static str,
    /// Hugging Face's `architectures[0]` in config.json.
    pub hf_class: &'static str,
    /// Which coordinates GGUF's converters let rotary embedding pair; Hugging Face's are [`RopeStyle::Half`].
    pub gguf_rope: RopeStyle,
}

/// All architectures.
pub const ARCHS: &[ArchSpec] = &[
    ArchSpec { name: "llama", hf_class: "LlamaForCausalLM", gguf_rope: RopeStyle::Interleaved },
    ArchSpec { name: "gemma3", hf_class: "Gemma3ForCausalLM", gguf_rope: RopeStyle::Half },
];

/// The architecture called `name`.
pub fn arch(name: &str) -> Result<&'static ArchSpec> {
    ARCHS.iter().find(|a| a.name == name).ok_or_else(|| Error::Architecture {
        name: name.to_owned(),
        known: ARCHS.iter().map(|a| a.name).collect::<Vec<_>>().join(", "),
    })
}

/// A tensor that a model needs.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    /// Its name in artifacts and in GGUF files.
    pub name: String,
    /// Its name in Hugging Face checkpoints.
    pub hf_name: String,
    /// What is to be added to its values there.
    pub hf_offset: f32,
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

fn norm<V>(weight: &V, eps: f32) -> Norm<'_, V> {
    Norm { weight, eps }
}

fn positive(field: &'static str, x: f64) -> Result<()> {
    check(field, x.is_finite() && x > 0.0, || format!("is {x}, expected a positive number"))
}

fn check(field: &'static str, holds: bool, problem: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Config { field, problem: problem() }) }
}
