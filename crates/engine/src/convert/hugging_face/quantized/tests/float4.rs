//! Floats of 4 bits have the values of their definitions, computed in f64.

use super::{PACKED, STEM, Tensor, hex, pack, write};
use crate::convert::Weights;
use crate::convert::tests::{Folder, values};
use lowbit_core::Format;
use lowbit_testing::{Rng, mutate};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const N: usize = 96;
const K: usize = 64;
/// The magnitudes of E2M1.
const VALUES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

fn tensor(dtype: &str, shape: &[usize], bytes: &[u8]) -> Tensor {
    let shape = shape.iter().map(|dim| *dim as u64).collect();
    Tensor { dtype: dtype.to_owned(), shape, data: hex(bytes) }
}

fn bytes(rng: &mut Rng, len: usize, below: usize) -> Vec<u8> {
    (0..len).map(|_| rng.below(below) as u8).collect()
}

/// What the code of a weight stands for.
fn value(codes: &[u8], row: usize, j: usize) -> f64 {
    let code = codes[(row * K + j) / 2] >> (j % 2 * 4) & 15;
    let magnitude = VALUES[usize::from(code & 7)];
    if code < 8 { magnitude } else { -magnitude }
}

/// A finite float of 4 bits of exponent and 3 of mantissa.
fn e4m3(byte: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f64::from(byte & 7) / 8.0);
    let magnitude = if exponent == 0 { mantissa / 64.0 } else { (1.0 + mantissa) * 2f64.powi(exponent - 7) };
    if byte < 128 { magnitude } else { -magnitude }
}

fn mxfp4() -> (Value, BTreeMap<String, Tensor>, Vec<u8>, Vec<u8>) {
    let mut rng = Rng::new(31);
    let (codes, scales) = (bytes(&mut rng, N * K / 2, 256), bytes(&mut rng, N * K / 32, 255));
    let tensors = BTreeMap::from([
        ("weight_packed".to_owned(), tensor("U8", &[N, K / 2], &codes)),
        ("weight_scale".to_owned(), tensor("U8", &[N, K / 32], &scales)),
    ]);
    let config = json!({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"});
    (config, tensors, codes, scales)
}

/// A checkpoint of each library, and the weights that it computes: `scale(of group, of matrix)`, rounded, times the code.
fn nvfp4(compressed: bool) -> (Value, BTreeMap<String, Tensor>, Vec<f32>) {
    let mut rng = Rng::new(32);
    let (codes, scales) = (bytes(&mut rng, N * K / 2, 256), bytes(&mut rng, N * K / 16, 127));
    let global: f32 = if compressed { 7321.5 } else { 1.0 / 7321.5 };
    let weight = |i: usize| {
        let scale = e4m3(scales[i / 16]);
        let global = f64::from(global);
        let scale = if compressed { scale / global } else { scale * global };
        (f64::from(scale as f32) * value(&codes, i / K, i % K)) as f32
    };
    let weights = (0..N * K).map(weight).collect();
    let of_matrix = tensor("F32", &[1][..usize::from(compressed)], &global.to_le_bytes());
    let names = match compressed {
        true => ["weight_packed", "weight_scale", "weight_global_scale", "input_global_scale"],
        false => ["weight", "weight_scale", "weight_scale_2", "input_scale"],
    };
    let tensors = [
        tensor("U8", &[N, K / 2], &codes),
        tensor("F8_E4M3", &[N, K / 16], &scales),
        of_matrix.clone(),
        of_matrix,
    ];
    let config = match compressed {
        true => json!({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}),
        false => json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    };
    (config, names.map(str::to_owned).into_iter().zip(tensors).collect(), weights)
}

fn counts(codes: &[u8]) -> [usize; 16] {
    let mut counts = [0; 16];
    codes.iter().flat_map(|byte| [byte & 15, byte >> 4]).for_each(|code| counts[usize::from(code)] += 1);
    counts
}

#[test]
fn mxfp4_is_kept_one_to_one() {
    let folder = Folder::new("mxfp4");
    let (config, tensors, codes, scales) = mxfp4();
    write(&folder.0, &config, &tensors);
    for weights in [Weights::Keep, Weights::Auto, Weights::Q4] {
        let matrix = pack(&folder.0, weights).unwrap().matrix(PACKED).unwrap();
        assert_eq!(matrix.format, Format::Mxfp4);
        let scale = |i: usize| 2f64.powi(i32::from(scales[i / 32]) - 127);
        let expected = (0..N * K).map(|i| (value(&codes, i / K, i % K) * scale(i)) as f32);
        assert!(values(&matrix).into_iter().eq(expected));
        // A zero's sign is no part of its value.
        assert_eq!(counts(&matrix.w), counts(&codes));
    }
}

#[test]
fn nvfp4_has_the_values_of_its_libraries() {
    let folder = Folder::new("nvfp4");
    for compressed in [false, true] {
        let (config, tensors, weights) = nvfp4(compressed);
        write(&folder.0, &config, &tensors);
        let matrix = pack(&folder.0, Weights::Keep).unwrap().matrix(PACKED).unwrap();
        assert_eq!((matrix.format, values(&matrix)), (Format::F32, weights));
        let by_default = pack(&folder.0, Weights::Auto).unwrap().matrix(PACKED).unwrap();
        assert_eq!(by_default.format, Format::Q8);
    }
    // What the configuration does not say the tensors' names do.
    let (_, tensors, weights) = nvfp4(false);
    write(&folder.0, &Value::Null, &tensors);
    assert_eq!(values(&pack(&folder.0, Weights::Keep).unwrap().matrix(PACKED).unwrap()), weights);
}

#[test]
fn unfit_floats_of_4_bits_are_refused_with_tensor_and_value() {
    let folder = Folder::new("float4-unfit");
    let refused = |config: &Value, tensors: &BTreeMap<String, Tensor>, expected: &[&str]| {
        write(&folder.0, config, tensors);
        let message = pack(&folder.0, Weights::Auto).err().unwrap().to_string();
        assert!(expected.iter().all(|part| message.contains(part)), "{expected:?}: {message}");
    };
    let with = |tensors: &BTreeMap<String, Tensor>, name: &str, by: Tensor| {
        let mut tensors = tensors.clone();
        tensors.insert(name.to_owned(), by);
        tensors
    };
    let without = |tensors: &BTreeMap<String, Tensor>, name: &str| {
        let mut tensors = tensors.clone();
        tensors.remove(name);
        tensors
    };

    let (config, tensors, _, scales) = mxfp4();
    let of_scales = |bytes: &[u8]| tensor("U8", &[N, K / 32], bytes);
    let nan = [&scales[..35], &[255], &scales[36..]].concat();
    refused(&config, &with(&tensors, "weight_scale", of_scales(&nan)), &["weight_packed", "row 17", "NaN"]);
    let few = tensor("U8", &[N, K / 64], &scales[..N * K / 64]);
    refused(&config, &with(&tensors, "weight_scale", few), &["weight_scale", "[96, 1]", "[96, 2]"]);
    let missing = format!("{STEM}weight_scale is missing");
    refused(&config, &without(&tensors, "weight_scale"), &[&missing]);

    let (config, tensors, _) = nvfp4(false);
    let mut scales = vec![0x38; N * K / 16];
    scales[4 * 18 + 3] = 0xff;
    let nan = with(&tensors, "weight_scale", tensor("F8_E4M3", &[N, K / 16], &scales));
    refused(&config, &nan, &["up_proj.weight", "row 18: scale 3 is 0xff"]);
    let global = |value: f32| with(&tensors, "weight_scale_2", tensor("F32", &[], &value.to_le_bytes()));
    for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        refused(&config, &global(value), &["up_proj.weight", "whole matrix", &value.to_string()]);
    }
    let two = with(&tensors, "weight_scale_2", tensor("F32", &[2], &[0; 8]));
    refused(&config, &two, &["weight_scale_2", "F32 [2]", "F32 [1]"]);
    let missing = format!("{STEM}weight_scale_2 is missing");
    refused(&config, &without(&tensors, "weight_scale_2"), &[&missing]);
    let odd = json!({"quant_method": "modelopt", "quant_algo": "NVFP4_SVD"});
    refused(&odd, &tensors, &["config.json", "NVFP4_SVD"]);
}

#[test]
fn damaged_floats_of_4_bits_do_no_harm() {
    let folder = Folder::new("float4-mutated");
    let (mut rng, mut refused) = (Rng::new(33), 0);
    let (mx_config, mx_tensors, ..) = mxfp4();
    let (nv_config, nv_tensors, _) = nvfp4(true);
    for (config, tensors) in [(mx_config, mx_tensors), (nv_config, nv_tensors)] {
        write(&folder.0, &config, &tensors);
        let path = folder.0.join("model.safetensors");
        let sound = std::fs::read(&path).unwrap();
        for _ in 0..40 {
            std::fs::write(&path, mutate(&mut rng, &sound, 2000)).unwrap();
            refused += usize::from(pack(&folder.0, Weights::Auto).is_err());
        }
    }
    assert!(refused > 50, "{refused}");
}
