//! Reading and checking the header.

use super::{MANIFEST_KEY, Manifest, MatrixEntry, VERSION, sha256_hex};
use crate::buffer::ALIGN;
use crate::format::{PLANE_NAMES, PLANES};
use crate::import::Parsed;
use crate::import::safetensors::{self, Safetensors, Tensor};
use crate::{Error, Result};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// The header of an artifact, checked: every matrix of the manifest has its planes, in the right sizes, and every
/// tensor is accounted for.
#[derive(Clone, Debug)]
pub struct Header {
    /// The file's name as the caller gave it.
    pub file: String,
    /// What the metadata say.
    pub manifest: Manifest,
    /// Where the data region begins in the file; a multiple of 256.
    pub data_start: usize,
    /// Bytes of the data region.
    pub data_len: usize,
    /// SHA-256, in hexadecimal, of the file up to the data region.
    pub fingerprint: String,
    /// Planes of the matrices in the data region; as long as the format needs.
    matrices: BTreeMap<String, [Range<usize>; PLANES]>,
    /// Where the F32 vectors are in the data region.
    vectors: BTreeMap<String, Range<usize>>,
    /// Where the documents (tokenizer and so on) are in the data region.
    documents: BTreeMap<String, Range<usize>>,
}

/// Parses the header. `prefix` holds the first bytes of the file, `file_len` its length where that is known.
///
/// # Errors
/// [`Error::Malformed`] and [`Error::Unsupported`], naming the field or tensor and the value.
pub fn parse_header(file: &str, prefix: &[u8], file_len: Option<u64>) -> Result<Parsed<Header>> {
    match safetensors::parse(file, prefix, file_len)? {
        Parsed::NeedMore { at_least } => Ok(Parsed::NeedMore { at_least }),
        Parsed::Complete(tensors) => {
            let bytes = &prefix[..tensors.data_start as usize];
            Header::new(tensors, bytes).map(Parsed::Complete)
        }
    }
}

impl Header {
    /// `bytes` are the file up to the data region.
    pub(super) fn new(tensors: Safetensors, bytes: &[u8]) -> Result<Self> {
        let file = &tensors.file;
        let size = |field: &str, value: u64| {
            usize::try_from(value).map_err(|_| {
                Error::unsupported(
                    file,
                    field,
                    format!("{value} bytes"),
                    "use a 64-bit system or a smaller model",
                )
            })
        };
        let data_start = size("header length", tensors.data_start)?;
        let data_len = size("data", tensors.data_len)?;
        let manifest = manifest(&tensors)?;
        if !data_start.is_multiple_of(ALIGN) {
            let problem =
                format!("ends at byte {data_start}, expected a multiple of {ALIGN}; pack the model again");
            return Err(Error::malformed(file, "header", problem));
        }
        check_chunks(file, &manifest, data_len)?;
        let mut header = Self {
            file: file.clone(),
            manifest,
            data_start,
            data_len,
            fingerprint: sha256_hex(bytes),
            matrices: BTreeMap::new(),
            vectors: BTreeMap::new(),
            documents: BTreeMap::new(),
        };
        header.place(&tensors)?;
        Ok(header)
    }

    /// The manifest's entry and the planes `W`, `X`, `S`, `M`, `D`, `C` of a matrix, as ranges of the data region.
    pub fn matrix(&self, name: &str) -> Option<(&MatrixEntry, &[Range<usize>; PLANES])> {
        Some((self.manifest.matrices.get(name)?, self.matrices.get(name)?))
    }

    /// Where an F32 vector is in the data region.
    pub fn vector(&self, name: &str) -> Option<Range<usize>> {
        self.vectors.get(name).cloned()
    }

    /// Where a document is in the data region.
    pub fn document(&self, name: &str) -> Option<Range<usize>> {
        self.documents.get(name).cloned()
    }

    /// Names of the F32 vectors.
    pub fn vector_names(&self) -> impl Iterator<Item = &str> {
        self.vectors.keys().map(String::as_str)
    }

    /// Chunks of the data region.
    pub fn chunk_count(&self) -> usize {
        self.manifest.chunks.len()
    }

    /// Where chunk `i` lies in the data region.
    pub fn chunk_range(&self, i: usize) -> Range<usize> {
        let start = i * self.manifest.chunk_size;
        start..self.data_len.min(start + self.manifest.chunk_size)
    }

    /// Compares chunk `i` with its hash.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when they do not agree; [`Error::Shape`] when there is no such chunk.
    pub fn verify_chunk(&self, i: usize, bytes: &[u8]) -> Result<()> {
        let Some(expected) = self.manifest.chunks.get(i) else {
            return Err(Error::Shape {
                what: format!("{}: chunk {i}", self.file),
                problem: format!("there are {} chunks", self.chunk_count()),
            });
        };
        let found = sha256_hex(bytes);
        if found == *expected {
            return Ok(());
        }
        Err(Error::Corrupt { file: self.file.clone(), chunk: i, found, expected: expected.clone() })
    }

    /// Finds the planes of every matrix; what remains are vectors, documents and padding.
    fn place(&mut self, tensors: &Safetensors) -> Result<()> {
        let file = self.file.as_str();
        let by_name: HashMap<&str, &Tensor> = tensors.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
        let mut planes = HashSet::new();
        for (name, entry) in &self.manifest.matrices {
            let fail = |problem: String| Error::malformed(file, format!("matrix {name}"), problem);
            let of = entry.format.spec().name;
            if let Some(problem) = entry.format.refuses(entry.k) {
                return Err(fail(format!("{problem}; pack the model again")));
            }
            let sizes = entry
                .format
                .plane_sizes(entry.n, entry.k)
                .filter(|_| entry.n > 0 && entry.k > 0)
                .ok_or_else(|| fail(format!("its shape {} x {} is empty or overflows", entry.n, entry.k)))?;
            let mut ranges = [const { 0..0 }; PLANES];
            for ((range, size), letter) in ranges.iter_mut().zip(sizes.array()).zip(PLANE_NAMES) {
                let plane = format!("{name}.{letter}");
                let tensor = by_name.get(plane.as_str());
                match (size, tensor) {
                    (0, None) => continue,
                    (0, Some(_)) => {
                        return Err(fail(format!("plane {letter} is there, but {of} has none")));
                    }
                    (_, None) => {
                        return Err(Error::missing_tensor(file, &plane));
                    }
                    (size, Some(tensor)) => {
                        let stored = size.checked_next_multiple_of(ALIGN);
                        if tensor.dtype != "U8" || stored.is_none_or(|s| tensor.shape != [s as u64]) {
                            return Err(fail(format!(
                                "plane {letter} is {} {:?}, expected U8 of {size} bytes rounded up to {ALIGN}",
                                tensor.dtype, tensor.shape
                            )));
                        }
                        let start = tensor.range.start as usize;
                        *range = start..start + size;
                    }
                }
                planes.insert(plane);
            }
            self.matrices.insert(name.clone(), ranges);
        }
        for tensor in tensors.tensors.iter().filter(|t| !planes.contains(&t.name)) {
            self.place_flat(tensor, &by_name)?;
        }
        match &self.manifest.tokenizer {
            Some(name) if !self.documents.contains_key(name) => Err(Error::missing_tensor(&self.file, name)),
            _ => Ok(()),
        }
    }

    /// A tensor that is not a plane.
    fn place_flat(&mut self, tensor: &Tensor, by_name: &HashMap<&str, &Tensor>) -> Result<()> {
        let fail =
            |problem: String| Err(Error::malformed(&self.file, format!("tensor {}", tensor.name), problem));
        if tensor.shape.len() != 1 {
            return fail(format!("its shape is {:?}, expected one dimension", tensor.shape));
        }
        let owner = tensor.name.strip_suffix(".pad").and_then(|owner| by_name.get(owner));
        if owner.is_some_and(|owner| owner.range.end == tensor.range.start) {
            return Ok(());
        }
        if !tensor.range.start.is_multiple_of(ALIGN as u64) {
            return fail(format!(
                "begins at byte {} of the data, expected a multiple of {ALIGN}",
                tensor.range.start
            ));
        }
        let range = tensor.range.start as usize..tensor.range.end as usize;
        match tensor.dtype.as_str() {
            "F32" => self.vectors.insert(tensor.name.clone(), range),
            "U8" => self.documents.insert(tensor.name.clone(), range),
            other => return fail(format!("its dtype is {other}, expected F32 or U8")),
        };
        Ok(())
    }
}

fn manifest(tensors: &Safetensors) -> Result<Manifest> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: [u32; 2],
    }
    let file = &tensors.file;
    let Some(json) = tensors.metadata.get(MANIFEST_KEY) else {
        let problem = "is missing; this safetensors file is no lowbit artifact, pack the model first";
        return Err(Error::malformed(file, format!("__metadata__.{MANIFEST_KEY}"), problem));
    };
    let bad = |e: serde_json::Error| Error::malformed(file, "manifest", format!("{e}; pack the model again"));
    let Versioned { version: [major, minor] } = serde_json::from_str(json).map_err(bad)?;
    if major != VERSION[0] {
        return Err(Error::unsupported(
            file,
            "manifest.version",
            format!("artifact version {major}.{minor}"),
            format!("this library reads version {}; pack the model again or update", VERSION[0]),
        ));
    }
    serde_json::from_str(json).map_err(bad)
}

fn check_chunks(file: &str, manifest: &Manifest, data_len: usize) -> Result<()> {
    let size = manifest.chunk_size;
    if size == 0 || !size.is_multiple_of(ALIGN) {
        let problem = format!("is {size}, expected a multiple of {ALIGN}");
        return Err(Error::malformed(file, "manifest.chunk_size", problem));
    }
    let expected = data_len.div_ceil(size);
    if manifest.chunks.len() != expected {
        let problem =
            format!("has {} hashes, {data_len} bytes of data need {expected}", manifest.chunks.len());
        return Err(Error::malformed(file, "manifest.chunks", problem));
    }
    let is_hash = |h: &String| h.len() == 64 && h.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    match manifest.chunks.iter().position(|hash| !is_hash(hash)) {
        Some(i) => {
            Err(Error::malformed(file, "manifest.chunks", format!("hash {i} is no lower-case SHA-256")))
        }
        None => Ok(()),
    }
}
