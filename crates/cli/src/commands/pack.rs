//! `lowbit pack`: other people's models to artifacts.

use crate::args::activations;
use crate::error::{Error, Result};
use crate::{model, output};
use clap::ValueEnum;
use lowbit_core::activation::Activations;
use lowbit_core::pack::GgmlType;
use lowbit_engine::convert::{self, Packing};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Pack {
    /// A GGUF file, a Hugging Face folder, or the name `smollm2` (fetched with pip on first use)
    source: String,
    /// The artifact [default: beside the source, for `smollm2` in the cache]
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// What becomes of matrices of floats [default: kept in GGUF files, 8 bits in Hugging Face folders]. Those that are
    /// quantised already (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4, TQ1_0, TQ2_0, Q1_0, symmetric
    /// GPTQ) are kept as they are; FP8, AWQ and other GPTQ count as floats, which are decoded exactly
    #[arg(long)]
    bits: Option<Bits>,
    /// What shares a scale. With s2 and s3 all matrices are quantised anew, also those that were already: to 4 bits, the
    /// embedding table and output matrix to 8 [default: s1]
    #[arg(long)]
    scheme: Option<Scheme>,
    /// The precision of activations that the model asks for
    #[arg(long, value_parser = activations())]
    act: Option<Activations>,
    /// Keep every tensor of a GGUF file as it is, and all else that is in the file, so that `lowbit export` makes the same
    /// file again, byte for byte
    #[arg(long, conflicts_with_all = ["bits", "scheme"])]
    reversible: bool,
    /// One JSON document on standard output
    #[arg(long)]
    json: bool,
}

#[derive(ValueEnum, Clone, Copy)]
enum Scheme {
    /// 32 weights of a row
    S1,
    /// A row: products are integers over all of it
    S2,
    /// A row, with an integer of 1 to 15 for 32 weights: as s2, and nearly as accurate as s1
    S3,
}

#[derive(ValueEnum, Clone, Copy)]
enum Bits {
    /// 4 bits a weight; embedding table and output matrix 8
    #[value(name = "4")]
    Four,
    /// 8 bits a weight
    #[value(name = "8")]
    Eight,
    /// As they are
    Keep,
}

impl Pack {
    pub fn run(&self) -> Result<()> {
        let options = convert::Options {
            weights: match self.bits {
                None => convert::Weights::Auto,
                Some(Bits::Four) => convert::Weights::Q4,
                Some(Bits::Eight) => convert::Weights::Q8,
                Some(Bits::Keep) => convert::Weights::Keep,
            },
            scheme: match self.scheme {
                None | Some(Scheme::S1) => convert::Scheme::Block,
                Some(Scheme::S2) => convert::Scheme::Channel,
                Some(Scheme::S3) => convert::Scheme::Progressive,
            },
            activations: self.act,
            reversible: self.reversible,
        };
        let named = model::named(&self.source);
        let (source, beside) = match named {
            Some(packaged) => (packaged.gguf()?, model::cached_path(packaged)?),
            None => (PathBuf::from(&self.source), beside(Path::new(&self.source))?),
        };
        let out = self.output.clone().unwrap_or(beside);
        let summary = model::pack(&source, &out, &options)?;
        if self.json {
            return output::json(&serde_json::json!({
                "output": out.display().to_string(),
                "bytes": summary.bytes,
                "source_bytes": summary.source_bytes,
                "fingerprint": summary.fingerprint,
                "matrices": summary.matrices.iter().map(describe).collect::<Vec<_>>(),
            }));
        }
        for packing in &summary.matrices {
            output::line(&show(packing))?;
        }
        if self.bits.is_some()
            && options.scheme == convert::Scheme::Block
            && summary.matrices.iter().all(|packing| !packing.is_float)
        {
            output::line("--bits has changed nothing: every matrix was quantised already")?;
        }
        output::line(&format!(
            "{}: {} bytes, fingerprint {}",
            out.display(),
            summary.bytes,
            summary.fingerprint
        ))
    }
}

fn describe(packing: &Packing) -> serde_json::Value {
    serde_json::json!({
        "from": packing.from,
        "to": packing.to.spec().name,
        "kept": packing.is_kept,
        "count": packing.count,
    })
}

fn show(packing: &Packing) -> String {
    let Packing { from, to, count, is_kept, .. } = packing;
    let becomes = if *is_kept { "kept as" } else { "packed to" };
    // What is no type of GGML has been decoded from fewer bits.
    let loses = !is_kept && GgmlType::from_name(from).is_none();
    let note = if loses { ", which rounds its values once more" } else { "" };
    let noun = if *count == 1 { "matrix" } else { "matrices" };
    format!("{count} {noun} of {from}: {becomes} {}{note}", to.spec().name)
}

/// The source's name with another ending.
fn beside(source: &Path) -> Result<PathBuf> {
    model::check_exists(source)?;
    let source = source.canonicalize().map_err(|e| Error::io(source, e))?;
    Ok(source.with_extension("lowbit"))
}
