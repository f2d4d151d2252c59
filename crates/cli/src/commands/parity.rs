//! `lowbit parity`: the same bits on every instruction set, with any number of threads and any prefill chunk.
//!
//! What is compared is the logits of the prompt's last position. Their hash is SHA-256 over the `vocab_size` f32 values,
//! each as four little-endian bytes, in the order of the vocabulary; the page computes the same.
//!
//! A GPU computes with floats, in sums of another order. It is held to a bound instead: the KL divergence of its logits
//! from those that the first instruction set gives with a16.

use crate::args::{Device, DeviceArgs, ModelArgs};
use crate::compare::Distance;
use crate::error::{Error, Result};
use crate::model::{Job, Loaded};
use crate::{model, output};
use lowbit_core::activation::Activations;
use lowbit_core::backend::Backend;
use lowbit_core::simd::Isa;
use lowbit_engine::{Message, logits_sha256};
use std::num::NonZeroUsize;
use std::str::FromStr;

/// Where a GPU's KL divergence becomes an error, in nats.
const MAX_KL: f64 = 1e-4;

#[derive(clap::Args)]
pub struct Parity {
    #[command(flatten)]
    model: ModelArgs,
    /// Instruction sets, and `gpu`, which is compared within a bound [default: every instruction set of this machine]
    #[arg(long, value_delimiter = ',', conflicts_with = "isa")]
    backends: Vec<Place>,
    /// The question whose logits are compared; plain text for a model without a chat template
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

/// What runs the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Isa(Isa),
    Gpu,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        match name {
            "gpu" => Ok(Self::Gpu),
            isa => isa.parse().map(Self::Isa).map_err(|e: lowbit_core::Error| format!("{e}, or gpu")),
        }
    }
}

/// One way to run the prompt. A GPU has neither a precision of activations nor threads.
#[derive(Clone, Copy, PartialEq, Eq, serde::Serialize)]
struct Way {
    backend: &'static str,
    act: Option<Activations>,
    threads: Option<usize>,
    chunk: usize,
}

#[derive(serde::Serialize)]
struct Outcome {
    #[serde(flatten)]
    way: Way,
    identical: bool,
    logits_sha256: String,
    first_difference: Option<Difference>,
    /// For a GPU.
    #[serde(flatten)]
    near: Option<Near>,
}

/// How near a GPU's logits are.
#[derive(Clone, Copy, serde::Serialize)]
struct Near {
    /// Kullback-Leibler divergence in nats.
    kl: f64,
    /// Whether the likeliest token is the same.
    agrees: bool,
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
pub struct Trace {
    logits: Vec<f32>,
    /// `[layer][position][d_model]`
    layers: Vec<Vec<f32>>,
}

impl Parity {
    pub fn run(&self) -> Result<()> {
        self.check()?;
        let source = model::open(&self.model.model)?;
        let mut outcomes = Vec::new();
        for act in self.acts() {
            let mut expected: Option<Trace> = None;
            for (place, threads) in self.setups(act) {
                let found = source.run(place.device(), &self.arguments(place, act, threads), self)?;
                for (trace, chunk) in found.into_iter().zip(&self.chunks) {
                    let way = Way::new(place, act, threads, chunk.get());
                    let outcome = Outcome::new(way, expected.as_ref().unwrap_or(&trace), &trace)?;
                    if !self.model.json {
                        outcome.print()?;
                    }
                    outcomes.push(outcome);
                    expected.get_or_insert(trace);
                }
            }
        }
        let differing = outcomes.iter().filter(|outcome| !outcome.passes()).count();
        if self.model.json {
            output::json(&serde_json::json!({ "results": outcomes }))?;
        }
        match differing {
            0 => Ok(()),
            n => Err(Error::Differs(format!("{n} of {} runs differ from the first", outcomes.len()))),
        }
    }

    /// A GPU needs something exact to be compared with.
    fn check(&self) -> Result<()> {
        let problem = match self.backends.iter().position(|place| *place == Place::Gpu) {
            Some(0) => "name an instruction set before gpu in --backends: the GPU is compared with the first",
            Some(_) if self.model.act == Some(Activations::A8) => {
                "the GPU computes with floats and is compared with --act a16 only"
            }
            _ => return Ok(()),
        };
        Err(Error::Usage(problem.to_owned()))
    }

    fn acts(&self) -> Vec<Activations> {
        self.model.act.map_or_else(|| Activations::ALL.to_vec(), |act| vec![act])
    }

    /// All that is to run with `act`, and on how many threads. The first is what the others are compared with: where
    /// nothing is said, plain Rust on one thread. A GPU runs beside a16, to which floats are near.
    fn setups(&self, act: Activations) -> Vec<(Place, usize)> {
        let places = match (self.backends.as_slice(), self.model.isa) {
            ([], None) => Isa::available().map(Place::Isa).collect(),
            ([], Some(isa)) => vec![Place::Isa(isa)],
            (places, _) => places.to_vec(),
        };
        let teams = match (self.team.as_slice(), self.model.threads) {
            ([], Some(n)) => vec![n],
            ([], None) => vec![1, 2],
            (teams, _) => teams.to_vec(),
        };
        let setups = |place: Place| match place {
            Place::Isa(_) => teams.iter().map(|&threads| (place, threads)).collect(),
            Place::Gpu if act == Activations::A16 => vec![(place, 1)],
            Place::Gpu => Vec::new(),
        };
        places.into_iter().flat_map(setups).collect()
    }

    fn arguments(&self, place: Place, act: Activations, threads: usize) -> ModelArgs {
        let isa = if let Place::Isa(isa) = place { Some(isa) } else { None };
        ModelArgs { isa, threads: Some(threads), act: Some(act), ..self.model.clone() }
    }

    fn trace<B: Backend>(
        &self,
        model: &mut lowbit_engine::Model<B>,
        prompt: &[u32],
        chunk: usize,
    ) -> Result<Trace> {
        let mut session = model.session()?;
        let mut trace = Trace::default();
        let mut layers = vec![Vec::new(); model.config().n_layers];
        for (i, ids) in prompt.chunks(chunk).enumerate() {
            let last = (i + 1) * chunk >= prompt.len();
            let wanted = if last { ids.len() - 1..ids.len() } else { 0..0 };
            let mut observe = |layer: usize, x: Vec<f32>| layers[layer].extend(x);
            let observer = self.layers.then_some(&mut observe as lowbit_engine::arch::Observer<'_>);
            model.run(&mut session, ids, wanted, &mut trace.logits, observer)?;
        }
        trace.layers = layers;
        Ok(trace)
    }
}

impl Job for &Parity {
    /// What every chunk size gives.
    type Output = Vec<Trace>;

    fn run_on<B: Backend>(self, Loaded { mut model, .. }: Loaded<B>) -> Result<Vec<Trace>> {
        let codec = model.codec();
        let prompt = if codec.has_chat_template() {
            codec.encode_chat(&[Message::new("user", self.prompt.clone())])?
        } else {
            codec.encode(&self.prompt)
        };
        if prompt.is_empty() {
            return Err(lowbit_engine::Error::EmptyPrompt.into());
        }
        let length = self.length.map_or(prompt.len(), NonZeroUsize::get);
        if length > model.context() {
            return Err(lowbit_engine::Error::ContextFull { tokens: length, context: model.context() }.into());
        }
        let prompt: Vec<u32> = prompt.iter().copied().cycle().take(length).collect();
        self.chunks.iter().map(|chunk| self.trace(&mut model, &prompt, chunk.get())).collect()
    }
}

impl Place {
    fn device(self) -> DeviceArgs {
        let device = if self == Self::Gpu { Device::Gpu } else { Device::Cpu };
        DeviceArgs { device, retune: false }
    }
}

impl Way {
    fn new(place: Place, act: Activations, threads: usize, chunk: usize) -> Self {
        match place {
            Place::Isa(isa) => Self { backend: isa.name(), act: Some(act), threads: Some(threads), chunk },
            Place::Gpu => Self { backend: "gpu", act: None, threads: None, chunk },
        }
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
    fn new(way: Way, expected: &Trace, found: &Trace) -> Result<Self> {
        let first_difference = expected.first_difference(found);
        let near = || {
            let Distance { kl, same_top, .. } = Distance::between(&expected.logits, &found.logits)?;
            lowbit_engine::Result::Ok(Near { kl, agrees: same_top })
        };
        Ok(Self {
            way,
            identical: first_difference.is_none(),
            logits_sha256: logits_sha256(&found.logits),
            first_difference,
            near: way.act.is_none().then(near).transpose()?,
        })
    }

    fn passes(&self) -> bool {
        self.near.map_or(self.identical, |near| near.kl < MAX_KL)
    }

    fn print(&self) -> Result<()> {
        let Way { backend, act, threads, chunk } = self.way;
        let act = act.map_or("f32", Activations::name);
        let threads = threads.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let verdict = match (&self.first_difference, self.near) {
            (_, Some(Near { kl, agrees })) => {
                let near = if self.passes() { "near" } else { "TOO FAR" };
                let token = if agrees { "the same" } else { "ANOTHER" };
                format!("{near}: KL {kl:.2e}, {token} first token")
            }
            (None, _) => "identical".to_owned(),
            (Some(difference), _) => format!("DIFFERENT: {difference:?}"),
        };
        let hash = &self.logits_sha256[..16];
        output::line(&format!("{backend:8} {act:3} threads {threads} chunk {chunk:3}  {hash}  {verdict}"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_passes_within_the_bound_and_an_isa_with_the_same_bits() {
        let trace = |logits: [f32; 2]| Trace { logits: logits.to_vec(), layers: Vec::new() };
        let outcome = |place, found| {
            let way = Way::new(place, Activations::A16, 1, 1);
            Outcome::new(way, &trace([1.0, 2.0]), &trace(found)).unwrap()
        };
        for (place, found, passes, identical) in [
            (Place::Gpu, [1.0, 2.001], true, false),
            (Place::Gpu, [1.0, 2.1], false, false),
            (Place::Isa(Isa::Scalar), [1.0, 2.0], true, true),
            (Place::Isa(Isa::Scalar), [1.0, 2.0000002], false, false),
        ] {
            let outcome = outcome(place, found);
            assert_eq!((outcome.passes(), outcome.identical), (passes, identical), "{place:?} {found:?}");
            assert_eq!(outcome.near.is_some(), place == Place::Gpu);
        }
        assert!(!outcome(Place::Gpu, [2.0, 1.0]).near.unwrap().agrees);
    }
}
