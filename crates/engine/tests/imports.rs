//! The same weights give the same logits, from a GGUF file and from a Hugging Face folder: order of rows, rotary style,
//! frequency scaling and tied tables fit together.

#![allow(clippy::unwrap_used)]

use lowbit_core::container::Artifact;
use lowbit_engine::convert::{Options, Weights, in_memory};
use lowbit_engine::oracle::Oracle;
use lowbit_engine::{LoadOptions, Model};
use lowbit_testing::{GgufBuilder, TinyModel, encode, type_id};
use std::path::{Path, PathBuf};

const IDS: [u32; 9] = [1, 40, 200, 17, 5, 99, 99, 3, 260];

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lowbit-imports-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(path: &Path) -> Artifact {
    in_memory(path, &Options { weights: Weights::Keep, ..Options::default() }, &mut |_| ()).unwrap()
}

fn logits(artifact: &Artifact) -> Vec<f32> {
    let mut model = Model::load(artifact, Oracle::default(), LoadOptions::default()).unwrap();
    let mut session = model.session().unwrap();
    let mut logits = Vec::new();
    model.run(&mut session, &IDS, 0..IDS.len(), &mut logits, None).unwrap();
    logits
}

fn farthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn model(tied: bool) -> TinyModel {
    TinyModel { tied, matrix_type: "F32", embedding_type: "F32", ..TinyModel::default() }
}

#[test]
fn gguf_and_folder_give_the_same_logits() {
    for tied in [true, false] {
        let folder = Folder::new(&format!("tied-{tied}"));
        let file = folder.0.join("tiny.gguf");
        std::fs::write(&file, model(tied).gguf()).unwrap();
        model(tied).write_hugging_face(&folder.0.join("hf"), 2).unwrap();
        let [a, b] = [&file, &folder.0.join("hf")].map(|path| logits(&open(path)));
        assert!(farthest(&a, &b) < 1e-4, "{}", farthest(&a, &b));
        let other = TinyModel { seed: 2, ..model(tied) };
        std::fs::write(&file, other.gguf()).unwrap();
        assert!(farthest(&logits(&open(&file)), &a) > 0.1);
    }
}

#[test]
fn gemma_3_is_the_same_from_both() {
    type Change = fn(&mut serde_json::Value);
    let folder = Folder::new("gemma3");
    let (file, hf) = (folder.0.join("tiny.gguf"), folder.0.join("hf"));
    // Six layers are local; the seventh token is beyond the window.
    let gemma3 = TinyModel { architecture: "gemma3", n_layers: 7, ..model(true) };
    std::fs::write(&file, gemma3.gguf()).unwrap();
    gemma3.write_hugging_face(&hf, 1).unwrap();
    let [a, b] = [&file, &hf].map(|path| open(path));
    assert_eq!(a.header().manifest.config, b.header().manifest.config);
    assert_eq!(logits(&a), logits(&b), "GGUF keeps the order of rows");
    let config = a.header().manifest.config.clone();
    assert_eq!((&config["gemma3"]["window"], &config["rope"]["style"]), (&6.into(), &"half".into()));

    let changed = |change: Change| {
        let path = hf.join("config.json");
        let text = std::fs::read(&path).unwrap();
        let mut json: serde_json::Value = serde_json::from_slice(&text).unwrap();
        change(&mut json);
        std::fs::write(&path, json.to_string()).unwrap();
        let result = in_memory(&hf, &Options::default(), &mut |_| ());
        std::fs::write(&path, text).unwrap();
        result.map(|artifact| artifact.header().manifest.config.clone()).map_err(|error| error.to_string())
    };
    assert_eq!(
        changed(|json| json["sliding_window_pattern"] = 3.into()).unwrap()["gemma3"]["global_every"],
        3
    );
    let by_kind = changed(|json| {
        json["layer_types"] =
            (0..7).map(|i| if i % 3 == 2 { "full_attention" } else { "sliding_attention" }).collect();
    });
    assert_eq!(by_kind.unwrap()["gemma3"]["global_every"], 3);
    let parameters = changed(|json| {
        json["rope_parameters"] = serde_json::json!({
            "full_attention": {"rope_theta": 5e5, "rope_type": "linear", "factor": 8.0},
            "sliding_attention": {"rope_theta": 2e4, "rope_type": "default"},
        });
    });
    let parameters = parameters.unwrap();
    assert_eq!(
        (&parameters["rope"]["base"], &parameters["rope"]["scaling"]["factor"]),
        (&5e5.into(), &8.0.into())
    );
    assert_eq!(parameters["gemma3"]["local_rope"]["base"], 2e4);
    let changes: [(Change, &str); 7] = [
        (
            |json| json["layer_types"] = ["full_attention", "sliding_attention"].as_slice().into(),
            "layer_types",
        ),
        (|json| json["layer_types"] = ["chunked_attention"; 7].as_slice().into(), "chunked_attention"),
        (
            |json| {
                json["num_hidden_layers"] = u64::MAX.into();
                json["layer_types"] = ["sliding_attention"].as_slice().into();
            },
            "layer_types",
        ),
        (|json| json["hidden_activation"] = "relu".into(), "hidden_activation"),
        (|json| json["final_logit_softcapping"] = 30.0.into(), "final_logit_softcapping"),
        (|json| json["use_bidirectional_attention"] = true.into(), "use_bidirectional_attention"),
        (|json| json["sliding_window"] = 0.into(), "gemma3.window"),
    ];
    for (change, expected) in changes {
        let message = changed(change).unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
}

/// Llama 3's divisors, as its paper's code and converters compute them.
fn llama3_factors(base: f64, head_dim: usize, [factor, low, high, original]: [f64; 4]) -> Vec<f32> {
    let frequency = |i: usize| base.powf(-2.0 * i as f64 / head_dim as f64);
    (0..head_dim / 2)
        .map(|i| {
            let wavelength = std::f64::consts::TAU / frequency(i);
            if wavelength < original / high {
                1.0
            } else if wavelength > original / low {
                factor as f32
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            }
        })
        .collect()
}

#[test]
fn scaled_frequencies_agree() {
    let folder = Folder::new("llama3");
    let (file, hf) = (folder.0.join("tiny.gguf"), folder.0.join("hf"));
    let parameters = [8.0, 1.0, 4.0, 64.0];
    let factors = llama3_factors(10_000.0, model(true).head_dim(), parameters);
    assert!(
        factors[0] == 1.0 && factors[7] == 8.0 && factors.iter().any(|f| !matches!(f, 1.0 | 8.0)),
        "{factors:?}"
    );
    let mut builder = GgufBuilder::default();
    builder.tensor("rope_freqs.weight", &[8], type_id("F32"), encode("F32", &factors));
    std::fs::write(&file, model(true).builder_on(builder).build()).unwrap();
    model(true).write_hugging_face(&hf, 1).unwrap();
    let plain = logits(&open(&hf));
    let config = hf.join("config.json");
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    let [factor, low, high, original] = parameters;
    json["rope_scaling"] = serde_json::json!({
        "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": original,
    });
    std::fs::write(&config, json.to_string()).unwrap();
    let [a, b] = [&file, &hf].map(|path| logits(&open(path)));
    assert!(farthest(&a, &b) < 1e-4, "{}", farthest(&a, &b));
    assert!(farthest(&a, &plain) > 1e-3, "scaling changes something");
}

#[test]
fn both_tokenizers_agree() {
    let folder = Folder::new("tokens");
    let (file, hf) = (folder.0.join("tiny.gguf"), folder.0.join("hf"));
    std::fs::write(&file, model(true).gguf()).unwrap();
    model(true).write_hugging_face(&hf, 1).unwrap();
    let [a, b] =
        [&file, &hf].map(|path| Model::load(&open(path), Oracle::default(), LoadOptions::default()).unwrap());
    for text in
        ["the capital of France is Paris", "x = 12345;\n\n  tabs\t", "\u{e9}t\u{e9} \u{1f600}", "<|im_end|>"]
    {
        assert_eq!(a.codec().encode(text), b.codec().encode(text), "{text}");
    }
}
