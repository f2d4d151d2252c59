//! A model that is moved to its device piece by piece is the model of the whole artifact.
#![allow(clippy::unwrap_used)]

use lowbit_core::activation::Activations;
use lowbit_core::backend::CpuBackend;
use lowbit_core::container::Artifact;
use lowbit_core::simd::Isa;
use lowbit_engine::convert::{Options, in_memory};
use lowbit_engine::{LoadOptions, Model, Upload};
use lowbit_testing::TinyModel;

fn artifact() -> Artifact {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, TinyModel::default().gguf()).unwrap();
    in_memory(&path, &Options::default(), &mut |_| ()).unwrap()
}

fn cpu() -> CpuBackend {
    CpuBackend::new(Isa::best(), 1, Activations::A16).unwrap()
}

fn logits(mut model: Model<CpuBackend>) -> Vec<f32> {
    let (mut session, mut logits) = (model.session().unwrap(), Vec::new());
    model.run(&mut session, &[3, 1, 4, 1, 5], 0..5, &mut logits, None).unwrap();
    logits
}

#[test]
fn pieces_of_any_size_make_the_same_model() {
    let artifact = artifact();
    let expected = logits(Model::load(&artifact, cpu(), LoadOptions::default()).unwrap());
    assert!(expected.len() > 1000);
    let data = artifact.data().as_slice();
    for size in [1000, 4096, 100_001, data.len()] {
        let mut upload = Upload::new(artifact.header().clone(), cpu());
        data.chunks(size).for_each(|piece| upload.push(piece).unwrap());
        assert_eq!(logits(upload.finish(LoadOptions::default()).unwrap()), expected, "pieces of {size}");
    }
}

#[test]
fn too_few_and_too_many_bytes_are_errors() {
    let artifact = artifact();
    let data = artifact.data().as_slice();
    let mut upload = Upload::new(artifact.header().clone(), cpu());
    upload.push(&data[..data.len() - 1]).unwrap();
    assert!(upload.push(&[0; 2]).unwrap_err().to_string().contains("header describes"));
    let error = upload.finish(LoadOptions::default()).err().unwrap();
    assert!(error.to_string().contains(&format!("has {} bytes", data.len() - 1)), "{error}");
}

#[test]
fn a_defective_tensor_is_named() {
    let artifact = artifact();
    let mut data = artifact.data().as_slice().to_vec();
    let range = artifact.header().vector("output_norm.weight").unwrap();
    data[range.start..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let error = Upload::new(artifact.header().clone(), cpu()).push(&data).unwrap_err().to_string();
    assert!(error.contains("output_norm.weight") && error.contains("NaN"), "{error}");
}
