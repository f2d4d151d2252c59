//! What is remembered of a device and a model, and what is told of it.

use crate::attention::CHUNK;
use crate::kernels::{Extensions, Features, Kernels};
use crate::shader::Shader;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The GPU is left to others when a token takes this many times as long as on the CPU: what both take is an estimate.
const CLEARLY_SLOWER: f64 = 1.5;
/// Threads that make decoding quicker: more of them wait for the same memory.
const THREADS_THAT_HELP: usize = 4;

/// What was found out about a device and a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// A record serves no other.
    key: Key,
    /// The quickest variants.
    pub kernels: Kernels,
    /// What a token takes on the device, in seconds.
    pub gpu_s: Option<f64>,
    /// What a token takes on one thread of the CPU, in seconds.
    pub cpu_s: Option<f64>,
}

/// What a record is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Key {
    version: String,
    /// The fingerprint of the shaders.
    shaders: String,
    device: String,
    model: String,
    dot4: bool,
    extensions: Extensions,
}

impl Key {
    /// The device as it calls itself, the shape of the model, and what variants may use.
    pub fn new(device: String, model: String, features: Features) -> Self {
        let (version, shaders) = (env!("CARGO_PKG_VERSION").to_owned(), Shader::FINGERPRINT.to_owned());
        let Features { dot4, extensions } = features;
        Self { version, shaders, device, model, dot4, extensions }
    }

    /// Whether variants are among those that may be chosen.
    fn allows(&self, kernels: Kernels) -> bool {
        let Kernels { gemm_rows, split, .. } = kernels;
        let features = Features { dot4: self.dot4, extensions: self.extensions };
        features.allow(kernels) && gemm_rows > 1 && split > 0 && split.is_multiple_of(CHUNK)
    }
}

impl fmt::Display for Key {
    /// A name for a file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string(self).unwrap_or_default();
        write!(f, "{:016x}", fingerprint(text.bytes()))
    }
}

impl Record {
    /// A record of what was measured.
    pub fn new(key: Key, kernels: Kernels, gpu: Option<Duration>, cpu: Option<Duration>) -> Self {
        let [gpu_s, cpu_s] = [gpu, cpu].map(|time| time.map(|time| time.as_secs_f64()));
        Self { key, kernels, gpu_s, cpu_s }
    }

    /// The record that `text` holds; nothing when it is damaged or of something else.
    pub fn read(text: &str, key: &Key) -> Option<Self> {
        let record: Self = serde_json::from_str(text).ok()?;
        (record.key == *key && key.allows(record.kernels)).then_some(record)
    }

    /// As JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A number that is most likely another one for other bytes (FNV-1a).
fn fingerprint(bytes: impl IntoIterator<Item = u8>) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    bytes.into_iter().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

/// Where a choice comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Nothing could be measured.
    Fixed,
    /// Measured just now.
    Measured,
    /// Measured at another time.
    Remembered,
}

/// The variants that are used, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The variants.
    pub kernels: Kernels,
    /// Where they come from.
    pub origin: Origin,
    /// What a token takes on the GPU and on the CPU with all its threads, in seconds, estimated.
    pub token_s: Option<[f64; 2]>,
}

impl Choice {
    /// Variants that nobody has measured.
    pub fn fixed(kernels: Kernels) -> Self {
        Self { kernels, origin: Origin::Fixed, token_s: None }
    }

    /// What a record says to a page or a process that has `threads` threads.
    pub fn of(record: &Record, origin: Origin, threads: usize) -> Self {
        let helping = threads.clamp(1, THREADS_THAT_HELP) as f64;
        let is_time = |[gpu, cpu]: &[f64; 2]| *gpu > 0.0 && *cpu > 0.0;
        let token_s = record.gpu_s.zip(record.cpu_s).map(|(gpu, cpu)| [gpu, cpu / helping]).filter(is_time);
        Self { kernels: record.kernels, origin, token_s }
    }

    /// The choice that `text` holds, as [`Self::to_json`] writes it.
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// As JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether the CPU is clearly quicker.
    pub fn is_slower_than_cpu(&self) -> bool {
        self.token_s.is_some_and(|[gpu, cpu]| gpu > CLEARLY_SLOWER * cpu)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fixed => "fixed",
            Self::Measured => "measured",
            Self::Remembered => "remembered",
        })
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.kernels, self.origin)?;
        if let Some(token_s) = self.token_s {
            let [gpu, cpu] = token_s.map(|seconds| seconds * 1e3);
            write!(f, "; a token takes about {gpu:.1} ms, {cpu:.1} ms on the CPU")?;
        }
        f.write_str(")")
    }
}
