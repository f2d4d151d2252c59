//! Models whose matrices have one scale a row.

#![allow(clippy::unwrap_used)]

use lowbit_core::Format;
use lowbit_core::activation::Activations;
use lowbit_core::backend::{Backend, CpuBackend};
use lowbit_core::container::Artifact;
use lowbit_core::simd::Isa;
use lowbit_engine::convert::{Options, Scheme, Weights, in_memory};
use lowbit_engine::oracle::Oracle;
use lowbit_engine::{LoadOptions, Model};
use lowbit_testing::TinyModel;

const IDS: [u32; 9] = [1, 40, 200, 17, 5, 99, 99, 3, 260];

fn packed(model: &TinyModel, options: &Options) -> lowbit_engine::Result<Artifact> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    std::fs::write(&path, model.gguf()).unwrap();
    in_memory(&path, options, &mut |_| ())
}

fn logits<B: Backend>(artifact: &Artifact, device: B) -> Vec<f32> {
    let mut model = Model::load(artifact, device, LoadOptions::default()).unwrap();
    let mut session = model.session().unwrap();
    let mut logits = Vec::new();
    model.run(&mut session, &IDS, 0..IDS.len(), &mut logits, None).unwrap();
    logits
}

fn rms(values: impl Iterator<Item = f32>) -> f32 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), x| (sum + x * x, count + 1.0));
    (sum / count).sqrt()
}

#[test]
fn every_isa_gives_the_bits_of_every_other_and_a16_is_near_exact() {
    // Blocks and floats alike are quantised.
    let models = ["Q4_1", "F32"].map(|matrix_type| TinyModel { matrix_type, ..TinyModel::default() });
    for (model, scheme) in
        models.iter().flat_map(|model| [Scheme::Channel, Scheme::Progressive].map(|scheme| (model, scheme)))
    {
        let artifact = packed(model, &Options { scheme, ..Options::default() }).unwrap();
        let inner = if scheme == Scheme::Channel { Format::C4 } else { Format::P4 };
        for (name, matrix) in &artifact.header().manifest.matrices {
            let expected = if name.starts_with("blk") { inner } else { Format::C8 };
            assert_eq!(matrix.format, expected, "{name}");
        }
        let exact = logits(&artifact, Oracle::default());
        for activations in Activations::ALL {
            let cpu = |isa, threads| logits(&artifact, CpuBackend::new(isa, threads, activations).unwrap());
            let expected = cpu(Isa::Scalar, 1);
            assert!(expected.iter().all(|x| x.is_finite()));
            for isa in Isa::available() {
                let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
                assert!(cpu(isa, 2).iter().zip(&expected).all(same), "{scheme:?} {activations:?} {isa}");
            }
            let off = rms(expected.iter().zip(&exact).map(|(a, b)| a - b)) / rms(exact.iter().copied());
            let most = if activations == Activations::A8 { 0.1 } else { 2e-3 };
            assert!(off < most, "{scheme:?} {activations:?}: {off}");
        }
    }
}

#[test]
fn bits_that_a_scheme_has_not_are_errors() {
    let with =
        |scheme, weights| packed(&TinyModel::default(), &Options { scheme, weights, ..Options::default() });
    for (scheme, weights) in [
        (Scheme::Progressive, Weights::Q8),
        (Scheme::Channel, Weights::Keep),
        (Scheme::Progressive, Weights::Keep),
    ] {
        let error = with(scheme, weights).err().unwrap();
        assert_eq!(error.code(), "unsupported", "{error}");
    }
    let all_bytes = with(Scheme::Channel, Weights::Q8).unwrap();
    assert!(all_bytes.header().manifest.matrices.values().all(|matrix| matrix.format == Format::C8));
}
