//! `lowbit inspect`: what is in a model.

use crate::error::Result;
use crate::{model, output};
use lowbit_core::Format;
use lowbit_core::container::{Artifact, Header, MatrixEntry};
use lowbit_core::format::PlaneSizes;
use lowbit_engine::arch::{ModelConfig, Transformer, Wanted};
use lowbit_engine::kv_cache::KvCache;
use lowbit_engine::synthetic::Synthetic;
use lowbit_gpu::{Choice, Cost, Dispatch, Dry, GpuBackend, Kernels, Plan};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;

#[derive(clap::Args)]
pub struct Inspect {
    /// An artifact, a GGUF file or a Hugging Face folder (shown as they are packed), or the name `smollm2`
    #[arg(default_value = "smollm2")]
    model: String,
    /// One JSON document on standard output
    #[arg(long)]
    json: bool,
    /// Show what a GPU would be told to run, and what it costs, instead; no GPU is needed
    #[arg(long)]
    plan: bool,
    /// Tokens that run together in the plan: one, as in decoding, or a chunk of a prompt
    #[arg(long, default_value = "1", requires = "plan")]
    rows: NonZeroUsize,
}

/// A packed matrix.
#[derive(serde::Serialize)]
struct Matrix {
    format: &'static str,
    n: usize,
    k: usize,
    bytes: usize,
}

/// A dispatch of a plan: bytes of weights and of everything else that it moves, and its multiplications.
#[derive(serde::Serialize)]
struct Run {
    shader: String,
    workgroups: [u32; 2],
    weights: u64,
    others: u64,
    macs: u64,
}

impl Run {
    fn of(dispatch: &Dispatch) -> Self {
        let Dispatch { shader, workgroups, cost: Cost { weights, others, macs }, .. } = *dispatch;
        Self { shader: shader.to_string(), workgroups, weights, others, macs }
    }
}

/// What a GPU is told for `rows` tokens from the first position on, after which the most probable token is wanted.
fn plan(header: &Header, rows: usize, kernels: Kernels) -> Result<Plan> {
    let config = ModelConfig::of(&header.manifest)?;
    if rows > config.context_length {
        return Err(lowbit_engine::Error::ContextFull { tokens: rows, context: config.context_length }.into());
    }
    let format = |name: &str| header.matrix(name).map_or(Format::F32, |(entry, _)| entry.format);
    let (weights, mut device) =
        (Synthetic::zeros(&config, format), GpuBackend::with(Dry::default(), kernels));
    let mut cache = KvCache::new(&device, config.attention(), rows)?;
    let mut transformer = Transformer::load(config, &weights, &device, rows)?;
    transformer.forward(&mut device, &mut cache, &vec![0; rows], 0, Wanted::TopK(1), None)?;
    Ok(device.last_plan())
}

impl Inspect {
    pub fn run(&self) -> Result<()> {
        if self.plan { self.show_plan() } else { self.show_contents() }
    }

    fn show_plan(&self) -> Result<()> {
        let choice = Choice::fixed(Kernels::default());
        let plan = plan(&model::header(&self.model)?, self.rows.get(), choice.kernels)?;
        if !self.json {
            return output::line(&format!("{choice}\n{plan}"));
        }
        let dispatches: Vec<Run> = plan.dispatches.iter().map(Run::of).collect();
        let Cost { weights, others, macs } = plan.cost();
        output::json(&serde_json::json!({
            "rows": self.rows,
            "kernels": choice.to_string(),
            "totals": { "dispatches": dispatches.len(), "weights": weights, "others": others, "macs": macs },
            "dispatches": dispatches,
        }))
    }

    fn show_contents(&self) -> Result<()> {
        let artifact = model::open(&self.model)?.artifact;
        let matrices = matrices(&artifact);
        let header = artifact.header();
        let manifest = &header.manifest;
        let vectors: BTreeMap<&str, usize> = header
            .vector_names()
            .map(|name| (name, header.vector(name).map_or(0, |range| range.len() / size_of::<f32>())))
            .collect();
        if self.json {
            return output::json(&serde_json::json!({
                "version": manifest.version,
                "architecture": manifest.architecture,
                "config": manifest.config,
                "activations": manifest.activations,
                "sampling": manifest.sampling,
                "source": manifest.source,
                "chat_template": manifest.chat_template,
                "data_bytes": header.data_len,
                "chunks": manifest.chunks.len(),
                "matrices": matrices,
                "vectors": vectors,
            }));
        }
        said(&format!("architecture  {}", manifest.architecture))?;
        said(&format!("config        {}", manifest.config))?;
        said(&format!("activations   {}", manifest.activations.name()))?;
        if !manifest.sampling.is_null() {
            said(&format!("sampling      {}", manifest.sampling))?;
        }
        said(&format!("source        {} ({})", manifest.source.file, manifest.source.licence))?;
        said(&format!("data          {} bytes in {} chunks", header.data_len, manifest.chunks.len()))?;
        for (name, m) in by_number(&matrices) {
            said(&format!("{name:32} {:5} {:6} x {:<6} {:>10} bytes", m.format, m.n, m.k, m.bytes))?;
        }
        by_number(&vectors).into_iter().try_for_each(|(name, len)| said(&format!("{name:32} f32   {len:6}")))
    }
}

/// A line of what the file says.
fn said(line: &str) -> Result<()> {
    output::line(&output::one_line(line))
}

/// Entries in the order in which people count: `blk.2` before `blk.10`.
fn by_number<'a, V>(entries: &'a BTreeMap<&str, V>) -> Vec<(&'a str, &'a V)> {
    let mut entries: Vec<_> = entries.iter().map(|(name, value)| (*name, value)).collect();
    entries.sort_by_key(|(name, _)| name.split('.').map(part).collect::<Vec<_>>());
    entries
}

/// A part of a name: numbers by their value and before words.
fn part(text: &str) -> (u64, &str) {
    match text.parse() {
        Ok(number) => (number, ""),
        Err(_) => (u64::MAX, text),
    }
}

fn matrices(artifact: &Artifact) -> BTreeMap<&str, Matrix> {
    let describe = |m: &MatrixEntry| {
        let bytes = m.format.plane_sizes(m.n, m.k).map_or(0, PlaneSizes::total);
        Matrix { format: m.format.spec().name, n: m.n, k: m.k, bytes }
    };
    let entries = artifact.header().manifest.matrices.iter();
    entries.map(|(name, entry)| (name.as_str(), describe(entry))).collect()
}
