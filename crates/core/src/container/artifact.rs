//! An artifact in memory.

use super::Header;
use crate::buffer::{AlignedBytes, Bytes};
use crate::{Error, PackedMatrix, Result};
use std::sync::Arc;

/// A header and its data region.
#[derive(Clone)]
pub struct Artifact {
    header: Header,
    data: Arc<AlignedBytes>,
}

impl Artifact {
    /// An artifact whose chunks have been verified, or were made here.
    ///
    /// # Errors
    /// When the data has not the length that the header describes.
    pub fn new(header: Header, data: Arc<AlignedBytes>) -> Result<Self> {
        let found = data.as_slice().len();
        if found != header.data_len {
            let problem = format!("has {found} bytes, the header describes {}", header.data_len);
            return Err(Error::malformed(&header.file, "data", problem));
        }
        Ok(Self { header, data })
    }

    /// Compares every chunk with its hash.
    pub fn verify(&self) -> Result<()> {
        let data = self.data.as_slice();
        (0..self.header.chunk_count())
            .try_for_each(|i| self.header.verify_chunk(i, &data[self.header.chunk_range(i)]))
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The data region.
    pub fn data(&self) -> &Arc<AlignedBytes> {
        &self.data
    }

    /// A packed matrix that shares the artifact's memory.
    ///
    /// # Errors
    /// When it is missing or one of its scales is not finite.
    pub fn matrix(&self, name: &str) -> Result<PackedMatrix> {
        let (entry, planes) = self.header.matrix(name).ok_or_else(|| self.missing(name))?;
        let planes = planes.clone().map(|range| Bytes::new(self.data.clone(), range));
        let what = format!("{}: tensor {name}", self.header.file);
        PackedMatrix::new(&what, entry.format, entry.n, entry.k, planes)
    }

    /// A vector of parameters.
    ///
    /// # Errors
    /// When it is missing or one of its values is not finite.
    pub fn vector(&self, name: &str) -> Result<Vec<f32>> {
        let range = self.header.vector(name).ok_or_else(|| self.missing(name))?;
        vector(&self.header.file, name, &self.data.as_slice()[range])
    }

    /// A document: the tokenizer and so on.
    ///
    /// # Errors
    /// When it is missing.
    pub fn document(&self, name: &str) -> Result<&[u8]> {
        let range = self.header.document(name).ok_or_else(|| self.missing(name))?;
        Ok(&self.data.as_slice()[range])
    }

    fn missing(&self, name: &str) -> Error {
        Error::missing_tensor(&self.header.file, name)
    }
}

/// The values of a vector of parameters from its bytes.
///
/// # Errors
/// When one of them is not finite; `file` and `name` are quoted in the message.
pub fn vector(file: &str, name: &str, bytes: &[u8]) -> Result<Vec<f32>> {
    let values: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    match values.iter().position(|x| !x.is_finite()) {
        Some(i) => Err(Error::malformed(
            file,
            format!("tensor {name}"),
            format!("element {i} is {}; the file is damaged", values[i]),
        )),
        None => Ok(values),
    }
}

#[cfg(not(target_family = "wasm"))]
mod native {
    use super::*;
    use crate::container::parse_header;
    use crate::import::{Parsed, open};
    use crate::parallel::{Parts, Team, cores};
    use std::fs::File;
    use std::io::{Read, Seek, SeekFrom};
    use std::path::Path;
    use std::sync::{Mutex, PoisonError};

    impl Artifact {
        /// Reads an artifact, with all cores; every chunk is compared with its hash when `verify` says so.
        pub fn read(path: &Path, verify: bool) -> Result<Self> {
            let name = path.display().to_string();
            let (mut file, len) = open(path)?;
            let header = read_header(&name, &mut file, len)?;
            let mut data = AlignedBytes::try_zeroed(header.data_len)
                .ok_or_else(|| Error::no_memory_for_model(&name, header.data_len))?;
            read_data(path, &header, &mut data, verify)?;
            Self::new(header, Arc::new(data))
        }
    }

    impl Header {
        /// Reads the header of an artifact, and nothing else of it.
        pub fn read(path: &Path) -> Result<Self> {
            let (mut file, len) = open(path)?;
            read_header(&path.display().to_string(), &mut file, len)
        }
    }

    /// Reads the data region. Of several errors it returns that of the first chunk.
    fn read_data(path: &Path, header: &Header, data: &mut AlignedBytes, verify: bool) -> Result<()> {
        let parts = Parts::new(data.as_mut_slice(), header.manifest.chunk_size);
        let failure = Mutex::new(None::<(usize, Error)>);
        Team::new(cores().min(header.chunk_count())).run(&|_| {
            while let Some((i, chunk)) = parts.take() {
                let Err(error) = read_chunk(path, header, i, chunk, verify) else { continue };
                let mut first = failure.lock().unwrap_or_else(PoisonError::into_inner);
                if first.as_ref().is_none_or(|(other, _)| i < *other) {
                    *first = Some((i, error));
                }
            }
        });
        let first = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        first.map_or(Ok(()), |(_, error)| Err(error))
    }

    fn read_chunk(path: &Path, header: &Header, i: usize, chunk: &mut [u8], verify: bool) -> Result<()> {
        let io = |source| Error::Io { path: path.display().to_string(), source };
        // Each has a position of its own.
        let (mut file, _) = open(path)?;
        let start = header.data_start + header.chunk_range(i).start;
        file.seek(SeekFrom::Start(start as u64)).map_err(io)?;
        file.read_exact(chunk).map_err(io)?;
        if verify { header.verify_chunk(i, chunk) } else { Ok(()) }
    }

    fn read_header(name: &str, file: &mut File, len: u64) -> Result<Header> {
        let mut prefix = Vec::new();
        let mut wanted = len.min(64 << 10);
        loop {
            let missing = wanted - prefix.len() as u64;
            let io = |source| Error::Io { path: name.to_owned(), source };
            file.take(missing).read_to_end(&mut prefix).map_err(io)?;
            match parse_header(name, &prefix, Some(len))? {
                Parsed::Complete(header) => return Ok(header),
                Parsed::NeedMore { at_least } if at_least > prefix.len() as u64 && wanted < len => {
                    wanted = at_least.max(2 * wanted).min(len);
                }
                more => return more.complete(name),
            }
        }
    }
}
