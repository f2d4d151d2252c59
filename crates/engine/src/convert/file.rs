//! Conversions from files, natively.

use super::rounder::ByWeights;
use super::{HuggingFace, InMemory, Options, Packing, Plan, Rounder, Shard, gguf, hugging_face};
use crate::Result;
use lowbit_core::Error;
use lowbit_core::container::{Artifact, hex, sha256_hex};
use lowbit_core::import::{MAX_DOCUMENT, Parsed, open, safetensors};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// How far a conversion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read and packed, hashed, or both.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// What came out of [`to_file`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The artifact's fingerprint.
    pub fingerprint: String,
    /// Bytes of the artifact.
    pub bytes: u64,
    /// Bytes of the source that were packed.
    pub source_bytes: u64,
    /// What became of the matrices.
    pub matrices: Vec<Packing>,
}

/// Converts a GGUF file or a Hugging Face folder to an artifact, which it writes into `out`: an empty file, open for
/// reading and writing. `name` is the artifact's name in messages. After an error `out` holds nothing of use.
///
/// # Errors
/// When the source is not sound or a file cannot be read or written.
pub fn to_file(
    source: &Path,
    out: &File,
    name: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Summary> {
    to_file_rounded(source, out, name, options, &mut ByWeights, progress)
}

/// As [`to_file`], with matrices rounded as `rounder` says.
///
/// # Errors
/// As [`to_file`], and those of `rounder`.
pub fn to_file_rounded(
    source: &Path,
    out: &File,
    name: &Path,
    options: &Options,
    rounder: &mut dyn Rounder,
    progress: &mut dyn FnMut(Progress),
) -> Result<Summary> {
    let mut source = Opened::new(source, options)?;
    write_artifact(&mut source, out, name, rounder, progress)
}

/// Converts a GGUF file or a Hugging Face folder into memory.
///
/// # Errors
/// When the source is not sound or cannot be read, or there is not enough memory.
pub fn in_memory(source: &Path, options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Artifact> {
    let Opened { plan, mut files } = Opened::new(source, options)?;
    let total = plan.source_bytes();
    let mut conversion = InMemory::new(plan)?;
    let (mut bytes, mut done) = (Vec::new(), 0);
    while let Some((file, range)) = conversion.next_range() {
        files[file].read(range.start, range.end, &mut bytes)?;
        conversion.push(&bytes)?;
        done += bytes.len() as u64;
        progress(Progress { done, total });
    }
    Ok(conversion.finish(None)?.1)
}

fn write_artifact(
    source: &mut Opened,
    out: &File,
    path: &Path,
    rounder: &mut dyn Rounder,
    progress: &mut dyn FnMut(Progress),
) -> Result<Summary> {
    let Opened { plan, files } = source;
    let (data_start, data_len) = (plan.layout().data_start() as u64, plan.layout().data_len() as u64);
    let source_bytes = plan.source_bytes();
    let mut done = Progress { done: 0, total: source_bytes + files[0].len + data_len };

    out.set_len(data_start + data_len).map_err(|e| io(path, e))?;
    let mut write =
        |start: usize, bytes: &[u8]| write_at(out, data_start + start as u64, bytes).map_err(|e| io(path, e));
    plan.write_documents(&mut write)?;
    let mut bytes = Vec::new();
    for i in 0..plan.steps().len() {
        let step = &plan.steps()[i];
        files[step.file].read(step.range.start, step.range.end, &mut bytes)?;
        plan.run_rounded(i, &bytes, rounder, &mut write)?;
        done.done += bytes.len() as u64;
        progress(done);
    }

    let source_sha256 = files[0].sha256(&mut bytes, &mut |n| {
        done.done += n;
        progress(done);
    })?;
    let file = out.try_clone().map_err(|e| io(path, e))?;
    let mut written = Source { path: path.to_owned(), file, len: data_start + data_len };
    let mut hashes = Vec::new();
    for i in 0..plan.layout().manifest().chunks.len() {
        let chunk = plan.layout().chunk_range(i);
        written.read(data_start + chunk.start as u64, data_start + chunk.end as u64, &mut bytes)?;
        hashes.push(sha256_hex(&bytes));
        done.done += bytes.len() as u64;
        progress(done);
    }
    let header = plan.layout().header_bytes(hashes, &source_sha256)?;
    write_at(out, 0, &header).and_then(|()| out.sync_all()).map_err(|e| io(path, e))?;
    let fingerprint = plan.layout().header(&header)?.fingerprint;
    Ok(Summary { fingerprint, bytes: data_start + data_len, source_bytes, matrices: plan.matrices() })
}

/// Whether a conversion of the Hugging Face folder `folder` may read the file `path`.
pub fn reads(folder: &Path, path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    path.parent() == Some(folder) && (DOCUMENTS.contains(&name) || name.ends_with(".safetensors"))
}

/// The files of a Hugging Face folder beside the weights.
const DOCUMENTS: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "README.md",
    "model.safetensors.index.json",
];

/// A plan and the files that it reads.
struct Opened {
    plan: Plan,
    files: Vec<Source>,
}

impl Opened {
    fn new(path: &Path, options: &Options) -> Result<Self> {
        if path.is_dir() {
            return Self::folder(path, options);
        }
        let mut file = Source::open(path)?;
        let (name, len) = (path.display().to_string(), file.len);
        let plan = file.header(|prefix| gguf(&name, prefix, Some(len), options))?;
        Ok(Self { plan, files: vec![file] })
    }

    fn folder(folder: &Path, options: &Options) -> Result<Self> {
        let [config, generation_config, tokenizer, tokenizer_config, chat_template, readme, index] =
            DOCUMENTS.map(|name| document(&folder.join(name)));
        let mut parts = HuggingFace {
            folder: folder.display().to_string(),
            config: config?,
            generation_config: generation_config?,
            tokenizer: tokenizer?,
            tokenizer_config: tokenizer_config?,
            chat_template: chat_template?,
            readme: readme?,
            index: index?,
            shards: Vec::new(),
        };
        let mut files = Vec::new();
        for name in parts.shard_names()? {
            let path = folder.join(&name);
            let mut file = Source::open(&path)?;
            let (shown, len) = (path.display().to_string(), file.len);
            let header = file.header(|prefix| Ok(safetensors::parse(&shown, prefix, Some(len))?))?;
            parts.shards.push(Shard { name, header });
            files.push(file);
        }
        Ok(Self { plan: hugging_face(&parts, options)?, files })
    }
}

/// All bytes of a file beside the weights; `None` when there is none.
fn document(path: &Path) -> Result<Option<Vec<u8>>> {
    let (mut file, len) = match open(path) {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    if len > MAX_DOCUMENT {
        let problem = format!("has {len} bytes, expected at most {MAX_DOCUMENT}; this is no such document");
        return Err(Error::malformed(&path.display().to_string(), "size", problem).into());
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|e| io(path, e))?;
    Ok(Some(bytes))
}

/// A file that is read piece by piece.
pub(super) struct Source {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let (file, len) = open(path)?;
        Ok(Self { path: path.to_owned(), file, len })
    }

    /// Makes `bytes` those from `start` to `end`.
    pub(super) fn read(&mut self, start: u64, end: u64, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.clear();
        let read = (self.file.seek(SeekFrom::Start(start)))
            .and_then(|_| (&self.file).take(end - start).read_to_end(bytes));
        match read {
            Ok(read) if read as u64 == end - start => Ok(()),
            Ok(_) => Err(io(&self.path, std::io::ErrorKind::UnexpectedEof.into())),
            Err(e) => Err(io(&self.path, e)),
        }
    }

    /// Fills `bytes` with those from `start` on.
    pub(super) fn fill(&self, start: u64, bytes: &mut [u8]) -> Result<()> {
        (&self.file)
            .seek(SeekFrom::Start(start))
            .and_then(|_| (&self.file).read_exact(bytes))
            .map_err(|e| io(&self.path, e))
    }

    /// Parses from longer and longer prefixes.
    fn header<T>(&mut self, parse: impl Fn(&[u8]) -> Result<Parsed<T>>) -> Result<T> {
        let mut wanted = self.len.min(4 << 20);
        let mut prefix = Vec::new();
        loop {
            self.read(0, wanted, &mut prefix)?;
            match parse(&prefix)? {
                Parsed::Complete(header) => return Ok(header),
                Parsed::NeedMore { at_least } if wanted < self.len => {
                    wanted = at_least.max(2 * wanted).min(self.len);
                }
                more => return Ok(more.complete(&self.path.display().to_string())?),
            }
        }
    }

    fn sha256(&mut self, bytes: &mut Vec<u8>, progress: &mut dyn FnMut(u64)) -> Result<String> {
        let mut hash = Sha256::new();
        let mut start = 0;
        while start < self.len {
            let end = self.len.min(start + super::STEP_BYTES as u64);
            self.read(start, end, bytes)?;
            hash.update(&bytes[..]);
            progress(end - start);
            start = end;
        }
        Ok(hex(&hash.finalize()))
    }
}

fn write_at(mut file: &File, start: u64, bytes: &[u8]) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(start))?;
    file.write_all(bytes)
}

pub(super) fn io(path: &Path, source: std::io::Error) -> crate::Error {
    Error::Io { path: path.display().to_string(), source }.into()
}
