//! The speed of a model of a shape.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::Result;
use crate::shape::{FORMAT, Shape};
use lowbit_core::backend::{Backend, at_once};
use lowbit_core::candidates::Candidate;
use lowbit_engine::arch::{Transformer, Wanted};
use lowbit_engine::kv_cache::KvCache;
use lowbit_engine::synthetic::Synthetic;
use lowbit_gpu::{BufferId, Cost, Executor, GpuBackend, Native, Plan};

/// Tokens that are decoded in one measurement, after one that warms up.
const DECODED: usize = 32;
/// Runs of a plan of one kind of dispatch.
const RUNS: u32 = 10;
/// Each speed is the median of this many measurements, or of as many as begin within a time.
const REPEAT: usize = 3;
const PATIENCE: Duration = Duration::from_secs(15);

/// What was measured.
pub struct Speed {
    pub name: &'static str,
    pub layers: usize,
    /// Bytes of packed weights that a token reads.
    pub weight_bytes: u64,
    /// Seconds to make the weights and move them to the GPU.
    pub load_s: f64,
    pub prompt: usize,
    pub prefill_tok_s: f64,
    pub decode: [Decode; 2],
    pub kinds: Vec<Kind>,
}

/// Decoding after some positions.
#[derive(Clone, Copy)]
pub struct Decode {
    pub after: usize,
    pub tok_s: f64,
}

/// All dispatches of a token that run one shader.
pub struct Kind {
    pub name: String,
    pub runs: usize,
    pub cost: Cost,
    /// What they take when nothing else runs.
    pub seconds: f64,
}

impl Speed {
    /// Bytes of weights read per second while decoding after the longer text, in GB.
    pub fn weights_gb_s(&self) -> f64 {
        self.decode[1].tok_s * self.weight_bytes as f64 / 1e9
    }
}

impl Kind {
    /// Bytes moved per second, in GB.
    pub fn gb_s(&self) -> f64 {
        (self.cost.weights + self.cost.others) as f64 / self.seconds / 1e9
    }
}

/// A device that the backend and the measurements use by turns.
#[derive(Clone)]
struct Shared(Rc<RefCell<Native>>);

impl Executor for Shared {
    fn buffer(&mut self, what: &str, bytes: u64) -> lowbit_core::Result<BufferId> {
        self.0.borrow_mut().buffer(what, bytes)
    }
    fn free(&mut self, buffer: BufferId) {
        self.0.borrow_mut().free(buffer);
    }
    fn write(&mut self, buffer: BufferId, offset: u64, bytes: &[u8]) {
        self.0.borrow_mut().write(buffer, offset, bytes);
    }
    fn run(&mut self, plan: &Plan, pos: u32) -> lowbit_core::Result<()> {
        self.0.borrow_mut().run(plan, pos)
    }
    fn ask(&mut self, buffer: BufferId, bytes: u64) -> lowbit_core::Result<()> {
        self.0.borrow_mut().ask(buffer, bytes)
    }
    fn take(&mut self) -> Poll<lowbit_core::Result<Vec<u8>>> {
        self.0.borrow_mut().take()
    }
}

/// A model on the device.
struct Loaded {
    device: GpuBackend<Shared>,
    transformer: Transformer<GpuBackend<Shared>>,
    cache: KvCache<GpuBackend<Shared>>,
    top: Vec<Candidate>,
}

/// Measures a shape on a device that nothing else uses.
pub fn measure(shape: &Shape, native: Native) -> Result<Speed> {
    let start = Instant::now();
    let mut shared = Shared(Rc::new(RefCell::new(native)));
    let mut model = Loaded::new(shape, shared.clone())?;
    // Its first run compiles the shaders; once it is over, all weights have arrived.
    model.run(1, 0)?;
    let load_s = start.elapsed().as_secs_f64();
    let prefill_tok_s = median(shape.prompt, || model.run(shape.prompt, 0))?;
    let mut decode = shape.after.map(|after| Decode { after, tok_s: 0.0 });
    for Decode { after, tok_s } in &mut decode {
        model.run(1, *after)?;
        let decoded = *after + 1..*after + 1 + DECODED;
        *tok_s = median(DECODED, || decoded.clone().try_for_each(|pos| model.run(1, pos)))?;
    }
    let plan = model.device.last_plan();
    let kinds = kinds(&plan, shape.after[1], &mut shared)?;
    let (name, layers, prompt) = (shape.name, shape.n_layers, shape.prompt);
    let weight_bytes = plan.cost().weights;
    Ok(Speed { name, layers, weight_bytes, load_s, prompt, prefill_tok_s, decode, kinds })
}

impl Loaded {
    fn new(shape: &Shape, shared: Shared) -> Result<Self> {
        let config = shape.config();
        let context = shape.prompt.max(shape.after[1]) + 1 + DECODED;
        let device = GpuBackend::new(shared);
        let cache = KvCache::new(&device, config.attention(), context)?;
        let weights = Synthetic::random(&config, |_| FORMAT);
        let transformer = Transformer::load(config, &weights, &device, context)?;
        Ok(Self { device, transformer, cache, top: Vec::new() })
    }

    /// Runs `rows` tokens from position `pos` on and waits for the most probable token after the last.
    fn run(&mut self, rows: usize, pos: usize) -> Result<()> {
        let Self { device, transformer, cache, top } = self;
        let vocab_size = transformer.config().vocab_size;
        let ids: Vec<u32> = (pos..pos + rows).map(|i| (i * 7919 % vocab_size) as u32).collect();
        transformer.forward(device, cache, &ids, pos, Wanted::TopK(1), None)?;
        at_once(device.take_top_k(1, top))?;
        match top.iter().all(|candidate| candidate.logit.is_finite()) {
            true => Ok(()),
            false => Err("the GPU computes wrongly: logits are not finite".into()),
        }
    }
}

/// The median speed of something that runs `tokens` tokens, in tokens per second.
fn median(tokens: usize, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    let mut speeds = Vec::new();
    while speeds.is_empty() || speeds.len() < REPEAT && begin.elapsed() < PATIENCE {
        let start = Instant::now();
        run()?;
        speeds.push(tokens as f64 / start.elapsed().as_secs_f64());
    }
    speeds.sort_by(f64::total_cmp);
    Ok(speeds[speeds.len() / 2])
}

/// What the dispatches of a plan cost by their shader, in the order of their first run.
fn kinds(plan: &Plan, pos: usize, shared: &mut Shared) -> Result<Vec<Kind>> {
    let mut kinds: Vec<(String, Plan)> = Vec::new();
    for dispatch in &plan.dispatches {
        let name = dispatch.shader.to_string();
        match kinds.iter_mut().find(|(known, _)| *known == name) {
            Some((_, plan)) => plan.dispatches.push(dispatch.clone()),
            None => kinds.push((name, Plan { dispatches: vec![dispatch.clone()] })),
        }
    }
    let kind = |(name, plan): (String, Plan)| {
        let mut run = |times: u32| -> Result<()> {
            (0..times).try_for_each(|_| shared.run(&plan, pos as u32))?;
            shared.ask(plan.dispatches[0].buffers[0], 0)?;
            at_once(shared.take())?;
            Ok(())
        };
        run(1)?;
        let start = Instant::now();
        run(RUNS)?;
        let seconds = start.elapsed().as_secs_f64() / f64::from(RUNS);
        Ok(Kind { name, runs: plan.dispatches.len(), cost: plan.cost(), seconds })
    };
    kinds.into_iter().map(kind).collect()
}
