//! `lowbit pack`: other people's models to artifacts.

use crate::args::activations;
use crate::error::{Error, Result};
use crate::{input, model, output, report, whole_file};
use clap::ValueEnum;
use lowbit_core::activation::Activations;
use lowbit_core::container::Header;
use lowbit_core::format::{PlaneSizes, ScaleSearch};
use lowbit_core::pack::GgmlType;
use lowbit_engine::calibrate::{Calibrator, Mixed, Packer, Settings, balance, mixed};
use lowbit_engine::convert::{self, Packing, Weights};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("how_small").args(["bits", "target_bpw"]))]
pub struct Pack {
    /// A GGUF file, a Hugging Face folder, or the name `smollm2` (fetched with pip on first use)
    source: String,
    /// The artifact [default: beside the source, for `smollm2` in the cache]
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// What becomes of matrices of floats [default: kept in GGUF files, 8 bits in Hugging Face folders]. Those that are
    /// quantised already (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4, TQ1_0, TQ2_0, Q1_0, symmetric
    /// GPTQ, MXFP4 also of Hugging Face folders) are kept as they are; FP8, AWQ, other GPTQ and the NVFP4 of folders count as
    /// floats, which are decoded exactly
    #[arg(long)]
    bits: Option<Bits>,
    /// What shares a scale. With s2 and s3 all matrices are quantised anew, also those that were already: to 4 bits, the
    /// embedding table and output matrix to 8 [default: s1]
    #[arg(long, conflicts_with_all = ["requantize", "calibrate", "target_bpw"])]
    scheme: Option<Scheme>,
    /// Quantise again what is quantised already, which loses more than quantising the floats that it was made of
    #[arg(long, requires = "how_small")]
    requantize: bool,
    /// How scales of s1 are chosen [default: search]
    #[arg(long)]
    scales: Option<Scales>,
    /// UTF-8 text like what the model will read: it is run, and weights are rounded such that its results change little
    #[arg(long, value_name = "FILE", requires = "how_small")]
    calibrate: Option<PathBuf>,
    /// The most tokens of that text
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u32).range(2..), requires = "calibrate")]
    calibration_tokens: u32,
    /// Mixed precision of at most so many bits a weight: more for matrices whose outputs gain most by it
    #[arg(long, value_name = "BITS", value_parser = target_bpw)]
    target_bpw: Option<f64>,
    /// Writes the format and the error of every matrix: `.json`, or a picture, `.svg`
    #[arg(long, value_name = "FILE", value_parser = report::path())]
    report: Option<PathBuf>,
    /// The precision of activations that the model asks for
    #[arg(long, value_parser = activations())]
    act: Option<Activations>,
    /// Keep every tensor of a GGUF file as it is, and all else that is in the file, so that `lowbit export` makes the same
    /// file again, byte for byte
    #[arg(long, conflicts_with_all = ["bits", "scheme", "scales", "target_bpw"])]
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

#[derive(ValueEnum, Clone, Copy, PartialEq)]
enum Bits {
    /// 2 bits a weight; embedding table and output matrix 8, as up to 6
    #[value(name = "2")]
    Two,
    /// 3 bits a weight
    #[value(name = "3")]
    Three,
    /// 4 bits a weight
    #[value(name = "4")]
    Four,
    /// 5 bits a weight
    #[value(name = "5")]
    Five,
    /// 6 bits a weight
    #[value(name = "6")]
    Six,
    /// 8 bits a weight
    #[value(name = "8")]
    Eight,
    /// As they are
    Keep,
}

impl Bits {
    fn weights(self) -> Weights {
        match self {
            Self::Two => Weights::Q2,
            Self::Three => Weights::Q3,
            Self::Four => Weights::Q4,
            Self::Five => Weights::Q5,
            Self::Six => Weights::Q6,
            Self::Eight => Weights::Q8,
            Self::Keep => Weights::Keep,
        }
    }
}

#[derive(ValueEnum, Clone, Copy)]
enum Scales {
    /// The weight of largest magnitude gets a code at the end of the range
    Absmax,
    /// What leaves the smallest squared error
    Search,
}

impl Pack {
    pub fn run(&self) -> Result<()> {
        let named = model::named(&self.source);
        let (source, beside) = match named {
            Some(packaged) => (packaged.gguf()?, model::cached_path(packaged)?),
            None => (PathBuf::from(&self.source), beside(Path::new(&self.source))?),
        };
        let out = self.output.clone().unwrap_or(beside);
        self.check(&source, &out)?;
        let (options, mut packer) = self.options(&source)?;
        let summary = model::pack_rounded(&source, &out, &options, &mut packer)?;
        let bits = bits(&out)?;
        if let Some(path) = &self.report {
            report::write(path, &packer.reports())?;
        }
        if self.json {
            return output::json(&serde_json::json!({
                "output": out.display().to_string(),
                "bytes": summary.bytes,
                "source_bytes": summary.source_bytes,
                "bits_per_weight": bits,
                "requantized": self.requantize,
                "fingerprint": summary.fingerprint,
                "matrices": summary.matrices.iter().map(describe).collect::<Vec<_>>(),
            }));
        }
        for packing in &summary.matrices {
            output::line(&show(packing))?;
        }
        let is_kept = summary.matrices.iter().all(|packing| !packing.is_float);
        if self.bits.is_some() && !self.requantize && options.scheme == convert::Scheme::Block && is_kept {
            output::line(
                "--bits has changed nothing: every matrix was quantised already; --requantize quantises them again",
            )?;
        }
        output::line(&format!(
            "{}: {} bytes, {bits:.3} bits a weight, fingerprint {}",
            out.display(),
            summary.bytes,
            summary.fingerprint
        ))
    }

    /// Refuses options without effect, and outputs that would replace what is read or each other.
    fn check(&self, source: &Path, out: &Path) -> Result<()> {
        let usage = |problem: &str| Err(Error::Usage(problem.to_owned()));
        if self.bits == Some(Bits::Keep) && (self.requantize || self.calibrate.is_some()) {
            return usage(
                "--bits keep quantises nothing, which --requantize and --calibrate need; give a number of bits",
            );
        }
        if matches!(self.scheme, Some(Scheme::S2 | Scheme::S3)) && self.scales.is_some() {
            return usage("--scales is for --scheme s1 only; leave it out with s2 and s3");
        }
        let read = [Some(source), self.calibrate.as_deref()];
        for output in [Some(out), self.report.as_deref()].into_iter().flatten() {
            read.iter().flatten().try_for_each(|read| model::refuse_same(read, output))?;
        }
        if let Some(report) = &self.report {
            model::refuse_same(out, report)?;
        }
        // Measuring and packing take long, and either would be in vain.
        [Some(out), self.report.as_deref()].into_iter().flatten().try_for_each(whole_file::check)
    }

    /// How the conversion goes, and what rounds the matrices.
    fn options(&self, source: &Path) -> Result<(convert::Options, Packer)> {
        let mut options = convert::Options {
            weights: self.bits.map_or(Weights::Auto, Bits::weights),
            activations: self.act,
            requantize: self.requantize,
            scheme: match self.scheme {
                None | Some(Scheme::S1) => convert::Scheme::Block,
                Some(Scheme::S2) => convert::Scheme::Channel,
                Some(Scheme::S3) => convert::Scheme::Progressive,
            },
            reversible: self.reversible,
            ..convert::Options::default()
        };
        let search = match self.scales {
            Some(Scales::Absmax) => ScaleSearch::AbsMax,
            None | Some(Scales::Search) => ScaleSearch::Clips,
        };
        let mut packer = Packer::new(search, self.report.is_some());
        if self.calibrate.is_none() && self.target_bpw.is_none() {
            return Ok((options, packer));
        }
        let kept = convert::Options { weights: Weights::Keep, ..convert::Options::default() };
        let artifact = convert::in_memory(source, &kept, &mut |_| ())?;
        let mut matrices = artifact.header().manifest.matrices.values();
        if !self.requantize && !matrices.any(|matrix| matrix.format.is_float()) {
            let problem = "--calibrate and --target-bpw would change nothing: every matrix was quantised already; \
                           --requantize quantises them again";
            return Err(Error::Usage(problem.to_owned()));
        }
        if let Some(text) = &self.calibrate {
            let text = input::file(text)?;
            let settings = Settings { tokens: self.calibration_tokens as usize, ..Settings::default() };
            packer.calibrator = Some(Calibrator::new(&artifact, &text, settings)?);
            options.note = "calibrated".to_owned();
        }
        if let Some(target) = self.target_bpw {
            let Mixed { formats, bits } =
                mixed(&artifact, packer.calibrator.as_mut(), target, self.requantize)?;
            if bits > target {
                let kept = if self.requantize { "" } else { ", and what was quantised already as it is," };
                let problem = format!(
                    "--target-bpw {target} is too low: with 2 bits and their scales{kept} it is {bits:.3}; give more bits"
                );
                return Err(Error::Usage(problem));
            }
            options.formats = formats;
        }
        if let Some(calibrator) = &mut packer.calibrator {
            packer.factors = balance(&artifact, calibrator, &options, search)?;
        }
        Ok((options, packer))
    }
}

/// Bits a weight over all matrices of an artifact, scales and padding and all.
fn bits(artifact: &Path) -> Result<f64> {
    let header = Header::read(artifact)?;
    let (mut bytes, mut weights) = (0, 0);
    for matrix in header.manifest.matrices.values() {
        bytes += matrix.format.plane_sizes(matrix.n, matrix.k).map_or(0, PlaneSizes::total);
        weights += matrix.n * matrix.k;
    }
    Ok(bytes as f64 * 8.0 / weights.max(1) as f64)
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

fn target_bpw(text: &str) -> std::result::Result<f64, String> {
    let bits = text.parse().map_err(|_| "expected a number".to_owned())?;
    if (1.0..=16.0).contains(&bits) { Ok(bits) } else { Err("expected 1 to 16".to_owned()) }
}
