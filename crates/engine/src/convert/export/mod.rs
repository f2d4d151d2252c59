//! Artifacts to GGUF files.
//!
//! ```text
//! artifact --kept / rebuilt--> parts: bytes, and tensors that are unpacked slice by slice --> GGUF file
//! ```
//!
//! An artifact that was packed [reversibly](super::Options::reversible) has all of the source file but the tensors, and
//! becomes that file again, byte for byte. Of any other the header is written anew, from the manifest and the tokenizer;
//! its tensors are the source's, and what is written is imported again before it is called done.

mod header;
mod rebuilt;
mod tokenizer;

use super::file::{Progress, Source, io};
use super::{SOURCE, STEP_BYTES};
use crate::Result;
use lowbit_core::Error;
use lowbit_core::container::{Header, MatrixEntry, hex, vector};
use lowbit_core::format::TILE_N;
use lowbit_core::import::gguf::{self, Gguf, TensorInfo};
use lowbit_core::pack::{GgmlType, Origin, Planes};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// What came out of [`to_gguf`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Bytes of the GGUF file.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
    /// Whether it is the file from which the artifact was packed, byte for byte; otherwise its tensors are.
    pub identical: bool,
    /// The matrices by type, in the order of the file.
    pub matrices: Vec<(GgmlType, usize)>,
}

/// A part of the file that is written.
enum Part {
    /// Bytes as they are.
    Bytes(Vec<u8>),
    Tensor(Tensor),
}

impl Part {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Tensor(tensor) => tensor.len,
        }
    }
}

/// A tensor of the artifact, and how it is written.
struct Tensor {
    name: String,
    ty: GgmlType,
    /// Bytes that are written.
    len: u64,
    /// Heads whose rows are brought into GGUF's order: [`interleaved`].
    heads: Option<usize>,
}

/// Makes a GGUF file of an artifact. `out` is an empty file, `name` what messages call it. Memory is bounded whatever the
/// size of the model. After an error `out` holds nothing of use.
///
/// # Errors
/// When the artifact is damaged, cannot be read, or holds something that GGUF files cannot; when `out` cannot be written.
pub fn to_gguf(
    artifact: &Path,
    out: &File,
    name: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Exported> {
    let header = Header::read(artifact)?;
    let mut source = Source::open(artifact)?;
    let data = header.data_len as u64;
    let mut done = Progress { done: 0, total: 2 * data };
    verify(&header, &mut source, &mut |bytes| {
        done.done += bytes;
        progress(done);
    })?;
    let kept = header.document(SOURCE).is_some();
    let parts = match document(&header, &source, SOURCE)? {
        Some(rest) => parts_of(&header, &rest)?,
        None => rebuilt::parts(&header, &source, name)?,
    };
    done.total = data + parts.iter().map(Part::len).sum::<u64>();
    let mut sink = Sink { out: BufWriter::new(out), name, hash: Sha256::new(), bytes: 0 };
    let mut writer = TensorWriter { header: &header, source: &source, bytes: Vec::new() };
    for part in &parts {
        match part {
            Part::Bytes(bytes) => sink.write(bytes)?,
            Part::Tensor(tensor) => writer.write(tensor, &mut sink)?,
        }
        done.done = data + sink.bytes;
        progress(done);
    }
    let (bytes, sha256) = sink.finish()?;
    let expected = &header.manifest.source.sha256;
    if kept && !expected.is_empty() && sha256 != *expected {
        let problem = format!(
            "the file made of it has the SHA-256 {sha256}, the one it was packed from had {expected}; pack it again"
        );
        return Err(Error::malformed(&header.file, SOURCE, problem).into());
    }
    Ok(Exported { bytes, sha256, identical: kept, matrices: matrices(&header, &parts) })
}

/// Compares every chunk with its hash.
fn verify(header: &Header, source: &mut Source, progress: &mut dyn FnMut(u64)) -> Result<()> {
    let mut bytes = Vec::new();
    for i in 0..header.chunk_count() {
        let range = header.chunk_range(i);
        let start = header.data_start as u64;
        source.read(start + range.start as u64, start + range.end as u64, &mut bytes)?;
        header.verify_chunk(i, &bytes)?;
        progress(bytes.len() as u64);
    }
    Ok(())
}

/// The bytes of a document; `None` when there is none.
fn document(header: &Header, source: &Source, name: &str) -> Result<Option<Vec<u8>>> {
    let Some(range) = header.document(name) else {
        return Ok(None);
    };
    // No longer than the file is.
    let mut bytes = vec![0; range.len()];
    source.fill((header.data_start + range.start) as u64, &mut bytes)?;
    Ok(Some(bytes))
}

/// The parts of the file whose rest is `rest`.
fn parts_of(header: &Header, rest: &[u8]) -> Result<Vec<Part>> {
    let gguf = gguf::parse(&format!("{}: {SOURCE}", header.file), rest, None)?.complete(&header.file)?;
    let stored =
        |tensor: &&TensorInfo| header.matrix(&tensor.name).is_some() || header.vector(&tensor.name).is_some();
    let mut tensors: Vec<&TensorInfo> = gguf.tensors.iter().filter(stored).collect();
    if tensors.len() != header.manifest.matrices.len() + header.vector_names().count() {
        let problem = "does not have all tensors of the artifact; pack the model again";
        return Err(Error::malformed(&header.file, SOURCE, problem).into());
    }
    tensors.sort_by_key(|tensor| tensor.offset);
    let (mut parts, mut rest, mut at) = (Vec::new(), rest, 0);
    for tensor in tensors {
        check(header, &gguf, tensor)?;
        // Tensors do not overlap.
        let gap = usize::try_from(tensor.offset - at).ok();
        let Some((bytes, after)) = gap.and_then(|gap| rest.split_at_checked(gap)) else {
            let problem = format!("ends before tensor {} begins; pack the model again", tensor.name);
            return Err(Error::malformed(&header.file, SOURCE, problem).into());
        };
        parts.push(Part::Bytes(bytes.to_vec()));
        let &TensorInfo { ref name, ty, offset, size, .. } = tensor;
        parts.push(Part::Tensor(Tensor { name: name.clone(), ty, len: size, heads: None }));
        (rest, at) = (after, offset + size);
    }
    parts.push(Part::Bytes(rest.to_vec()));
    Ok(parts)
}

/// Whether the artifact has a tensor as the header of the source describes it.
fn check(header: &Header, gguf: &Gguf, tensor: &TensorInfo) -> Result<()> {
    let fits = match header.matrix(&tensor.name) {
        Some((&MatrixEntry { format, n, k }, _)) => {
            tensor.dims == [k, n] && tensor.ty.format() == Some(format)
        }
        None => {
            let len = header.vector(&tensor.name).map(|range| range.len() / size_of::<f32>());
            tensor.ty.is_float() && Some(tensor.dims.as_slice()) == len.as_ref().map(std::slice::from_ref)
        }
    };
    if fits {
        return Ok(());
    }
    let problem = format!(
        "is {:?} of {}, the artifact has it otherwise; pack the model again",
        tensor.dims,
        tensor.ty.name()
    );
    Err(Error::malformed(&gguf.file, format!("tensor {}", tensor.name), problem).into())
}

fn matrices(header: &Header, parts: &[Part]) -> Vec<(GgmlType, usize)> {
    let mut counts: Vec<(GgmlType, usize)> = Vec::new();
    for part in parts {
        match part {
            Part::Tensor(tensor) if header.matrix(&tensor.name).is_some() => {
                match counts.iter_mut().find(|(ty, _)| *ty == tensor.ty) {
                    Some((_, count)) => *count += 1,
                    None => counts.push((tensor.ty, 1)),
                }
            }
            _ => {}
        }
    }
    counts
}

/// The file that is written, and its hash.
struct Sink<'a> {
    out: BufWriter<&'a File>,
    name: &'a Path,
    hash: Sha256,
    bytes: u64,
}

impl Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(|e| io(self.name, e))
    }

    /// How many bytes there are, and their hash.
    fn finish(mut self) -> Result<(u64, String)> {
        let flushed = self.out.flush().and_then(|()| self.out.get_ref().sync_all());
        flushed.map_err(|e| io(self.name, e))?;
        Ok((self.bytes, hex(&self.hash.finalize())))
    }
}

/// Reads tensors of an artifact and writes them as GGML types.
struct TensorWriter<'a> {
    header: &'a Header,
    source: &'a Source,
    /// Memory that is used again.
    bytes: Vec<u8>,
}

impl TensorWriter<'_> {
    fn write(&mut self, tensor: &Tensor, sink: &mut Sink<'_>) -> Result<()> {
        let header = self.header;
        if let Some((entry, ranges)) = header.matrix(&tensor.name) {
            let starts = ranges.clone().map(|range| header.data_start + range.start);
            return self.matrix(tensor, entry, starts, sink);
        }
        let Some(range) = header.vector(&tensor.name) else {
            return Err(Error::missing_tensor(&header.file, &tensor.name).into());
        };
        self.bytes.resize(range.len(), 0);
        self.source.fill((header.data_start + range.start) as u64, &mut self.bytes)?;
        let values = vector(&header.file, &tensor.name, &self.bytes)?;
        let origin = Origin { file: &header.file, tensor: &tensor.name };
        sink.write(&tensor.ty.floats_to_bytes(&values, origin)?)
    }

    /// Planes begin at `starts` in the artifact.
    fn matrix(
        &mut self,
        tensor: &Tensor,
        &MatrixEntry { format, n, k }: &MatrixEntry,
        starts: [usize; lowbit_core::format::PLANES],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let origin = Origin { file: &self.header.file, tensor: &tensor.name };
        let overflow = || {
            let problem = "its size overflows the address space";
            Error::malformed(origin.file, format!("tensor {}", origin.tensor), problem)
        };
        let row_bytes = tensor.ty.bytes_of(k).ok_or_else(overflow)?;
        // Slices are whole tiles, and whole heads where rows change places within these.
        let unit = TILE_N * tensor.heads.map_or(1, |heads| n / heads);
        let rows_at_once = (STEP_BYTES / row_bytes / unit * unit).max(unit);
        let mut planes = Planes::new(format, 0, k).ok_or_else(overflow)?;
        for first_row in (0..n).step_by(rows_at_once) {
            let rows = rows_at_once.min(n - first_row);
            let at = planes.offsets(first_row).ok_or_else(overflow)?;
            planes.reset(rows).ok_or_else(overflow)?;
            for ((start, offset), plane) in starts.into_iter().zip(at.array()).zip(planes.all_mut()) {
                if !plane.is_empty() {
                    self.source.fill((start + offset) as u64, plane)?;
                }
            }
            planes.unpack_ggml(tensor.ty, rows, &mut self.bytes, origin)?;
            match tensor.heads {
                None => sink.write(&self.bytes)?,
                Some(heads) => {
                    for row in 0..rows {
                        let from = interleaved(row, n / heads);
                        sink.write(&self.bytes[from * row_bytes..][..row_bytes])?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The row of a matrix in the order of Hugging Face that is row `row` of GGUF's. Rotary embedding pairs coordinates `i` and
/// `i + head_dim / 2` of a head there; GGUF makes them neighbours.
fn interleaved(row: usize, head_dim: usize) -> usize {
    let (head, i) = (row / head_dim, row % head_dim);
    head * head_dim + i / 2 + i % 2 * (head_dim / 2)
}

#[cfg(test)]
mod tests;
