//! A tiny model with seeded random weights.
#![allow(dead_code, reason = "every test file uses a part of this")]
#![allow(clippy::unwrap_used)]

use lowbit_core::backend::Backend;
use lowbit_core::backend::RopeStyle;
use lowbit_core::pack::{Origin, matrix_from_f32};
use lowbit_core::{Format, PackedMatrix};
use lowbit_engine::arch::{
    Gemma3Config, ModelConfig, RopeConfig, RopeScaling, SpecialTokens, TensorKind, Weights, move_to,
};
use lowbit_engine::model::Parts;
use lowbit_engine::oracle::Oracle;
use lowbit_engine::tokenizer::Tokenizer;
use lowbit_engine::{Codec, LoadOptions, Model};
use std::collections::HashMap;

/// A model small enough for any test, with every feature: grouped queries, and sizes that are no multiples of a tile.
pub fn tiny_config() -> ModelConfig {
    ModelConfig {
        n_layers: 3,
        d_model: 64,
        n_heads: 6,
        n_kv_heads: 2,
        head_dim: 16,
        ffn_dim: 96,
        vocab_size: 270,
        context_length: 256,
        rms_eps: 1e-5,
        rope: RopeConfig { base: 10_000.0, style: RopeStyle::Interleaved, scaling: RopeScaling::None },
        tied_embeddings: true,
        tokens: SpecialTokens { bos: None, eos: vec![256], add_bos: false },
        gemma3: None,
    }
}

/// A Gemma 3 model of that size: two local layers to a global one, a window of 5, and scores that are divided by what is not
/// the root of a head.
pub fn tiny_gemma3_config() -> ModelConfig {
    let rope = RopeConfig { base: 1e6, style: RopeStyle::Half, scaling: RopeScaling::Linear { factor: 8.0 } };
    let local_rope = RopeConfig { base: 1e4, style: RopeStyle::Half, scaling: RopeScaling::None };
    let gemma3 =
        Gemma3Config { embedding_scale: 8.0, window: 5, global_every: 3, local_rope, query_scalar: 10.0 };
    ModelConfig { n_layers: 4, rms_eps: 1e-6, rope, gemma3: Some(gemma3), ..tiny_config() }
}

/// Seeded random weights for a configuration, matrices in `format`.
pub struct RandomWeights {
    matrices: HashMap<String, PackedMatrix>,
    vectors: HashMap<String, Vec<f32>>,
}

impl RandomWeights {
    pub fn new(config: &ModelConfig, format: Format, seed: u64) -> Self {
        let mut random = Random(seed);
        let mut weights = Self { matrices: HashMap::new(), vectors: HashMap::new() };
        for tensor in config.tensors() {
            match tensor.kind {
                TensorKind::Matrix { n, k } => {
                    let scale = 2.0 / (k as f32).sqrt();
                    let values: Vec<f32> = (0..n * k).map(|_| random.uniform() * scale).collect();
                    let origin = Origin { file: "random", tensor: &tensor.name };
                    let matrix = matrix_from_f32(format, k, &values, origin).unwrap();
                    weights.matrices.insert(tensor.name, matrix);
                }
                TensorKind::Vector { len } => {
                    let values = (0..len).map(|_| 1.0 + 0.2 * random.uniform()).collect();
                    weights.vectors.insert(tensor.name, values);
                }
            }
        }
        weights
    }

    pub fn remove(&mut self, name: &str) {
        self.matrices.remove(name);
        self.vectors.remove(name);
    }
}

impl<B: Backend> Weights<B> for RandomWeights {
    fn matrix(&self, name: &str, backend: &B) -> lowbit_core::Result<(TensorKind, B::Matrix)> {
        move_to(backend, self.matrices.get(name).cloned().ok_or_else(|| missing(name))?)
    }

    fn vector(&self, name: &str) -> lowbit_core::Result<Vec<f32>> {
        self.vectors.get(name).cloned().ok_or_else(|| missing(name))
    }
}

fn missing(name: &str) -> lowbit_core::Error {
    lowbit_core::Error::missing_tensor("random", name)
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From -1 to 1.
    pub fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// The end-of-answer token of the tiny model.
pub const EOS: u32 = 256;

/// A `tokenizer.json` of single bytes (GPT-2's alphabet), token `i` being byte `i`, and two special tokens.
pub fn byte_tokenizer_json() -> String {
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut others = 256..;
    let mut vocab = serde_json::Map::new();
    for byte in 0..256u32 {
        let code = if printable(byte) { byte } else { others.next().unwrap() };
        vocab.insert(char::from_u32(code).unwrap().to_string(), byte.into());
    }
    let special = |id: u32, content: &str| {
        serde_json::json!({
            "id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false
        })
    };
    serde_json::json!({
        "version": "1.0",
        "added_tokens": [special(EOS, "<|end|>"), special(257, "<|start|>")],
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false },
        "model": { "type": "BPE", "vocab": vocab, "merges": [] }
    })
    .to_string()
}

/// A template like ChatML.
pub const TEMPLATE: &str = "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\
     {% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}";

/// The tiny model on the reference backend.
pub fn tiny_model(context: usize) -> Model<Oracle> {
    try_tiny_model(context).unwrap()
}

/// The tiny model with any context.
pub fn try_tiny_model(context: usize) -> lowbit_engine::Result<Model<Oracle>> {
    model_of(tiny_config(), context)
}

/// A model of random weights on the reference backend.
pub fn model_of(config: ModelConfig, context: usize) -> lowbit_engine::Result<Model<Oracle>> {
    let weights = RandomWeights::new(&config, Format::F32, 1);
    let tokenizer = Tokenizer::from_json(byte_tokenizer_json().as_bytes()).unwrap();
    let codec = Codec::new(tokenizer, Some(TEMPLATE), config.tokens.clone())?;
    let parts = Parts { config, weights: &weights, codec };
    Model::assemble(parts, Oracle::default(), LoadOptions { context: Some(context) })
}
