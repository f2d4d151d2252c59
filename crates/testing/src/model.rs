//! Models of some ten thousand weights, as GGUF file and as Hugging Face folder.

use crate::{GgufBuilder, Meta, Rng, Vocabulary, encode, type_id};
use serde_json::{Map, Value, json};
use std::fs;
use std::io;
use std::path::Path;

const ROPE_BASE: f32 = 10_000.0;

/// A chat template in the style of ChatML.
const CHAT_TEMPLATE: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Sizes and types of a model with random weights; the same weights every time.
#[derive(Clone, Debug)]
pub struct TinyModel {
    /// `llama` or `gemma3`, as GGUF names it.
    pub architecture: &'static str,
    /// Transformer layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of the feed-forward network.
    pub ffn_dim: usize,
    /// Trained context.
    pub context_length: usize,
    /// Whether the embedding table is the output matrix too.
    pub tied: bool,
    /// GGML type of the matrices, as [`encode`] names it; Hugging Face folders: F32, F16 or BF16.
    pub matrix_type: &'static str,
    /// GGML type of the embedding table and the output matrix.
    pub embedding_type: &'static str,
    /// Seed of the weights.
    pub seed: u64,
    /// Jinja, if it has any.
    pub chat_template: Option<&'static str>,
}

impl Default for TinyModel {
    fn default() -> Self {
        Self {
            architecture: "llama",
            n_layers: 2,
            d_model: 64,
            n_heads: 4,
            n_kv_heads: 2,
            ffn_dim: 96,
            context_length: 256,
            tied: true,
            matrix_type: "Q4_1",
            embedding_type: "Q8_0",
            seed: 1,
            chat_template: Some(CHAT_TEMPLATE),
        }
    }
}

/// A tensor in the order of Hugging Face: a matrix of `rows` x `cols`, or a vector where `rows` is 0.
struct Tensor {
    gguf_name: String,
    hf_name: String,
    rows: usize,
    cols: usize,
    values: Vec<f32>,
    /// Heads, where GGUF makes the rows neighbours that rotary embedding pairs.
    paired_heads: usize,
    /// What Hugging Face checkpoints leave out of the values.
    hf_offset: f32,
}

/// Positions that local layers of Gemma 3 see.
const WINDOW: usize = 6;

impl TinyModel {
    /// Coordinates of a head.
    pub fn head_dim(&self) -> usize {
        self.d_model / self.n_heads
    }

    /// The GGUF file, to be changed by tests of bad files.
    pub fn builder(&self) -> GgufBuilder {
        self.builder_on(GgufBuilder::default())
    }

    /// As [`TinyModel::builder`], after what `gguf` holds already.
    pub fn builder_on(&self, mut gguf: GgufBuilder) -> GgufBuilder {
        let vocabulary = Vocabulary::default();
        let types = (0..vocabulary.tokens.len()).map(|id| if id < 3 { 3 } else { 1 }).collect();
        gguf.meta("general.architecture", self.architecture);
        for (key, value) in [
            ("block_count", Meta::U32(self.n_layers as u32)),
            ("context_length", Meta::U32(self.context_length as u32)),
            ("embedding_length", Meta::U32(self.d_model as u32)),
            ("feed_forward_length", Meta::U32(self.ffn_dim as u32)),
            ("attention.head_count", Meta::U32(self.n_heads as u32)),
            ("attention.head_count_kv", Meta::U32(self.n_kv_heads as u32)),
            ("attention.layer_norm_rms_epsilon", Meta::F32(1e-5)),
            ("rope.dimension_count", Meta::U32(self.head_dim() as u32)),
            ("rope.freq_base", Meta::F32(ROPE_BASE)),
            ("vocab_size", Meta::U32(vocabulary.tokens.len() as u32)),
        ] {
            gguf.meta(&format!("{}.{key}", self.architecture), value);
        }
        if self.is_gemma() {
            gguf.meta("gemma3.attention.sliding_window", Meta::U32(WINDOW as u32));
        }
        for (key, value) in [
            ("general.name", Meta::from("tiny")),
            ("general.license", "mit".into()),
            ("tokenizer.ggml.model", "gpt2".into()),
            ("tokenizer.ggml.pre", "smollm".into()),
            ("tokenizer.ggml.tokens", Meta::Texts(vocabulary.tokens)),
            ("tokenizer.ggml.token_type", Meta::I32s(types)),
            ("tokenizer.ggml.merges", Meta::Texts(vocabulary.merges)),
            ("tokenizer.ggml.bos_token_id", Meta::U32(1)),
            ("tokenizer.ggml.eos_token_id", Meta::U32(2)),
            ("tokenizer.ggml.add_bos_token", Meta::Bool(false)),
        ] {
            gguf.meta(key, value);
        }
        if let Some(template) = self.chat_template {
            gguf.meta("tokenizer.chat_template", Meta::from(template));
        }
        for tensor in self.tensors() {
            let ty = self.type_of(&tensor);
            let dims: Vec<u64> = match tensor.rows {
                0 => vec![tensor.cols as u64],
                rows => vec![tensor.cols as u64, rows as u64],
            };
            gguf.tensor(&tensor.gguf_name, &dims, type_id(ty), encode(ty, &tensor.interleaved()));
        }
        gguf
    }

    /// The GGUF file.
    pub fn gguf(&self) -> Vec<u8> {
        self.builder().build()
    }

    /// Writes the Hugging Face folder with the same weights, in `shards` safetensors files.
    pub fn write_hugging_face(&self, folder: &Path, shards: usize) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let vocabulary = Vocabulary::default();
        let write = |name: &str, value: &Value| fs::write(folder.join(name), value.to_string());
        write("config.json", &self.config_json(vocabulary.tokens.len()))?;
        write("tokenizer.json", &vocabulary.tokenizer_json())?;
        write(
            "tokenizer_config.json",
            &json!({"chat_template": self.chat_template, "add_bos_token": false}),
        )?;
        write("generation_config.json", &json!({"bos_token_id": 1, "eos_token_id": [2, 0]}))?;
        let tensors = self.tensors();
        if shards == 1 {
            return fs::write(folder.join("model.safetensors"), self.safetensors(&tensors));
        }
        let mut weight_map = Map::new();
        for (i, part) in tensors.chunks(tensors.len().div_ceil(shards)).enumerate() {
            let name = format!("model-{:05}-of-{shards:05}.safetensors", i + 1);
            fs::write(folder.join(&name), self.safetensors(part))?;
            weight_map.extend(part.iter().map(|t| (t.hf_name.clone(), json!(name))));
        }
        write("model.safetensors.index.json", &json!({"metadata": {}, "weight_map": weight_map}))
    }

    fn config_json(&self, vocab_size: usize) -> Value {
        let mut config = json!({
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": self.d_model,
            "intermediate_size": self.ffn_dim,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "max_position_embeddings": self.context_length,
            "rms_norm_eps": 1e-5,
            "rope_theta": ROPE_BASE,
            "rope_scaling": null,
            "hidden_act": "silu",
            "attention_bias": false,
            "mlp_bias": false,
            "tie_word_embeddings": self.tied,
            "vocab_size": vocab_size,
            "bos_token_id": 1,
            "eos_token_id": 2,
        });
        if self.is_gemma() {
            config["architectures"] = json!(["Gemma3ForCausalLM"]);
            config["hidden_activation"] = json!("gelu_pytorch_tanh");
            config["head_dim"] = json!(self.head_dim());
            config["query_pre_attn_scalar"] = json!(self.head_dim());
            config["rope_local_base_freq"] = json!(10_000.0);
            config["sliding_window"] = json!(WINDOW);
            config["sliding_window_pattern"] = json!(6);
        }
        config
    }

    fn is_gemma(&self) -> bool {
        self.architecture == "gemma3"
    }

    fn type_of(&self, tensor: &Tensor) -> &'static str {
        match tensor.gguf_name.as_str() {
            _ if tensor.rows == 0 => "F32",
            "token_embd.weight" | "output.weight" => self.embedding_type,
            _ => self.matrix_type,
        }
    }

    fn safetensors(&self, tensors: &[Tensor]) -> Vec<u8> {
        let mut header = Map::new();
        header.insert("__metadata__".into(), json!({"format": "pt"}));
        let mut data = Vec::new();
        for tensor in tensors {
            let ty = self.type_of(tensor);
            assert!(matches!(ty, "F32" | "F16" | "BF16"), "safetensors has no {ty}");
            let start = data.len();
            let values: Vec<f32> = tensor.values.iter().map(|x| x - tensor.hf_offset).collect();
            data.extend(encode(ty, &values));
            let shape = if tensor.rows == 0 { vec![tensor.cols] } else { vec![tensor.rows, tensor.cols] };
            let entry = json!({"dtype": ty, "shape": shape, "data_offsets": [start, data.len()]});
            header.insert(tensor.hf_name.clone(), entry);
        }
        let header = Value::Object(header).to_string();
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend(header.as_bytes());
        out.extend(data);
        out
    }

    fn tensors(&self) -> Vec<Tensor> {
        let mut rng = Rng::new(self.seed);
        let (d, ffn, vocab) = (self.d_model, self.ffn_dim, Vocabulary::default().tokens.len());
        let (head_dim, is_gemma) = (self.head_dim(), self.is_gemma());
        let kv = self.n_kv_heads * head_dim;
        let mut tensors = Vec::new();
        let mut add = |gguf: String, hf: String, rows: usize, cols: usize, heads: usize| {
            let paired_heads = if is_gemma { 0 } else { heads };
            let hf_offset = if is_gemma && rows == 0 { 1.0 } else { 0.0 };
            let values = match rows {
                0 => rng.floats(cols, 0.25).iter().map(|x| 1.0 + x).collect(),
                _ => rng.floats(rows * cols, 1.7 / (cols as f32).sqrt()),
            };
            let [gguf_name, hf_name] = [gguf, hf].map(|name| format!("{name}.weight"));
            tensors.push(Tensor { gguf_name, hf_name, rows, cols, values, paired_heads, hf_offset });
        };
        add("token_embd".into(), "model.embed_tokens".into(), vocab, d, 0);
        for i in 0..self.n_layers {
            let ffn_norm = if is_gemma { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
            let layer = [
                ("attn_norm", "input_layernorm", 0, d, 0),
                ("attn_q", "self_attn.q_proj", d, d, self.n_heads),
                ("attn_k", "self_attn.k_proj", kv, d, self.n_kv_heads),
                ("attn_v", "self_attn.v_proj", kv, d, 0),
                ("attn_output", "self_attn.o_proj", d, d, 0),
                ("ffn_norm", ffn_norm, 0, d, 0),
                ("ffn_gate", "mlp.gate_proj", ffn, d, 0),
                ("ffn_up", "mlp.up_proj", ffn, d, 0),
                ("ffn_down", "mlp.down_proj", d, ffn, 0),
            ];
            let norms = [
                ("attn_q_norm", "self_attn.q_norm", 0, head_dim, 0),
                ("attn_k_norm", "self_attn.k_norm", 0, head_dim, 0),
                ("post_attention_norm", "post_attention_layernorm", 0, d, 0),
                ("post_ffw_norm", "post_feedforward_layernorm", 0, d, 0),
            ];
            let norms = if is_gemma { &norms[..] } else { &[] };
            for &(gguf, hf, rows, cols, heads) in layer.iter().chain(norms) {
                add(format!("blk.{i}.{gguf}"), format!("model.layers.{i}.{hf}"), rows, cols, heads);
            }
        }
        add("output_norm".into(), "model.norm".into(), 0, d, 0);
        if !self.tied {
            add("output".into(), "lm_head".into(), vocab, d, 0);
        }
        tensors
    }
}

impl Tensor {
    /// GGUF's order of rows: those that rotary embedding pairs, `i` and `i + d/2` of a head, become neighbours.
    fn interleaved(&self) -> Vec<f32> {
        if self.paired_heads == 0 {
            return self.values.clone();
        }
        let head_dim = self.rows / self.paired_heads;
        let row = |row: usize| {
            let (head, i) = (row / head_dim, row % head_dim);
            let from = head * head_dim + i / 2 + i % 2 * (head_dim / 2);
            &self.values[from * self.cols..][..self.cols]
        };
        (0..self.rows).flat_map(row).copied().collect()
    }
}
