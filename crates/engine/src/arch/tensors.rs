//! The tensors that a configuration asks for.

use super::transformer::name_of;
use super::{ModelConfig, TensorKind, TensorSpec, gemma3, llama};

/// A tensor of a layer: its name in GGUF files and in Hugging Face checkpoints, and its size.
pub(super) struct LayerTensor(pub &'static str, pub &'static str, pub Size);

/// The size of a tensor.
#[derive(Clone, Copy)]
pub(super) enum Size {
    /// Output and input features.
    Matrix(Dim, Dim),
    /// Elements.
    Vector(Dim),
}

/// What a size depends on.
#[derive(Clone, Copy)]
pub(super) enum Dim {
    /// The residual stream.
    Model,
    /// All query heads.
    Queries,
    /// All key heads, or all value heads.
    Keys,
    /// One head.
    Head,
    /// The feed-forward network.
    Ffn,
    Vocabulary,
}

impl ModelConfig {
    /// The tensors of the model, in execution order.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let (layer, norm_offset) = match self.gemma3 {
            None => (llama::LAYER, 0.0),
            Some(_) => (gemma3::LAYER, gemma3::NORM_OFFSET),
        };
        let spec = |name: String, hf_name: &str, size: Size| {
            let hf_name = format!("{hf_name}.weight");
            match size {
                Size::Matrix(n, k) => {
                    let kind = TensorKind::Matrix { n: self.dim(n), k: self.dim(k) };
                    TensorSpec { name, hf_name, hf_offset: 0.0, kind }
                }
                Size::Vector(len) => {
                    let kind = TensorKind::Vector { len: self.dim(len) };
                    TensorSpec { name, hf_name, hf_offset: norm_offset, kind }
                }
            }
        };
        let table = Size::Matrix(Dim::Vocabulary, Dim::Model);
        let mut tensors = vec![spec("token_embd.weight".to_owned(), "model.embed_tokens", table)];
        for i in 0..self.n_layers {
            for LayerTensor(name, hf_name, size) in layer {
                tensors.push(spec(name_of(i, name), &format!("model.layers.{i}.{hf_name}"), *size));
            }
        }
        tensors.push(spec("output_norm.weight".to_owned(), "model.norm", Size::Vector(Dim::Model)));
        if !self.tied_embeddings {
            tensors.push(spec("output.weight".to_owned(), "lm_head", table));
        }
        tensors
    }

    fn dim(&self, dim: Dim) -> usize {
        match dim {
            Dim::Model => self.d_model,
            Dim::Queries => self.n_heads * self.head_dim,
            Dim::Keys => self.n_kv_heads * self.head_dim,
            Dim::Head => self.head_dim,
            Dim::Ffn => self.ffn_dim,
            Dim::Vocabulary => self.vocab_size,
        }
    }
}
