//! Packing that looks at what a model does with a text: which input features of a matrix matter, and which say the same.
//!
//! ```text
//! artifact of the source, text --Recorder--> Hessian of every matrix's inputs --> Factors of input features
//!                                                                            --> importance of weights in the search for scales
//!                                                                            --> Gptq, which chooses codes
//!                                                                            --> errors of outputs: Report, mixed precision
//! ```
//!
//! The text is run once for as many matrices as their Hessians have room, from the source's weights. Nothing here is part of
//! the page.

mod balance;
mod gptq;
mod hessian;
mod mixed;
mod recorder;

pub use balance::{Factors, Group, balance};
pub use gptq::Gptq;
pub use hessian::Hessian;
pub use mixed::{Mixed, mixed};

use crate::arch::{ModelConfig, TensorKind};
use crate::convert::{Packed, Rounder};
use crate::{Error, LoadOptions, Model, Result, Session};
use lowbit_core::activation::Activations;
use lowbit_core::backend::CpuBackend;
use lowbit_core::container::Artifact;
use lowbit_core::format::{Rounding, ScaleSearch};
use lowbit_core::simd::Isa;
use recorder::{Moments, NamedWeights, Recorder};
use std::collections::BTreeMap;
use std::rc::Rc;

/// How a text is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The most tokens of the text that are run.
    pub tokens: usize,
    /// Tokens that are run together, each window from an empty cache.
    pub window: usize,
    /// Bytes that the Hessians of a run and their factors may take; one matrix is always taken.
    pub memory: usize,
    /// Threads.
    pub threads: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { tokens: 8192, window: 512, memory: 1 << 30, threads: lowbit_core::parallel::cores() }
    }
}

/// What share of the mean second moment is added to that of every input feature before factoring.
const DAMPING: f64 = 0.01;

/// A model that shows what its matrices are multiplied with.
pub struct Calibrator {
    model: Model<Recorder<CpuBackend>>,
    session: Session<Recorder<CpuBackend>>,
    windows: Vec<Vec<u32>>,
    settings: Settings,
    moments: Moments,
    /// The matrices whose inputs are recorded, and their input features, in the order of execution.
    inputs: Vec<(String, usize)>,
    /// What the last run has found, as far as it was asked for.
    found: BTreeMap<String, Rc<Input>>,
    /// What inputs count as divided by.
    divisors: BTreeMap<String, Vec<f32>>,
}

/// What is known of the input of a matrix.
pub struct Input {
    /// Its second moments.
    pub hessian: Hessian,
    /// The diagonal.
    pub importance: Vec<f32>,
    /// Its factor; `None` where the inputs were not finite.
    pub gptq: Option<Gptq>,
}

impl Input {
    /// What second moments tell.
    pub fn new(hessian: Hessian) -> Self {
        Self { importance: hessian.importance(), gptq: Gptq::new(&hessian, DAMPING), hessian }
    }
}

impl Calibrator {
    /// Prepares to run `text` on the model of an artifact, whose weights are those to be packed.
    ///
    /// # Errors
    /// When the model is not sound, or the text has fewer than two tokens.
    pub fn new(artifact: &Artifact, text: &str, settings: Settings) -> Result<Self> {
        let header = artifact.header();
        let config = ModelConfig::of(&header.manifest)?;
        let tokenizer = header.manifest.tokenizer.as_ref().map(|name| artifact.document(name)).transpose()?;
        let moments = Moments::default();
        let cpu = CpuBackend::new(Isa::best(), settings.threads, Activations::A16)?;
        let backend = Recorder::new(cpu, moments.clone());
        let window = settings.window.min(config.context_length).max(2);
        let options = LoadOptions { context: Some(window) };
        let model = Model::of_header(header, tokenizer, &NamedWeights(artifact), backend, options)?;
        let mut ids = model.codec().tokenizer().encode(text, false);
        ids.truncate(settings.tokens);
        if ids.len() < 2 {
            let problem = format!("has {} tokens, expected at least 2", ids.len());
            return Err(Error::Config { field: "calibration text", problem });
        }
        let windows = ids.chunks(window).map(<[u32]>::to_vec).collect();
        let session = model.session()?;
        let inputs = inputs(&config);
        let (found, divisors) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { model, session, windows, settings, moments, inputs, found, divisors })
    }

    /// What is known of the input of `matrix`. The text is run where that has not been found yet; ask in the order of
    /// execution, as what comes next is found on the way.
    ///
    /// # Errors
    /// When the model has no such matrix, or the device fails.
    pub fn input(&mut self, matrix: &str) -> Result<Rc<Input>> {
        let source = input_of(matrix, &self.inputs);
        if let Some(input) = self.found.get(&source) {
            return Ok(input.clone());
        }
        if !self.moments.borrow().contains_key(&source) {
            self.run(&source)?;
        }
        let Some(hessian) = self.moments.borrow_mut().remove(&source) else {
            return Err(lowbit_core::Error::MissingTensor { file: String::new(), tensor: source }.into());
        };
        let hessian = if let Some(by) = self.divisors.get(&source) { hessian.divided(by) } else { hessian };
        let input = Rc::new(Input::new(hessian));
        self.found.insert(source, input.clone());
        Ok(input)
    }

    /// From now on inputs count as divided by these factors, one for every feature. They are named as the first matrices, in
    /// the order of execution, that have them.
    fn divide_inputs(&mut self, by: BTreeMap<String, Vec<f32>>) {
        for (source, factors) in &by {
            if let Some(input) = self.found.get_mut(source) {
                *input = Rc::new(Input::new(input.hessian.divided(factors)));
            }
        }
        self.divisors = by;
    }

    /// Runs the text and records the inputs from `first` on, as many as there is room for.
    fn run(&mut self, first: &str) -> Result<()> {
        let mut room = self.settings.memory;
        self.found.clear();
        let mut moments = BTreeMap::new();
        for (name, k) in self.inputs.iter().skip_while(|(name, _)| name != first) {
            match room.checked_sub(2 * Hessian::bytes(*k)) {
                None if !moments.is_empty() => break,
                left => room = left.unwrap_or(0),
            }
            moments.insert(name.clone(), Hessian::new(*k));
        }
        *self.moments.borrow_mut() = moments;
        let mut logits = Vec::new();
        for ids in &self.windows {
            self.session.clear();
            self.model.run(&mut self.session, ids, 0..0, &mut logits, None)?;
        }
        Ok(())
    }
}

/// The matrices whose inputs differ.
fn inputs(config: &ModelConfig) -> Vec<(String, usize)> {
    let mut inputs: Vec<(String, usize)> = Vec::new();
    let mut table = None;
    for tensor in config.tensors() {
        let TensorKind::Matrix { k, .. } = tensor.kind else { continue };
        if tensor.name == "token_embd.weight" {
            // Nothing is multiplied with the table but where it is the output matrix, the last.
            table = config.tied_embeddings.then_some((tensor.name, k));
        } else if !["attn_k.", "attn_v.", "ffn_up."].iter().any(|shared| tensor.name.contains(shared)) {
            inputs.push((tensor.name, k));
        }
    }
    inputs.extend(table);
    inputs
}

/// The matrix whose input `matrix` shares.
fn input_of(matrix: &str, inputs: &[(String, usize)]) -> String {
    let source = matrix
        .replace(".attn_k.", ".attn_q.")
        .replace(".attn_v.", ".attn_q.")
        .replace(".ffn_up.", ".ffn_gate.");
    let is_known = inputs.iter().any(|(name, _)| *name == source);
    // The table of an untied model is read row by row; of what its values become nothing is known but that they are logits'.
    if is_known || source != "token_embd.weight" { source } else { "blk.0.attn_q.weight".to_owned() }
}

/// A matrix that has been packed.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct TensorReport {
    /// Its name.
    pub name: String,
    /// Its format.
    pub format: &'static str,
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
    /// Bits a weight, scales and all.
    pub bits: f64,
    /// The squared error of its outputs, as a share of their squares; without a text, of its weights.
    pub error: f64,
}

/// Rows of a slice from which errors are estimated.
const SAMPLED_ROWS: usize = 48;

/// Rounds matrices as is asked for, and takes note of what comes out.
#[derive(Default)]
pub struct Packer {
    /// How scales are chosen.
    pub search: ScaleSearch,
    /// What is known of the inputs.
    pub calibrator: Option<Calibrator>,
    /// What weights are multiplied with first.
    pub factors: Factors,
    /// Whether errors are measured.
    pub measures: bool,
    /// The input of the matrix that is being packed.
    input: Option<Rc<Input>>,
    reports: Vec<(TensorReport, [f64; 2])>,
}

impl Packer {
    /// One that looks at nothing but the weights.
    pub fn new(search: ScaleSearch, measures: bool) -> Self {
        Self { search, measures, ..Self::default() }
    }

    /// What came out, in the order in which it was packed.
    pub fn reports(self) -> Vec<TensorReport> {
        let report = |(report, [error, all]): (TensorReport, [f64; 2])| TensorReport {
            error: if all > 0.0 { error / all } else { 0.0 },
            ..report
        };
        self.reports.into_iter().map(report).collect()
    }
}

impl Rounder for Packer {
    fn scale(&mut self, tensor: &str, weights: &mut [f32]) {
        self.factors.apply(tensor, weights);
    }

    fn rounding(&mut self, tensor: &str) -> Result<Rounding<'_>> {
        if let Some(calibrator) = &mut self.calibrator {
            self.input = Some(calibrator.input(tensor)?);
        }
        let rounding = Rounding { search: self.search, ..Rounding::default() };
        Ok(match &self.input {
            None => rounding,
            Some(input) => Rounding {
                importance: &input.importance,
                codes: input.gptq.as_ref().map(|gptq| gptq as _),
                ..rounding
            },
        })
    }

    fn packed(&mut self, packed: Packed<'_>) -> Result<()> {
        if !self.measures {
            return Ok(());
        }
        let rows = packed.weights.len() / packed.k;
        let spec = packed.format.spec();
        let identity = |e: &[f32]| e.iter().map(|e| f64::from(e * e)).sum::<f64>();
        let energy = |e: &[f32]| self.input.as_ref().map_or_else(|| identity(e), |i| i.hessian.energy(e));
        let matrix = packed.planes.clone().into_matrix(packed.tensor, rows)?;
        let mut sums = [0.0; 2];
        let mut row = vec![0.0; packed.k];
        for i in (0..rows).step_by(rows.div_ceil(SAMPLED_ROWS)) {
            let weights = &packed.weights[i * packed.k..][..packed.k];
            matrix.dequantize_row(i, &mut row);
            row.iter_mut().zip(weights).for_each(|(found, weight)| *found -= weight);
            sums[0] += energy(&row);
            sums[1] += energy(weights);
        }
        let bytes = packed.format.plane_sizes(16, packed.k).map_or(0, |sizes| sizes.total());
        match self.reports.last_mut() {
            Some((report, of_slices)) if report.name == packed.tensor => {
                report.n += rows;
                of_slices.iter_mut().zip(sums).for_each(|(sum, of_slice)| *sum += of_slice);
            }
            _ => {
                let report = TensorReport {
                    name: packed.tensor.to_owned(),
                    format: spec.name,
                    n: rows,
                    k: packed.k,
                    bits: bytes as f64 * 8.0 / (16 * packed.k) as f64,
                    error: 0.0,
                };
                self.reports.push((report, sums));
            }
        }
        Ok(())
    }
}
