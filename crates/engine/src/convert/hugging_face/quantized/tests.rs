//! Quantised checkpoints have the weights that numpy computes (tests/golden/quantized_checkpoints.py).

use crate::convert::tests::{Folder, values};
use crate::convert::{Options, Weights, in_memory};
use lowbit_core::Format;
use lowbit_core::container::{Artifact, sha256_hex};
use lowbit_testing::{Rng, TinyModel, mutate};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

mod float4;

const STEM: &str = "model.layers.0.mlp.up_proj.";
const PACKED: &str = "blk.0.ffn_up.weight";

/// A tensor of a checkpoint.
#[derive(Clone, serde::Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<u64>,
    /// Hexadecimal.
    data: String,
}

#[derive(Clone, serde::Deserialize)]
struct Case {
    config: Value,
    tensors: BTreeMap<String, Tensor>,
    kept: String,
    first: [f32; 4],
    sha256: String,
}

fn cases() -> BTreeMap<String, Case> {
    serde_json::from_str(include_str!("../../../../../../tests/golden/quantized_checkpoints.json")).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

impl Case {
    fn tensor(&mut self, suffix: &str) -> &mut Tensor {
        self.tensors.get_mut(suffix).unwrap()
    }

    /// Writes a folder one of whose matrices is that of the case.
    fn write(&self, folder: &Path) {
        write(folder, &self.config, &self.tensors);
    }
}

/// Writes a folder that has these tensors for one of its matrices.
fn write(folder: &Path, quantization: &Value, tensors: &BTreeMap<String, Tensor>) {
    let model = TinyModel { matrix_type: "F32", embedding_type: "F32", n_layers: 1, ..TinyModel::default() };
    model.write_hugging_face(folder, 1).unwrap();
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["quantization_config"] = quantization.clone();
    std::fs::write(&path, config.to_string()).unwrap();

    let path = folder.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let (mut header, mut data) = (Map::new(), Vec::new());
    let mut add = |name: String, dtype: &str, shape: &[u64], bytes: &[u8]| {
        let start = data.len();
        data.extend(bytes);
        let offsets = [start, data.len()];
        header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
    };
    for (name, tensor) in file.tensors() {
        if name != format!("{STEM}weight") {
            let shape: Vec<u64> = tensor.shape().iter().map(|dim| *dim as u64).collect();
            add(name, "F32", &shape, tensor.data());
        }
    }
    for (suffix, tensor) in tensors {
        add(format!("{STEM}{suffix}"), &tensor.dtype, &tensor.shape, &unhex(&tensor.data));
    }
    let header = Value::Object(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    std::fs::write(path, bytes).unwrap();
}

fn pack(folder: &Path, weights: Weights) -> crate::Result<Artifact> {
    in_memory(folder, &Options { weights, ..Options::default() }, &mut |_| ())
}

#[test]
fn weights_are_those_of_numpy() {
    let folder = Folder::new("quantized");
    for (name, mut case) in cases() {
        // How activations are quantised says nothing about weights.
        let scale = Tensor { dtype: "F32".into(), shape: vec![], data: "0000803f".into() };
        case.tensors.insert("input_scale".into(), scale);
        case.write(&folder.0);
        let matrix = pack(&folder.0, Weights::Keep).unwrap().matrix(PACKED).unwrap();
        assert_eq!(matrix.format.spec().name, case.kept, "{name}");
        let values = values(&matrix);
        assert_eq!(values[..4], case.first, "{name}");
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(sha256_hex(&bytes), case.sha256, "{name}");

        let by_default = pack(&folder.0, Weights::Auto).unwrap().matrix(PACKED).unwrap().format;
        let expected = if case.kept == "f32" { Format::Q8 } else { matrix.format };
        assert_eq!(by_default, expected, "{name}");
    }
}

#[test]
fn every_float_of_8_bits_has_its_value() {
    use super::float8::Kind;
    // The definition, in f64.
    for (kind, bias, bits) in [(Kind::E4m3, 7, 3), (Kind::E5m2, 15, 2)] {
        for byte in 0..=u8::MAX {
            let (exponent, mantissa) = (i32::from(byte & 0x7f) >> bits, f64::from(byte & ((1 << bits) - 1)));
            let fraction = mantissa / f64::from(1 << bits);
            let magnitude = match exponent {
                0 => fraction * 2f64.powi(1 - bias),
                _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
            };
            let expected = if byte < 128 { magnitude } else { -magnitude };
            let is_finite = if kind == Kind::E4m3 { byte & 0x7f != 0x7f } else { exponent < 31 };
            let found = kind.value(byte).map(|value| f64::from(value).to_bits());
            assert_eq!(found, is_finite.then_some(expected.to_bits()), "{kind:?} {byte:#04x}");
        }
    }
}

#[test]
fn unfit_checkpoints_are_refused_with_tensor_and_value() {
    let folder = Folder::new("quantized-unfit");
    let all = cases();
    let refused = |name: &str, change: &dyn Fn(&mut Case), expected: &[&str]| {
        let mut case = all[name].clone();
        change(&mut case);
        case.write(&folder.0);
        let message = pack(&folder.0, Weights::Auto).err().unwrap().to_string();
        assert!(expected.iter().all(|part| message.contains(part)), "{expected:?}: {message}");
    };
    let byte = |suffix: &'static str, at: usize, value: u8| {
        move |case: &mut Case| {
            let tensor = case.tensor(suffix);
            let mut bytes = unhex(&tensor.data);
            bytes[at] = value;
            tensor.data = hex(&bytes);
        }
    };
    let set = |field: &'static str, to: Value| move |case: &mut Case| case.config[field] = to.clone();
    let fp8 = "fp8 blocks";
    let nan = ["up_proj.weight", "element [17, 5] is 0xff"];
    refused(fp8, &byte("weight", 17 * 64 + 5, 0xff), &nan);
    refused("fp8 tensor", &byte("weight", 17 * 64 + 5, 0x7c), &["element [17, 5] is 0x7c"]);
    refused("fp8 tensor", &byte("weight_scale", 3, 0x7f), &["up_proj.weight", "must be finite"]);
    refused(fp8, &|case| _ = case.tensors.remove("weight_scale_inv"), &["up_proj.weight_scale is missing"]);
    refused(fp8, &set("weight_block_size", json!([16, 16])), &["[3, 4]", "[6, 4]"]);
    refused(fp8, &set("weight_block_size", json!([0, 16])), &["weight_block_size", "[0,16]"]);
    refused(fp8, &|case| case.tensor("weight_scale_inv").dtype = "I32".into(), &["weight_scale_inv", "I32"]);
    refused(fp8, &|case| case.tensor("weight").shape = vec![64, 96], &["up_proj.weight", "[64, 96]"]);
    refused("gptq", &byte("qzeros", 0, 0x76), &["qweight", "zero [0, 0] is 7, expected 8 where sym is true"]);
    refused("gptq", &byte("g_idx", 4, 1), &["g_idx[1] is 1, expected 0 where desc_act is false"]);
    refused("gptq", &byte("g_idx", 7, 1), &["g_idx[1] is 16777216, there are 2 groups"]);
    refused("gptq", &byte("scales", 1, 0x7c), &["up_proj.qweight"]);
    refused("gptq", &set("bits", json!(3)), &["GPTQ of 3 bits"]);
    refused("gptq", &set("group_size", json!(0)), &["group_size"]);
    refused("gptq", &set("group_size", json!(64)), &["qzeros", "[2, 12]", "[1, 12]"]);
    refused("gptq", &|case| _ = case.tensors.remove("scales"), &["up_proj.scales is missing"]);
    refused("gptq", &|case| case.tensor("qweight").shape = vec![96, 8], &["qweight", "[96, 8]", "[8, 96]"]);
    refused("awq", &set("version", json!("gemv")), &["AWQ of 4 bits, version \"gemv\""]);
    refused("awq", &set("bits", json!(8)), &["AWQ of 8 bits"]);
    for method in ["mxfp4", "modelopt", "bitsandbytes"] {
        refused("awq", &set("quant_method", json!(method)), &["config.json", "already quantised", method]);
    }
    let mixed = json!({"quant_method": "compressed-tensors", "format": "mixed-precision"});
    refused("awq", &|case| case.config = mixed.clone(), &["mixed-precision", "nvfp4"]);
}

#[test]
fn damaged_checkpoints_do_no_harm() {
    let folder = Folder::new("quantized-mutated");
    let (mut rng, mut refused) = (Rng::new(9), 0);
    for case in cases().values() {
        case.write(&folder.0);
        for name in ["model.safetensors", "config.json"] {
            let path = folder.0.join(name);
            let sound = std::fs::read(&path).unwrap();
            let header = if name == "config.json" { sound.len() } else { sound.len().min(2000) };
            for _ in 0..20 {
                std::fs::write(&path, mutate(&mut rng, &sound, header)).unwrap();
                refused += usize::from(pack(&folder.0, Weights::Auto).is_err());
            }
            std::fs::write(&path, &sound).unwrap();
        }
    }
    assert!(refused > 200, "{refused}");
}
