//! `lowbit parity`: the same bits on every instruction set, with any number of threads and any prefill chunk.
//!
//! What is compared is the logits of the prompt's last position. Their hash is SHA-256 over the `vocab_size` f32 values,
//! each as four little-endian bytes, in the order of the vocabulary; the page computes the same.

use crate::args::ModelArgs;
use crate::error::{Error, Result};
use crate::{model, output};
use lowbit_core::activation::Activations;
use lowbit_core::simd::Isa;
use lowbit_engine::{Message, logits_sha256};
use std::num::NonZeroUsize;

#[derive(clap::Args)]
pub struct Parity {
    #[command(flatten)]
    model: ModelArgs,
    /// The question whose logits are compared
    #[arg(short, long, default_value = "What is the capital of France?")]
    prompt: String,
    /// Repeat the prompt's tokens to this length, so that long chunks are used
    #[arg(long)]
    length: Option<NonZeroUsize>,
    /// Numbers of threads [default: 1,2, or what --threads says]
    #[arg(long, value_delimiter = ',', value_parser = crate::args::threads())]
    team: Vec<usize>,
    /// Prefill chunks
    #[arg(long, value_delimiter = ',', default_value = "1,7,64,512")]
    chunks: Vec<NonZeroUsize>,
    /// Compare every layer too
    #[arg(long)]
    layers: bool,
}

/// One way to run the prompt.
#[derive(Clone, Copy, PartialEq, Eq, serde::Serialize)]
struct Way {
    backend: &'static str,
    act: Activations,
    threads: usize,
    chunk: usize,
}

#[derive(serde::Serialize)]
struct Outcome {
    #[serde(flatten)]
    way: Way,
    identical: bool,
    logits_sha256: String,
    first_difference: Option<Difference>,
}

/// Where two runs first differ.
#[derive(Debug, PartialEq, serde::Serialize)]
struct Difference {
    /// The layer, or `None` for the logits.
    layer: Option<usize>,
    index: usize,
    expected: f32,
    found: f32,
}

/// What a run gave.
#[derive(Default)]
struct Trace {
    logits: Vec<f32>,
    /// `[layer][position][d_model]`
    layers: Vec<Vec<f32>>,
}

impl Parity {
    pub fn run(&self) -> Result<()> {
        let source = model::open(&self.model.model)?;
        let mut outcomes = Vec::new();
        for act in self.acts() {
            let mut expected: Option<Trace> = None;
            for way in self.ways(act) {
                let trace = self.trace(&source, way)?;
                let first_difference =
                    expected.as_ref().and_then(|expected| expected.first_difference(&trace));
                let outcome = Outcome {
                    way,
                    identical: first_difference.is_none(),
                    logits_sha256: logits_sha256(&trace.logits),
                    first_difference,
                };
                if !self.model.json {
                    outcome.print()?;
                }
                outcomes.push(outcome);
                expected.get_or_insert(trace);
            }
        }
        let differing = outcomes.iter().filter(|outcome| !outcome.identical).count();
        if self.model.json {
            output::json(&serde_json::json!({ "results": outcomes }))?;
        }
        match differing {
            0 => Ok(()),
            n => Err(Error::Differs(format!("{n} of {} runs differ from the first", outcomes.len()))),
        }
    }

    fn acts(&self) -> Vec<Activations> {
        self.model.act.map_or_else(|| vec![Activations::A8, Activations::A16], |act| vec![act])
    }

    /// All ways with `act`; the first is the one that the others are compared with: plain Rust, one thread.
    fn ways(&self, act: Activations) -> Vec<Way> {
        let isas = self.model.isa.map_or_else(|| Isa::available().collect(), |isa| vec![isa]);
        let teams = match (self.team.as_slice(), self.model.threads) {
            ([], Some(n)) => vec![n],
            ([], None) => vec![1, 2],
            (teams, _) => teams.to_vec(),
        };
        let mut ways = Vec::new();
        for isa in isas {
            for &threads in &teams {
                let way =
                    |chunk: &NonZeroUsize| Way { backend: isa.name(), act, threads, chunk: chunk.get() };
                ways.extend(self.chunks.iter().map(way));
            }
        }
        ways
    }

    fn trace(&self, source: &model::Source, way: Way) -> Result<Trace> {
        let arguments = ModelArgs {
            isa: Some(way.backend.parse::<Isa>()?),
            threads: Some(way.threads),
            act: Some(way.act),
            ..self.model.clone()
        };
        let mut model = source.load(&arguments)?.model;
        let prompt = model.codec().encode_chat(&[Message::new("user", self.prompt.clone())])?;
        let length = self.length.map_or(prompt.len(), NonZeroUsize::get);
        if length > model.context() {
            return Err(lowbit_engine::Error::ContextFull { tokens: length, context: model.context() }.into());
        }
        let prompt: Vec<u32> = prompt.iter().copied().cycle().take(length).collect();
        let mut session = model.session()?;
        let mut trace = Trace::default();
        let mut layers = vec![Vec::new(); model.config().n_layers];
        for (i, ids) in prompt.chunks(way.chunk).enumerate() {
            let last = (i + 1) * way.chunk >= prompt.len();
            let wanted = if last { ids.len() - 1..ids.len() } else { 0..0 };
            let mut observe = |layer: usize, x: Vec<f32>| layers[layer].extend(x);
            let observer = self.layers.then_some(&mut observe as lowbit_engine::arch::llama::Observer<'_>);
            model.run(&mut session, ids, wanted, &mut trace.logits, observer)?;
        }
        trace.layers = layers;
        Ok(trace)
    }
}

impl Trace {
    fn first_difference(&self, found: &Self) -> Option<Difference> {
        let layers = self.layers.iter().zip(&found.layers).enumerate();
        let mut all =
            layers.map(|(layer, (a, b))| (Some(layer), a, b)).chain([(None, &self.logits, &found.logits)]);
        all.find_map(|(layer, a, b)| {
            let index = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits())?;
            Some(Difference { layer, index, expected: a[index], found: b[index] })
        })
    }
}

impl Outcome {
    fn print(&self) -> Result<()> {
        let Way { backend, threads, chunk, .. } = self.way;
        let act = self.way.act.name();
        let verdict = match &self.first_difference {
            None => "identical".to_owned(),
            Some(difference) => format!("DIFFERENT: {difference:?}"),
        };
        let hash = &self.logits_sha256[..16];
        output::line(&format!("{backend:8} {act:3} threads {threads} chunk {chunk:3}  {hash}  {verdict}"))
    }
}
