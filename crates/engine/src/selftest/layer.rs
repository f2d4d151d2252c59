//! The first layer of a real model, as the device computes it and as the CPU does.

use super::compare;
use crate::arch::{ModelConfig, SpecialTokens, TensorKind, Transformer, Weights, move_to};
use crate::kv_cache::KvCache;
use crate::{Model, Result, Session};
use lowbit_core::activation::Activations;
use lowbit_core::backend::{Backend, CpuBackend};
use lowbit_core::format::Format;
use lowbit_core::pack::{Origin, matrix_from_f32};
use lowbit_core::simd::Isa;
use lowbit_core::{Error, PackedMatrix};
use std::collections::HashMap;
use std::task::{Poll, ready};

/// Tokens of the test.
const TOKENS: usize = 5;

/// A copy of a model's first layer on the CPU.
pub(crate) type FirstLayer = (HashMap<String, PackedMatrix>, HashMap<String, Vec<f32>>);

/// The comparison, which has two parts: what goes into the layer, and what comes out.
pub struct LayerTest {
    layer: FirstLayer,
    activations: Activations,
    ids: Vec<u32>,
    /// Whether the device has been asked.
    is_running: bool,
    /// The embedding of the tokens, once the device has given it.
    input: Option<Vec<f32>>,
}

impl LayerTest {
    /// `activations` as in [`super::SelfTest::new`].
    pub(crate) fn new(layer: FirstLayer, activations: Activations) -> Self {
        Self { layer, activations, ids: Vec::new(), is_running: false, input: None }
    }

    /// Goes on; pending while the device works, and then to be called again. The session is only scratch memory.
    ///
    /// # Errors
    /// [`Error::Device`] when the device computes wrongly; the device's own errors.
    pub fn poll<B: Backend>(&mut self, model: &mut Model<B>, session: &mut Session<B>) -> Poll<Result<()>> {
        let vocab_size = model.config().vocab_size;
        if self.ids.is_empty() {
            let count = TOKENS.min(session.capacity());
            self.ids = (0..count).map(|i| (i * 7919 % vocab_size) as u32).collect();
        }
        let mut values = Vec::new();
        if self.input.is_none() {
            self.input = Some(ready!(self.ask(model, session, 0, &mut values)).map(|()| values)?);
            values = Vec::new();
        }
        ready!(self.ask(model, session, 1, &mut values))?;
        let input = self.input.take().unwrap_or_default();
        let expected = self.on_cpu(model.config(), input)?;
        let problem = compare(&expected, &values, self.activations).err();
        Poll::Ready(problem.map_or(Ok(()), |problem| {
            let problem = format!("the model's first layer computes wrongly: {problem}");
            Err(Error::gpu(problem).into())
        }))
    }

    /// The residual stream after some layers.
    fn ask<B: Backend>(
        &mut self,
        model: &mut Model<B>,
        session: &mut Session<B>,
        layers: usize,
        values: &mut Vec<f32>,
    ) -> Poll<Result<()>> {
        if !self.is_running {
            model.residual(session, &self.ids, layers)?;
            self.is_running = true;
        }
        let result = ready!(model.take_residual(values));
        self.is_running = false;
        Poll::Ready(result)
    }

    /// The layer on the CPU: a model of one layer whose vocabulary is its input.
    fn on_cpu(&self, config: &ModelConfig, input: Vec<f32>) -> Result<Vec<f32>> {
        let tokens = SpecialTokens { eos: Vec::new(), bos: None, add_bos: false };
        let rows = self.ids.len();
        let mut one =
            ModelConfig { n_layers: 1, vocab_size: rows, tied_embeddings: true, tokens, ..config.clone() };
        // The input is scaled already.
        one.gemma3.iter_mut().for_each(|gemma3| gemma3.embedding_scale = 1.0);
        let mut cpu = CpuBackend::new(Isa::best(), 1, self.activations)?;
        let weights = OneLayer { layer: &self.layer, input, d_model: config.d_model };
        let mut transformer = Transformer::load(one.clone(), &weights, &cpu, rows)?;
        let mut cache = KvCache::new(&cpu, one.attention(), rows)?;
        let ids: Vec<u32> = (0..rows as u32).collect();
        transformer.residual(&mut cpu, &mut cache, &ids, 1)?;
        let mut expected = Vec::new();
        lowbit_core::backend::at_once(cpu.take(&mut expected))?;
        Ok(expected)
    }
}

struct OneLayer<'a> {
    layer: &'a FirstLayer,
    /// `[rows][d_model]`
    input: Vec<f32>,
    d_model: usize,
}

impl Weights<CpuBackend> for OneLayer<'_> {
    fn matrix(&self, name: &str, cpu: &CpuBackend) -> lowbit_core::Result<(TensorKind, PackedMatrix)> {
        if name == "token_embd.weight" {
            let origin = Origin { file: "self-test", tensor: name };
            return move_to(cpu, matrix_from_f32(Format::F32, self.d_model, &self.input, origin)?);
        }
        move_to(cpu, self.layer.0.get(name).cloned().ok_or_else(|| missing(name))?)
    }

    fn vector(&self, name: &str) -> lowbit_core::Result<Vec<f32>> {
        if name == "output_norm.weight" {
            return Ok(vec![1.0; self.d_model]);
        }
        self.layer.1.get(name).cloned().ok_or_else(|| missing(name))
    }
}

fn missing(name: &str) -> Error {
    Error::missing_tensor("self-test", name)
}
