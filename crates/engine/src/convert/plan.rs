//! What is to be read, in which order, and where it goes.

use super::rounder::ByWeights;
use super::{Description, Options, Packed, Rounder, TOKENIZER, Weights, in_file};
use crate::arch::{TensorKind, TensorSpec};
use crate::{Result, SamplingOptions};
use lowbit_core::container::{Item, Layout, Place};
use lowbit_core::format::{BLOCK_K, PLANES, TILE_N};
use lowbit_core::pack::{GgmlType, Origin, Planes, matrix_from_ggml};
use lowbit_core::{Error, Format};
use std::ops::Range;

/// A step reads no more than this, unless 16 rows are longer.
pub const STEP_BYTES: usize = 8 << 20;

/// A tensor of the source, found and checked.
pub(super) struct SourceTensor {
    /// Index of the file in the source.
    pub file: usize,
    /// Its name in the source, for messages.
    pub name: String,
    /// First byte in that file.
    pub offset: u64,
    /// Type of its elements.
    pub ty: GgmlType,
    /// What is to be added to the elements of a vector.
    pub add: f32,
}

/// A conversion: steps to be run in any order, each once; [`Plan::steps`] are in the order of the source.
#[derive(Debug)]
pub struct Plan {
    files: Vec<String>,
    layout: Layout,
    tensors: Vec<Tensor>,
    steps: Vec<Step>,
    tokenizer: Vec<u8>,
    planes: Option<(usize, Planes)>,
    floats: Vec<f32>,
}

/// Bytes of the source that are packed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Index of the file; 0 for a GGUF file.
    pub file: usize,
    /// The bytes of that file.
    pub range: Range<u64>,
    tensor: usize,
    first_row: usize,
    rows: usize,
}

/// What becomes of the matrices of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Type in the source.
    pub from: GgmlType,
    /// Format in the artifact.
    pub to: Format,
    /// Number of matrices.
    pub count: usize,
}

impl Packing {
    /// Whether the weights are kept as they are.
    pub fn is_kept(&self) -> bool {
        self.from.format() == Some(self.to)
    }
}

#[derive(Debug)]
struct Tensor {
    /// Name in the artifact.
    item: String,
    /// Name in the source, for messages.
    name: String,
    file: usize,
    ty: GgmlType,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Planes begin here.
    Matrix { format: Format, k: usize, planes: [usize; PLANES] },
    /// A vector begins here; something is to be added to its elements.
    Vector { start: usize, add: f32 },
}

impl Plan {
    /// Plans the conversion of tensors, in the order of execution.
    pub(super) fn new(
        files: Vec<String>,
        description: Description,
        tensors: Vec<(TensorSpec, SourceTensor)>,
        options: &Options,
        quantise_by_default: bool,
    ) -> Result<Self> {
        let mut items = vec![Item::Document { name: TOKENIZER.to_owned(), len: description.tokenizer.len() }];
        for (spec, source) in &tensors {
            items.push(item(&files[source.file], spec, source, options, quantise_by_default)?);
        }
        let name = files.first().map(String::as_str).unwrap_or_default();
        let manifest = description.manifest(name, options);
        in_file(name, SamplingOptions::of_manifest(&manifest.sampling))?;
        let layout = Layout::new(name, manifest, &items)?;
        let mut plan = Self {
            files,
            layout,
            tensors: Vec::new(),
            steps: Vec::new(),
            tokenizer: description.tokenizer,
            planes: None,
            floats: Vec::new(),
        };
        for ((_, source), item) in tensors.into_iter().zip(&items[1..]) {
            plan.add(source, item)?;
        }
        plan.steps.sort_by_key(|step| (step.file, step.range.start));
        Ok(plan)
    }

    /// Names of the source's files.
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// What to read, in the order of the source.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// What becomes of the matrices, in the order of the source.
    pub fn matrices(&self) -> Vec<Packing> {
        let mut packings: Vec<Packing> = Vec::new();
        for tensor in &self.tensors {
            let Kind::Matrix { format, .. } = tensor.kind else { continue };
            match packings.iter_mut().find(|p| (p.from, p.to) == (tensor.ty, format)) {
                Some(packing) => packing.count += 1,
                None => packings.push(Packing { from: tensor.ty, to: format, count: 1 }),
            }
        }
        packings
    }

    /// Bytes that all steps read.
    pub fn source_bytes(&self) -> u64 {
        self.steps.iter().map(|step| step.range.end - step.range.start).sum()
    }

    /// Where everything goes.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What does not come from a step: the tokenizer. `write` gets offsets in the data region, which is zero before.
    pub fn write_documents(&self, write: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        match self.layout.place(TOKENIZER) {
            Some(Place::Flat(start)) => write(start, &self.tokenizer),
            _ => Ok(()),
        }
    }

    /// Packs the bytes of step `i`. `write` gets offsets in the data region and what goes there.
    ///
    /// # Errors
    /// When `bytes` are not as long as the step's range, or hold something that is not finite.
    pub fn run(
        &mut self,
        i: usize,
        bytes: &[u8],
        write: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.run_rounded(i, bytes, &mut ByWeights, write)
    }

    /// As [`Plan::run`], with matrices rounded as `rounder` says.
    ///
    /// # Errors
    /// As [`Plan::run`], and those of `rounder`.
    pub fn run_rounded(
        &mut self,
        i: usize,
        bytes: &[u8],
        rounder: &mut dyn Rounder,
        write: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let step = &self.steps[i];
        let tensor = &self.tensors[step.tensor];
        let origin = Origin { file: &self.files[tensor.file], tensor: &tensor.name };
        let expected = step.range.end - step.range.start;
        if bytes.len() as u64 != expected {
            let problem = format!("{} bytes came, expected {expected}; fetch the file again", bytes.len());
            return Err(Error::malformed(origin.file, format!("tensor {}", tensor.name), problem).into());
        }
        let (format, k, starts) = match tensor.kind {
            Kind::Vector { start, add } => {
                self.floats.clear();
                tensor.ty.floats(bytes, &mut self.floats, origin)?;
                let values: Vec<u8> = self.floats.iter().flat_map(|x| (x + add).to_le_bytes()).collect();
                return write(start, &values);
            }
            Kind::Matrix { format, k, planes } => (format, k, planes),
        };
        let planes = match &mut self.planes {
            Some((owner, planes)) if *owner == step.tensor => planes,
            slot => {
                let planes = Planes::new(format, 0, k).ok_or_else(|| overflow(origin))?;
                &mut slot.insert((step.tensor, planes)).1
            }
        };
        if tensor.ty.format() == Some(format) {
            planes.pack_ggml(tensor.ty, step.rows, bytes, origin)?;
        } else {
            self.floats.clear();
            if tensor.ty.is_float() {
                tensor.ty.floats(bytes, &mut self.floats, origin)?;
            } else {
                let matrix = matrix_from_ggml(tensor.ty, step.rows, k, bytes, origin)?;
                self.floats.resize(step.rows * k, 0.0);
                let rows = self.floats.chunks_exact_mut(k).enumerate();
                rows.for_each(|(row, values)| matrix.dequantize_row(row, values));
            }
            planes.pack_rounded(&self.floats, &rounder.rounding(&tensor.item)?, origin)?;
            let (tensor, weights) = (&*tensor.item, &*self.floats);
            rounder.packed(Packed { tensor, format, k, weights, planes })?;
        }
        let at = planes.offsets(step.first_row).ok_or_else(|| overflow(origin))?;
        for ((start, offset), plane) in starts.into_iter().zip(at.array()).zip(planes.all()) {
            if !plane.is_empty() {
                write(start + offset, plane)?;
            }
        }
        Ok(())
    }

    /// Adds the steps of one tensor.
    fn add(&mut self, source: SourceTensor, item: &Item) -> Result<()> {
        let SourceTensor { file, name, offset, ty, add } = source;
        let origin = Origin { file: &self.files[file], tensor: &name };
        let (kind, n, k) = match (item, self.layout.place(item.name())) {
            (&Item::Matrix { format, n, k, .. }, Some(Place::Planes(planes))) => {
                (Kind::Matrix { format, k, planes }, n, k)
            }
            (&Item::Vector { len, .. }, Some(Place::Flat(start))) => (Kind::Vector { start, add }, 1, len),
            _ => return Err(overflow(origin).into()),
        };
        let row_bytes = ty.bytes_of(k).ok_or_else(|| overflow(origin))?;
        let rows_at_once = (STEP_BYTES / row_bytes / TILE_N * TILE_N).max(TILE_N);
        for first_row in (0..n).step_by(rows_at_once) {
            let rows = rows_at_once.min(n - first_row);
            let start = (first_row * row_bytes) as u64;
            let range = offset + start..offset + start + (rows * row_bytes) as u64;
            self.steps.push(Step { file, range, tensor: self.tensors.len(), first_row, rows });
        }
        let item = item.name().to_owned();
        self.tensors.push(Tensor { item, name, file, ty, kind });
        Ok(())
    }
}

/// How a tensor is stored.
fn item(
    file: &str,
    spec: &TensorSpec,
    source: &SourceTensor,
    options: &Options,
    quantise_by_default: bool,
) -> Result<Item> {
    let origin = Origin { file, tensor: &source.name };
    let name = spec.name.clone();
    let Some(format) = source.ty.format() else {
        return Err(source.ty.unsupported(origin).into());
    };
    match spec.kind {
        TensorKind::Vector { len } if source.ty.is_float() => Ok(Item::Vector { name, len }),
        TensorKind::Vector { .. } => Err(source.ty.unsupported(origin).into()),
        TensorKind::Matrix { n, k } => {
            if !k.is_multiple_of(BLOCK_K) {
                let problem = format!("has rows of {k} weights, expected a multiple of {BLOCK_K}");
                return Err(Error::malformed(file, format!("tensor {}", source.name), problem).into());
            }
            let outer = spec.name.starts_with("token_embd") || spec.name.starts_with("output");
            let chosen = options.formats.get(&name).copied();
            let by_bits =
                options.weights.formats().map(|[outermost, inner]| if outer { outermost } else { inner });
            let format = match chosen.or(by_bits) {
                _ if !source.ty.is_float() && !options.requantize => format,
                Some(chosen) => chosen,
                None if options.weights == Weights::Auto && quantise_by_default && source.ty.is_float() => {
                    Format::Q8
                }
                None => format,
            };
            if !k.is_multiple_of(format.k_multiple()) {
                let (of, multiple) = (format.spec().name, format.k_multiple());
                let problem = format!("has rows of {k} weights; those of {of} are multiples of {multiple}");
                return Err(Error::malformed(file, format!("tensor {}", source.name), problem).into());
            }
            Ok(Item::Matrix { name, format, n, k })
        }
    }
}

fn overflow(origin: Origin<'_>) -> Error {
    Error::malformed(origin.file, format!("tensor {}", origin.tensor), "its size overflows the address space")
}
