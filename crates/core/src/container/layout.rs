//! Deciding where everything goes before there is any data.

use super::{CHUNK, Header, MANIFEST_KEY, Manifest, MatrixEntry, hex};
use crate::buffer::ALIGN;
use crate::format::{PLANE_NAMES, PLANES};
use crate::import::safetensors;
use crate::{Error, Format, Result};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Something to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A packed matrix.
    Matrix {
        /// Its name.
        name: String,
        /// Its format.
        format: Format,
        /// Output features.
        n: usize,
        /// Input features.
        k: usize,
    },
    /// An f32 vector.
    Vector {
        /// Its name.
        name: String,
        /// Elements.
        len: usize,
    },
    /// Any bytes.
    Document {
        /// Its name.
        name: String,
        /// Bytes.
        len: usize,
    },
}

impl Item {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Matrix { name, .. } | Self::Vector { name, .. } | Self::Document { name, .. } => name,
        }
    }
}

/// Where an item is in the data region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// First bytes of the planes `W`, `X`, `S`, `M`, `D`, `C`; meaningless for planes that the format lacks.
    Planes([usize; PLANES]),
    /// First byte of a vector or document.
    Flat(usize),
}

/// An artifact whose data is still to come: all offsets and the length of the header are fixed.
#[derive(Clone, Debug)]
pub struct Layout {
    file: String,
    manifest: Manifest,
    places: BTreeMap<String, Place>,
    /// Name, dtype, elements, first byte, end.
    entries: Vec<(String, &'static str, usize, usize, usize)>,
    data_start: usize,
    data_len: usize,
}

impl Layout {
    /// Places `items` one after the other. `file` is quoted in messages. Matrices, chunk size and hashes of the manifest
    /// are filled in here.
    ///
    /// # Errors
    /// When sizes overflow or two items have the same name.
    pub fn new(file: &str, mut manifest: Manifest, items: &[Item]) -> Result<Self> {
        manifest.chunk_size = CHUNK;
        manifest.matrices.clear();
        let mut layout = Self {
            file: file.to_owned(),
            manifest,
            places: BTreeMap::new(),
            entries: Vec::new(),
            data_start: 0,
            data_len: 0,
        };
        for item in items {
            let place = layout.add(item).ok_or_else(|| {
                Error::malformed(file, item.name(), "the model overflows the address space")
            })?;
            if layout.places.insert(item.name().to_owned(), place).is_some() {
                return Err(Error::malformed(file, item.name(), "this name occurs twice"));
            }
        }
        layout.manifest.chunks = vec![hex(&[0; 32]); layout.data_len.div_ceil(CHUNK)];
        let mut longest = layout.manifest.clone();
        longest.source.sha256 = hex(&[0; 32]);
        layout.data_start = (8 + layout.json(&longest).len()).next_multiple_of(ALIGN);
        Ok(layout)
    }

    /// Where an item is in the data region.
    pub fn place(&self, name: &str) -> Option<Place> {
        self.places.get(name).copied()
    }

    /// What will be in the header; hashes are still zero.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Bytes before the data region.
    pub fn data_start(&self) -> usize {
        self.data_start
    }

    /// Bytes of the data region.
    pub fn data_len(&self) -> usize {
        self.data_len
    }

    /// Where chunk `i` is in the data region.
    pub fn chunk_range(&self, i: usize) -> std::ops::Range<usize> {
        (i * CHUNK).min(self.data_len)..((i + 1) * CHUNK).min(self.data_len)
    }

    /// The bytes before the data region, once the hash of every chunk (hexadecimal) is known; `source_sha256` is empty
    /// where the source was not hashed.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of hashes is wrong or one is no SHA-256.
    pub fn header_bytes(&self, chunks: Vec<String>, source_sha256: &str) -> Result<Vec<u8>> {
        let mut manifest = self.manifest.clone();
        if chunks.len() != manifest.chunks.len() || chunks.iter().any(|hash| hash.len() != 64) {
            return Err(Error::Shape {
                what: format!("{}: chunk hashes", self.file),
                problem: format!("expected {} SHA-256 in hexadecimal", manifest.chunks.len()),
            });
        }
        manifest.chunks = chunks;
        manifest.source.sha256 = source_sha256.get(..64).unwrap_or_default().to_owned();
        let json = self.json(&manifest);
        let mut bytes = ((self.data_start - 8) as u64).to_le_bytes().to_vec();
        bytes.extend(json.as_bytes());
        bytes.resize(self.data_start, b' ');
        Ok(bytes)
    }

    /// The parsed form of [`Layout::header_bytes`].
    pub fn header(&self, bytes: &[u8]) -> Result<Header> {
        let len = (self.data_start + self.data_len) as u64;
        Header::new(safetensors::parse(&self.file, bytes, Some(len))?.complete(&self.file)?, bytes)
    }

    fn add(&mut self, item: &Item) -> Option<Place> {
        match item {
            Item::Matrix { name, format, n, k } => {
                let sizes = format.plane_sizes(*n, *k)?;
                let mut planes = [0; PLANES];
                for ((place, size), letter) in planes.iter_mut().zip(sizes.array()).zip(PLANE_NAMES) {
                    if size > 0 {
                        let size = size.checked_next_multiple_of(ALIGN)?;
                        *place = self.append(format!("{name}.{letter}"), "U8", size, size)?;
                    }
                }
                let entry = MatrixEntry { format: *format, n: *n, k: *k };
                self.manifest.matrices.insert(name.clone(), entry);
                Some(Place::Planes(planes))
            }
            Item::Vector { name, len } => self.padded(name, "F32", *len, len.checked_mul(4)?),
            Item::Document { name, len } => self.padded(name, "U8", *len, *len),
        }
    }

    fn padded(&mut self, name: &str, dtype: &'static str, len: usize, size: usize) -> Option<Place> {
        let start = self.append(name.to_owned(), dtype, len, size)?;
        let padding = self.data_len.checked_next_multiple_of(ALIGN)? - self.data_len;
        if padding > 0 {
            self.append(format!("{name}.pad"), "U8", padding, padding)?;
        }
        Some(Place::Flat(start))
    }

    fn append(&mut self, name: String, dtype: &'static str, len: usize, size: usize) -> Option<usize> {
        let start = self.data_len;
        self.data_len = start.checked_add(size)?;
        self.entries.push((name, dtype, len, start, self.data_len));
        Some(start)
    }

    fn json(&self, manifest: &Manifest) -> String {
        let mut header = Map::new();
        // The manifest consists of strings, numbers and string-keyed maps, which JSON can always express.
        let manifest = json!(manifest).to_string();
        header.insert("__metadata__".into(), json!({ MANIFEST_KEY: manifest }));
        for (name, dtype, len, start, end) in &self.entries {
            let entry = json!({"dtype": dtype, "shape": [len], "data_offsets": [start, end]});
            header.insert(name.clone(), entry);
        }
        Value::Object(header).to_string()
    }
}
