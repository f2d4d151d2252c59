//! A model that moves to a device while its artifact arrives: never more than the tensors that are under way are in
//! memory at a time.

use crate::arch::{TensorKind, Weights, move_to};
use crate::selftest::FirstLayer;
use crate::{Error, LayerTest, LoadOptions, Model, Result};
use lowbit_core::PackedMatrix;
use lowbit_core::activation::Activations;
use lowbit_core::backend::Backend;
use lowbit_core::buffer::{AlignedBytes, Bytes};
use lowbit_core::container::Header;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Takes the data region of an artifact from its start to its end.
pub struct Upload<B: Backend> {
    header: Header,
    backend: B,
    /// What has not arrived, in the order of the file.
    awaited: Vec<Item>,
    /// Bytes that have arrived.
    received: usize,
    arrived: Arrived<B>,
    /// A copy on the CPU, for a test.
    first_layer: FirstLayer,
}

/// What the names of the first layer's tensors begin with.
const FIRST_LAYER: &str = "blk.0.";

/// A tensor or document under way.
struct Item {
    name: String,
    kind: Kind,
    /// Where its bytes are in the data region.
    range: Range<usize>,
    /// Those bytes, once the first of them has arrived.
    bytes: Option<AlignedBytes>,
}

enum Kind {
    Matrix,
    Vector,
    Document,
}

/// What is on the device, or was read.
struct Arrived<B: Backend> {
    file: String,
    matrices: RefCell<HashMap<String, (TensorKind, B::Matrix)>>,
    vectors: HashMap<String, Vec<f32>>,
    documents: HashMap<String, Vec<u8>>,
}

impl<B: Backend> Upload<B> {
    /// Nothing has arrived.
    pub fn new(header: Header, backend: B) -> Self {
        let matrices = header.manifest.matrices.keys().filter_map(|name| {
            let (_, planes) = header.matrix(name)?;
            let used = planes.iter().filter(|range| !range.is_empty());
            let start = used.clone().map(|range| range.start).min()?;
            let end = used.map(|range| range.end).max()?;
            Some(Item::new(name, Kind::Matrix, start..end))
        });
        let vectors = header
            .vector_names()
            .filter_map(|name| Some(Item::new(name, Kind::Vector, header.vector(name)?)));
        let tokenizer = header.manifest.tokenizer.as_deref();
        let documents = tokenizer
            .into_iter()
            .filter_map(|name| Some(Item::new(name, Kind::Document, header.document(name)?)));
        let mut awaited: Vec<Item> = matrices.chain(vectors).chain(documents).collect();
        awaited.sort_by_key(|item| item.range.start);
        let arrived = Arrived {
            file: header.file.clone(),
            matrices: RefCell::default(),
            vectors: HashMap::new(),
            documents: HashMap::new(),
        };
        Self { header, backend, awaited, received: 0, arrived, first_layer: FirstLayer::default() }
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The device.
    pub fn backend(&mut self) -> &mut B {
        &mut self.backend
    }

    /// Takes the next bytes of the data region, verified by the caller.
    ///
    /// # Errors
    /// When there are more than the header describes, a tensor is defective, or the device has no room for it.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        let here = self.received..self.received + bytes.len();
        if here.end > self.header.data_len {
            return Err(self.wrong_length(here.end));
        }
        self.received = here.end;
        for mut item in std::mem::take(&mut self.awaited) {
            item.take(bytes, &here)?;
            if item.range.end <= here.end {
                self.finish_item(item)?;
            } else {
                self.awaited.push(item);
            }
        }
        Ok(())
    }

    /// The model, now that all is there.
    ///
    /// # Errors
    /// When something is missing, and those of [`Model::load`].
    pub fn finish(self, options: LoadOptions) -> Result<Model<B>> {
        if self.received != self.header.data_len {
            return Err(self.wrong_length(self.received));
        }
        let Self { header, backend, arrived, .. } = self;
        let tokenizer = header.manifest.tokenizer.as_ref().and_then(|name| arrived.documents.get(name));
        Model::of_header(&header, tokenizer.map(Vec::as_slice), &arrived, backend, options)
    }

    /// The test of the first layer, of which there is a copy; `activations` as in [`SelfTest::new`](crate::SelfTest::new).
    pub fn layer_test(&mut self, activations: Activations) -> LayerTest {
        LayerTest::new(std::mem::take(&mut self.first_layer), activations)
    }

    fn finish_item(&mut self, item: Item) -> Result<()> {
        let Item { name, kind, range, bytes } = item;
        let bytes = bytes.unwrap_or_else(|| AlignedBytes::zeroed(0));
        match kind {
            Kind::Matrix => {
                let matrix = matrix(&self.header, &name, range.start, Arc::new(bytes))?;
                if name.starts_with(FIRST_LAYER) {
                    self.first_layer.0.insert(name.clone(), matrix.clone());
                }
                self.arrived.matrices.get_mut().insert(name, move_to(&self.backend, matrix)?);
            }
            Kind::Vector => {
                let values = lowbit_core::container::vector(&self.header.file, &name, bytes.as_slice())?;
                if name.starts_with(FIRST_LAYER) {
                    self.first_layer.1.insert(name.clone(), values.clone());
                }
                self.arrived.vectors.insert(name, values);
            }
            Kind::Document => {
                self.arrived.documents.insert(name, bytes.as_slice().to_vec());
            }
        }
        Ok(())
    }

    fn wrong_length(&self, found: usize) -> Error {
        let problem = format!("has {found} bytes, the header describes {}", self.header.data_len);
        lowbit_core::Error::malformed(&self.header.file, "data", problem).into()
    }
}

impl Item {
    fn new(name: &str, kind: Kind, range: Range<usize>) -> Self {
        Self { name: name.to_owned(), kind, range, bytes: None }
    }

    /// Copies what is its own of `bytes`, which lie at `here` in the data region.
    fn take(&mut self, bytes: &[u8], here: &Range<usize>) -> Result<()> {
        let (start, end) = (self.range.start.max(here.start), self.range.end.min(here.end));
        if start >= end {
            return Ok(());
        }
        if self.bytes.is_none() {
            let whole = AlignedBytes::try_zeroed(self.range.len());
            self.bytes = Some(
                whole.ok_or_else(|| lowbit_core::Error::no_memory_for_model(&self.name, self.range.len()))?,
            );
        }
        if let Some(own) = &mut self.bytes {
            let part = &bytes[start - here.start..end - here.start];
            own.as_mut_slice()[start - self.range.start..][..part.len()].copy_from_slice(part);
        }
        Ok(())
    }
}

/// A matrix whose planes lie in `bytes`, which begin at `start` in the data region.
fn matrix(header: &Header, name: &str, start: usize, bytes: Arc<AlignedBytes>) -> Result<PackedMatrix> {
    let missing = || lowbit_core::Error::missing_tensor(&header.file, name);
    let (entry, planes) = header.matrix(name).ok_or_else(missing)?;
    let planes = planes.clone().map(|range| match range.is_empty() {
        true => Bytes::default(),
        false => Bytes::new(bytes.clone(), range.start - start..range.end - start),
    });
    let what = format!("{}: tensor {name}", header.file);
    Ok(PackedMatrix::new(&what, entry.format, entry.n, entry.k, planes)?)
}

impl<B: Backend> Weights<B> for Arrived<B> {
    fn matrix(&self, name: &str, _: &B) -> lowbit_core::Result<(TensorKind, B::Matrix)> {
        self.matrices.borrow_mut().remove(name).ok_or_else(|| self.missing(name))
    }

    fn vector(&self, name: &str) -> lowbit_core::Result<Vec<f32>> {
        self.vectors.get(name).cloned().ok_or_else(|| self.missing(name))
    }
}

impl<B: Backend> Arrived<B> {
    fn missing(&self, name: &str) -> lowbit_core::Error {
        lowbit_core::Error::missing_tensor(&self.file, name)
    }
}
