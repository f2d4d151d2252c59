//! Weights that nobody trained. What a model asks of a device, and how long that takes, depends on their shapes and
//! formats alone.

use crate::arch::{ModelConfig, TensorKind, Weights, move_to};
use lowbit_core::backend::Backend;
use lowbit_core::buffer::{AlignedBytes, Bytes};
use lowbit_core::format::{Codes, Format, ScaleForm};
use lowbit_core::{Error, PackedMatrix};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes after which the codes repeat: more than any cache line or DRAM page, less than it takes long to make.
const PERIOD: usize = 1 << 20;
/// 2^-8 as f16: sums stay small.
const SCALE: [u8; 2] = 0x1c00_u16.to_le_bytes();
/// The same in scales of bytes, whose halves they are.
const E8M0_SCALE: [u8; 1] = [120];
const E4M3_SCALE: [u8; 1] = [4];
/// The same number as f32, the scale of a row.
const CHANNEL_SCALE: [u8; 4] = 0x3b80_0000_u32.to_le_bytes();
/// A mask that leaves no float of any format beyond 1.
const SMALL: u8 = 0x3b;

/// The tensors of a model, made one by one when they are asked for.
pub struct Synthetic<F> {
    kinds: HashMap<String, TensorKind>,
    format: F,
    /// Repeated to make codes; nothing for zeros.
    codes: Vec<u8>,
}

impl<F: Fn(&str) -> Format> Synthetic<F> {
    /// All weights are zero, and take no time to make; `format` tells that of a matrix by its name.
    pub fn zeros(config: &ModelConfig, format: F) -> Self {
        let kinds = config.tensors().into_iter().map(|tensor| (tensor.name, tensor.kind)).collect();
        Self { kinds, format, codes: Vec::new() }
    }

    /// Codes without order, the same ones every time; `format` tells that of a matrix by its name.
    pub fn random(config: &ModelConfig, format: F) -> Self {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        Self { codes: (0..PERIOD).map(|_| next()).collect(), ..Self::zeros(config, format) }
    }

    fn kind(&self, name: &str) -> lowbit_core::Result<TensorKind> {
        let missing = || Error::missing_tensor("synthetic", name);
        self.kinds.get(name).copied().ok_or_else(missing)
    }

    fn packed(&self, name: &str, n: usize, k: usize) -> lowbit_core::Result<PackedMatrix> {
        let format = (self.format)(name);
        let no_size = || Error::Shape { what: name.to_owned(), problem: format!("{n} x {k} has no size") };
        let size = format.plane_sizes(n, k).ok_or_else(no_size)?;
        let mask = if format.spec().codes == Codes::Float { SMALL } else { 0xff };
        let codes: Vec<u8> = self.codes.iter().map(|code| code & mask).collect();
        let scale_of = |form| -> &[u8] {
            match form {
                _ if codes.is_empty() => &[],
                ScaleForm::Super | ScaleForm::SuperMin | ScaleForm::Progressive => &[1],
                ScaleForm::Channel => &CHANNEL_SCALE,
                ScaleForm::E8m0 => &E8M0_SCALE,
                ScaleForm::E4m3 => &E4M3_SCALE,
                _ => &SCALE,
            }
        };
        let (scales, scale) = (scale_of(format.spec().scale), scale_of(ScaleForm::F16));
        let channels = scale_of(ScaleForm::Channel);
        let plane = |len, pattern| plane(name, len, pattern);
        let planes = [
            plane(size.w, &codes)?,
            plane(size.x, &codes)?,
            plane(size.s, scales)?,
            plane(size.m, scales)?,
            plane(size.d, scale)?,
            plane(size.c, channels)?,
        ];
        PackedMatrix::new(name, format, n, k, planes)
    }
}

/// `len` bytes: a pattern again and again, or zeros.
fn plane(name: &str, len: usize, pattern: &[u8]) -> lowbit_core::Result<Bytes> {
    let mut bytes = AlignedBytes::try_zeroed(len).ok_or_else(|| Error::no_memory_for_model(name, len))?;
    if !pattern.is_empty() {
        for chunk in bytes.as_mut_slice().chunks_mut(pattern.len()) {
            chunk.copy_from_slice(&pattern[..chunk.len()]);
        }
    }
    Ok(Bytes::new(Arc::new(bytes), 0..len))
}

impl<B: Backend, F: Fn(&str) -> Format> Weights<B> for Synthetic<F> {
    fn matrix(&self, name: &str, backend: &B) -> lowbit_core::Result<(TensorKind, B::Matrix)> {
        match self.kind(name)? {
            TensorKind::Matrix { n, k } => move_to(backend, self.packed(name, n, k)?),
            TensorKind::Vector { .. } => {
                Err(Error::Shape { what: name.to_owned(), problem: "is a vector, not a matrix".to_owned() })
            }
        }
    }

    fn vector(&self, name: &str) -> lowbit_core::Result<Vec<f32>> {
        match self.kind(name)? {
            TensorKind::Vector { len } => Ok(vec![if self.codes.is_empty() { 0.0 } else { 1.0 }; len]),
            TensorKind::Matrix { .. } => {
                Err(Error::Shape { what: name.to_owned(), problem: "is a matrix, not a vector".to_owned() })
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::arch::{RopeConfig, RopeScaling, SpecialTokens, Transformer};
    use crate::kv_cache::KvCache;
    use crate::oracle::Oracle;
    use lowbit_core::backend::{RopeStyle, at_once};
    use lowbit_core::format::FORMATS;

    fn logits(weights: impl Fn(&ModelConfig) -> Box<dyn Weights<Oracle>>) -> Vec<f32> {
        let config = ModelConfig {
            n_layers: 2,
            d_model: 256,
            n_heads: 2,
            n_kv_heads: 1,
            head_dim: 128,
            ffn_dim: 256,
            vocab_size: 50,
            context_length: 8,
            rms_eps: 1e-5,
            rope: RopeConfig { base: 1e4, style: RopeStyle::Half, scaling: RopeScaling::None },
            tied_embeddings: false,
            tokens: SpecialTokens::default(),
            gemma3: None,
        };
        let mut device = Oracle::default();
        let weights = weights(&config);
        let mut transformer = Transformer::load(config.clone(), &Dyn(weights), &device, 8).unwrap();
        let mut cache = KvCache::new(&device, config.attention(), 8).unwrap();
        transformer.forward(&mut device, &mut cache, &[1, 2, 3], 0, 2..3, None).unwrap();
        let mut logits = Vec::new();
        at_once(device.take(&mut logits)).unwrap();
        logits
    }

    struct Dyn(Box<dyn Weights<Oracle>>);

    impl Weights<Oracle> for Dyn {
        fn matrix(
            &self,
            name: &str,
            device: &Oracle,
        ) -> lowbit_core::Result<(TensorKind, <Oracle as Backend>::Matrix)> {
            self.0.matrix(name, device)
        }
        fn vector(&self, name: &str) -> lowbit_core::Result<Vec<f32>> {
            self.0.vector(name)
        }
    }

    #[test]
    fn every_format_gives_finite_logits() {
        for spec in FORMATS {
            let format = spec.format;
            let found = logits(|config| Box::new(Synthetic::random(config, move |_| format)));
            assert_eq!(found.len(), 50);
            assert!(found.iter().all(|x| x.is_finite()), "{}: {found:?}", spec.name);
            assert!(found.windows(2).any(|pair| pair[0] != pair[1]), "{}: {found:?}", spec.name);
        }
        let zeros = logits(|config| Box::new(Synthetic::zeros(config, |_| Format::Q4)));
        assert!(zeros.iter().all(|x| *x == 0.0));
    }
}
