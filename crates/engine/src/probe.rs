//! How long the steps of a model take on a device, before anything but the model's header is there: a few of its layers
//! with made-up weights.

use crate::Result;
use crate::arch::{Gemma3Config, ModelConfig, TensorKind, Transformer};
use crate::kv_cache::KvCache;
use crate::synthetic::Synthetic;
use lowbit_core::Error;
use lowbit_core::backend::{Backend, StepTime};
use lowbit_core::container::Header;
use lowbit_core::format::{Format, PlaneSizes};
use std::collections::BTreeMap;
use std::fmt;
use std::task::Poll;
use std::time::Duration;
use web_time::Instant;

/// Bytes of weights, about: too many for the caches that are near, few enough to be made at once.
const BYTES: usize = 16 << 20;
/// Layers, at most.
const LAYERS: usize = 8;
/// Positions, at most.
const POSITIONS: usize = 1024;
/// The one matrix that is not as large as in the model, since only some of its rows are read: it has so many tokens.
const EMBEDDING: &str = "token_embd.weight";
const VOCAB: usize = 64;
/// Steps of one row that are timed together.
const BATCH: u32 = 4;
/// Repetitions of a step, of which the quickest counts: as many as there is time for, at most.
const SAMPLES: usize = 5;
const SAMPLING: Duration = Duration::from_millis(25);

/// A few layers of a model: their sizes and formats.
#[derive(Clone, Debug)]
pub struct ProbeShape {
    config: ModelConfig,
    /// Of every matrix.
    formats: BTreeMap<String, Format>,
    share: f64,
}

impl ProbeShape {
    /// The first layers of the model that `header` describes.
    ///
    /// # Errors
    /// When the header describes no model.
    pub fn new(header: &Header) -> Result<Self> {
        let model = ModelConfig::of(&header.manifest).map_err(|error| error.of(&header.file))?;
        let bytes_of = |part: &str| -> usize {
            let matrices = header.manifest.matrices.iter().filter(|(name, _)| name.starts_with(part));
            let sizes = matrices.filter_map(|(_, matrix)| matrix.format.plane_sizes(matrix.n, matrix.k));
            sizes.map(PlaneSizes::total).sum()
        };
        let n_layers = (BYTES / bytes_of("blk.0.").max(1)).clamp(1, LAYERS).min(model.n_layers);
        let output = if model.tied_embeddings { EMBEDDING } else { "output.weight" };
        let timed: usize = (0..n_layers).map(|i| bytes_of(&format!("blk.{i}."))).sum();
        let share = (bytes_of("blk.") + bytes_of(output)) as f64 / timed.max(1) as f64;
        let config = ModelConfig {
            n_layers,
            vocab_size: VOCAB,
            context_length: model.context_length.min(POSITIONS),
            tied_embeddings: true,
            tokens: Default::default(),
            ..model
        };
        Ok(Self { formats: formats(header, &config)?, config, share })
    }

    /// The last position that a step may have.
    pub fn last_position(&self) -> usize {
        self.config.context_length.saturating_sub(1)
    }

    /// How many times the weights of these layers a token of the whole model reads.
    pub fn share(&self) -> f64 {
        self.share
    }
}

/// The formats of the matrices of these layers, which are as large in the file as they are here.
fn formats(header: &Header, config: &ModelConfig) -> lowbit_core::Result<BTreeMap<String, Format>> {
    let mut formats = BTreeMap::new();
    for tensor in config.tensors() {
        let TensorKind::Matrix { n, k } = tensor.kind else { continue };
        let missing = || Error::missing_tensor(&header.file, &tensor.name);
        let (entry, _) = header.matrix(&tensor.name).ok_or_else(missing)?;
        let is_cut = tensor.name == EMBEDDING;
        if entry.k != k || (entry.n != n && !is_cut) {
            let problem = format!("{} is {} x {}, expected {n} x {k}", tensor.name, entry.n, entry.k);
            return Err(Error::Shape { what: header.file.clone(), problem });
        }
        formats.insert(tensor.name, entry.format);
    }
    Ok(formats)
}

impl fmt::Display for ProbeShape {
    /// All that the time of a step depends on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ModelConfig { n_layers, d_model, n_heads, n_kv_heads, head_dim, ffn_dim, context_length, .. } =
            self.config;
        write!(f, "{n_layers} of {:.3} x {d_model}, {n_heads}/{n_kv_heads} x {head_dim}, ", self.share)?;
        write!(f, "{ffn_dim}, {context_length}")?;
        if let Some(Gemma3Config { window, global_every, .. }) = &self.config.gemma3 {
            write!(f, ", gemma3 {window}/{global_every}")?;
        }
        f.write_str(":")?;
        self.formats.values().try_for_each(|format| write!(f, " {}", format.spec().name))
    }
}

/// The layers on a device.
pub struct Probe<B: Backend> {
    transformer: Transformer<B>,
    cache: KvCache<B>,
    running: Option<Running>,
}

/// A step that is being repeated.
struct Running {
    begin: Instant,
    /// When the repetition that is under way began.
    asked: Option<Instant>,
    /// What each took; the first only prepares.
    samples: Vec<Duration>,
}

impl Running {
    /// Ends a repetition. Returns the time of the quickest, once there are enough.
    fn end(&mut self) -> Option<Duration> {
        self.samples.extend(self.asked.take().map(|asked| asked.elapsed()));
        let samples = self.samples.get(1..)?;
        let is_enough = samples.len() == SAMPLES || samples.iter().sum::<Duration>() >= SAMPLING;
        samples.iter().min().copied().filter(|_| is_enough)
    }
}

impl<B: Backend> Probe<B> {
    /// Makes weights and moves them to the device.
    ///
    /// # Errors
    /// When the device has no room for them.
    pub fn new(shape: &ProbeShape, device: &B) -> Result<Self> {
        let ProbeShape { config, formats, .. } = shape;
        let format = |name: &str| formats.get(name).copied().unwrap_or(Format::F32);
        let positions = config.context_length;
        let transformer =
            Transformer::load(config.clone(), &Synthetic::random(config, format), device, positions)?;
        let cache = KvCache::new(device, config.attention(), positions)?;
        Ok(Self { transformer, cache, running: None })
    }

    /// Times a step of `rows` rows from position `pos` on, as far as there are positions; without rows, one that computes
    /// nothing but whose result is awaited. Pending while the device works, and then to be called again.
    ///
    /// # Errors
    /// The device's own.
    pub fn poll(&mut self, device: &mut B, rows: usize, pos: usize) -> Poll<Result<StepTime>> {
        let begin = || Running { begin: Instant::now(), asked: None, samples: Vec::new() };
        let mut running = self.running.take().unwrap_or_else(begin);
        loop {
            if running.asked.is_none() {
                running.asked = Some(Instant::now());
                self.ask(device, rows, pos)?;
            }
            match device.take(&mut Vec::new()) {
                Poll::Ready(result) => result?,
                Poll::Pending => {
                    self.running = Some(running);
                    return Poll::Pending;
                }
            }
            if let Some(quickest) = running.end() {
                let step = quickest / steps(rows);
                return Poll::Ready(Ok(StepTime { step, spent: running.begin.elapsed() }));
            }
        }
    }

    /// Asks for some steps, and for their end.
    fn ask(&mut self, device: &mut B, rows: usize, pos: usize) -> Result<()> {
        if rows == 0 {
            return self.transformer.residual(device, &mut self.cache, &[0], 0);
        }
        let room = self.cache.capacity().saturating_sub(pos);
        let ids: Vec<u32> = (0..rows.min(room)).map(|i| (i % VOCAB) as u32).collect();
        for _ in 0..steps(rows) {
            self.transformer.forward(device, &mut self.cache, &ids, pos, 0..0, None)?;
        }
        Ok(())
    }
}

/// Steps of so many rows that are timed together.
fn steps(rows: usize) -> u32 {
    if rows == 1 { BATCH } else { 1 }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::convert;
    use lowbit_core::activation::Activations;
    use lowbit_core::backend::{CpuBackend, at_once};
    use lowbit_core::simd::Isa;
    use lowbit_testing::TinyModel;

    fn header() -> Header {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        std::fs::write(&path, TinyModel::default().gguf()).unwrap();
        convert::in_memory(&path, &convert::Options::default(), &mut |_| ()).unwrap().header().clone()
    }

    #[test]
    fn a_probe_has_the_sizes_and_formats_of_the_model() {
        let header = header();
        let shape = ProbeShape::new(&header).unwrap();
        let model = ModelConfig::of(&header.manifest).unwrap();
        assert_eq!((shape.config.n_layers, shape.config.ffn_dim), (model.n_layers, model.ffn_dim));
        for (name, format) in &shape.formats {
            assert_eq!(*format, header.manifest.matrices[name].format, "{name}");
        }
        let bytes = |part: &str| -> usize {
            let matrices = header.manifest.matrices.iter().filter(|(name, _)| name.starts_with(part));
            matrices.flat_map(|(name, _)| header.matrix(name).unwrap().1).map(|plane| plane.len()).sum()
        };
        // All layers are there; what a token reads besides is the output matrix.
        let output = if model.tied_embeddings { "token_embd" } else { "output" };
        let share = (bytes("blk.") + bytes(output)) as f64 / bytes("blk.") as f64;
        assert!((shape.share() - share).abs() < 1e-9, "{} is not {share}", shape.share());
    }

    #[test]
    fn steps_of_any_size_are_timed() {
        let shape = ProbeShape::new(&header()).unwrap();
        let mut device = CpuBackend::new(Isa::best(), 1, Activations::A16).unwrap();
        let mut probe = Probe::new(&shape, &device).unwrap();
        let last = shape.last_position();
        for (rows, pos) in [(0, 0), (1, 0), (1, last), (5, 0), (5000, 0), (3, last)] {
            let StepTime { step, spent } = at_once(probe.poll(&mut device, rows, pos)).unwrap();
            assert!(
                step > Duration::ZERO && step * steps(rows) < spent,
                "{rows} rows: {step:?} of {spent:?}"
            );
        }
    }

    #[test]
    fn a_file_whose_matrices_are_not_those_of_its_model_is_refused() {
        let with = |change: &dyn Fn(&mut Header)| {
            let mut header = header();
            change(&mut header);
            ProbeShape::new(&header).unwrap_err().code()
        };
        let matrix = "blk.1.ffn_up.weight";
        assert_eq!(with(&|header| header.manifest.matrices.get_mut(matrix).unwrap().n += 16), "bad-shape");
        assert_eq!(
            with(&|header| header.manifest.matrices.retain(|name, _| name != matrix)),
            "missing-tensor"
        );
        assert_eq!(with(&|header| header.manifest.config = serde_json::json!({})), "bad-config");
    }
}
