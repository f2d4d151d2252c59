//! `lowbit inspect`: what is in a model.

use crate::error::Result;
use crate::{model, output};
use lowbit_core::container::{Artifact, MatrixEntry};
use std::collections::BTreeMap;

#[derive(clap::Args)]
pub struct Inspect {
    /// An artifact, a GGUF file or a Hugging Face folder (shown as they are packed), or the name `smollm2`
    #[arg(default_value = "smollm2")]
    model: String,
    /// One JSON document on standard output
    #[arg(long)]
    json: bool,
}

/// A packed matrix.
#[derive(serde::Serialize)]
struct Matrix {
    format: &'static str,
    n: usize,
    k: usize,
    bytes: usize,
}

impl Inspect {
    pub fn run(&self) -> Result<()> {
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
        output::line(&format!("architecture  {}", manifest.architecture))?;
        output::line(&format!("config        {}", manifest.config))?;
        output::line(&format!("activations   {}", manifest.activations.name()))?;
        if !manifest.sampling.is_null() {
            output::line(&format!("sampling      {}", manifest.sampling))?;
        }
        output::line(&format!("source        {} ({})", manifest.source.file, manifest.source.licence))?;
        output::line(&format!(
            "data          {} bytes in {} chunks",
            header.data_len,
            manifest.chunks.len()
        ))?;
        for (name, m) in by_number(&matrices) {
            output::line(&format!("{name:32} {:5} {:6} x {:<6} {:>10} bytes", m.format, m.n, m.k, m.bytes))?;
        }
        by_number(&vectors)
            .into_iter()
            .try_for_each(|(name, len)| output::line(&format!("{name:32} f32   {len:6}")))
    }
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
        let bytes = m.format.plane_sizes(m.n, m.k).map_or(0, |s| s.w + s.x + s.s + s.m);
        Matrix { format: m.format.spec().name, n: m.n, k: m.k, bytes }
    };
    let entries = artifact.header().manifest.matrices.iter();
    entries.map(|(name, entry)| (name.as_str(), describe(entry))).collect()
}
