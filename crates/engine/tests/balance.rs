//! Factors of input features change nothing but how weights are rounded.

#![allow(clippy::unwrap_used)]

use lowbit_core::Format;
use lowbit_core::container::Artifact;
use lowbit_engine::arch::ModelConfig;
use lowbit_engine::calibrate::{Group, Packer};
use lowbit_engine::convert::{Options, Weights, in_memory, to_file_rounded};
use lowbit_engine::oracle::Oracle;
use lowbit_engine::{LoadOptions, Model};
use lowbit_testing::{Rng, TinyModel};
use std::path::Path;

const IDS: [u32; 9] = [1, 40, 200, 17, 5, 99, 99, 3, 260];

fn logits(artifact: &Artifact) -> Vec<f32> {
    let mut model = Model::load(artifact, Oracle::default(), LoadOptions::default()).unwrap();
    let mut session = model.session().unwrap();
    let mut logits = Vec::new();
    model.run(&mut session, &IDS, 0..IDS.len(), &mut logits, None).unwrap();
    logits
}

/// The model in `folder` with halves as singles, multiplied as `packer` says.
fn packed(folder: &Path, kept: &Artifact, packer: &mut Packer) -> Artifact {
    let names = kept.header().manifest.matrices.keys();
    let formats = names.map(|name| (name.clone(), Format::F32)).collect();
    let options = Options { formats, ..Options::default() };
    let path = folder.join("out.lowbit");
    let file =
        std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    to_file_rounded(&folder.join("tiny.gguf"), &file, &path, &options, packer, &mut |_| ()).unwrap();
    Artifact::read(&path, true).unwrap()
}

#[test]
fn multiplied_matrices_and_divided_norms_give_the_same_logits() {
    for architecture in ["llama", "gemma3"] {
        let folder = tempfile::tempdir().unwrap();
        let model =
            TinyModel { architecture, matrix_type: "F16", embedding_type: "F16", ..TinyModel::default() };
        std::fs::write(folder.path().join("tiny.gguf"), model.gguf()).unwrap();
        let keep = Options { weights: Weights::Keep, ..Options::default() };
        let kept = in_memory(&folder.path().join("tiny.gguf"), &keep, &mut |_| ()).unwrap();
        let config = ModelConfig::of(&kept.header().manifest).unwrap();
        let plain = logits(&packed(folder.path(), &kept, &mut Packer::default()));
        assert_eq!(plain, logits(&kept), "{architecture}");

        let (mut rng, mut packer) = (Rng::new(8), Packer::default());
        for layer in 0..config.n_layers {
            for group in Group::all(layer) {
                let k = kept.header().manifest.matrices[&group.members[0]].k;
                let factors: Vec<f32> = rng.floats(k, 2.0).into_iter().map(f32::exp2).collect();
                packer.factors.add(&group, &factors);
            }
        }
        assert_eq!(packer.factors.len(), 7 * config.n_layers, "{architecture}");
        let found = logits(&packed(folder.path(), &kept, &mut packer));
        let largest = plain.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        for (found, plain) in found.iter().zip(&plain) {
            assert!((found - plain).abs() < 1e-4 * largest, "{architecture}: {found}, {plain}");
        }
    }
}
