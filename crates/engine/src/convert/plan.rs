//! What is to be read, in which order, and where it goes.

use super::rounder::ByWeights;
use super::{Description, Options, Packed, Rounder, SOURCE, Scheme, TOKENIZER, Weights, in_file, is_outer};
use crate::arch::{TensorKind, TensorSpec};
use crate::{Result, SamplingOptions};
use lowbit_core::container::{Item, Layout, Place};
use lowbit_core::format::{BLOCK_K, PLANES, TILE_N};
use lowbit_core::pack::{GgmlType, Origin, Planes, floats_of};
use lowbit_core::{Error, Format};
use std::ops::Range;

/// A step reads no more than this, unless 16 rows are longer, or rows cannot be told apart.
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
    /// How a matrix is stored there, where its bytes are not those of `ty`.
    pub translation: Option<Translation>,
    /// What is to be added to the elements of a vector; -0 leaves every number as it is, also -0.
    pub add: f32,
}

/// A matrix of the source that becomes rows of a GGML type first.
#[derive(Debug)]
pub(super) struct Translation {
    /// The name of its type, for the report.
    pub name: &'static str,
    /// Bytes of a row in the source.
    pub row_bytes: usize,
    /// Whether rows cannot be told apart there: the matrix is read as a whole.
    pub whole: bool,
    /// The other tensors that it needs, scales and the like: files and bytes.
    pub parts: Vec<(usize, Range<u64>)>,
    /// What does it.
    pub by: Box<dyn Translate>,
}

/// Makes rows of a GGML type of a matrix of the source.
pub(super) trait Translate: std::fmt::Debug {
    /// Appends rows from `first_row` on, which are `bytes` in the source, to `out`. The error says what is wrong where.
    fn translate(
        &self,
        bytes: &[u8],
        first_row: usize,
        parts: &[Vec<u8>],
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), String>;
}

/// A conversion: steps to be run in the order of [`Plan::steps`], which is that of the source, but for small tensors that
/// others need and which come first.
#[derive(Debug)]
pub struct Plan {
    files: Vec<String>,
    layout: Layout,
    tensors: Vec<Tensor>,
    steps: Vec<Step>,
    tokenizer: Vec<u8>,
    /// What the translations need.
    parts: Vec<Vec<u8>>,
    planes: Option<(usize, Planes)>,
    /// Whether the blocks of every matrix must come back byte for byte.
    reversible: bool,
    floats: Vec<f32>,
    translated: Vec<u8>,
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
    /// Name of the type in the source.
    pub from: &'static str,
    /// Whether the source has floats, of which a format can be chosen.
    pub is_float: bool,
    /// Whether the weights keep their values.
    pub is_kept: bool,
    /// Format in the artifact.
    pub to: Format,
    /// Number of matrices.
    pub count: usize,
}

#[derive(Debug)]
struct Tensor {
    /// Name in the artifact.
    item: String,
    /// Name in the source, for messages.
    name: String,
    file: usize,
    kind: Kind,
    /// How its bytes become those of its type, and the first of its parts.
    translation: Option<(Translation, usize)>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Planes begin here.
    Matrix { ty: GgmlType, format: Format, k: usize, planes: [usize; PLANES] },
    /// A vector begins here; something is to be added to its elements.
    Vector { ty: GgmlType, start: usize, add: f32 },
    /// Bytes of a document are copied to here.
    Bytes { start: usize },
    /// One of the parts that translations need.
    Part(usize),
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
        let rest: u64 = description.rest.iter().map(|range| range.end - range.start).sum();
        if rest > 0 {
            // A size that is none here is refused by the layout.
            let len = usize::try_from(rest).unwrap_or(usize::MAX);
            items.push(Item::Document { name: SOURCE.to_owned(), len });
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
            parts: Vec::new(),
            planes: None,
            reversible: options.reversible,
            floats: Vec::new(),
            translated: Vec::new(),
        };
        for ((_, source), item) in tensors.into_iter().zip(&items[1..]) {
            plan.add(source, item)?;
        }
        if let Some(Place::Flat(start)) = plan.layout.place(SOURCE) {
            plan.copy(&description.rest, start);
        }
        let is_part = |step: &Step| matches!(plan.tensors[step.tensor].kind, Kind::Part(_));
        plan.steps.sort_by_key(|step| (!is_part(step), step.file, step.range.start));
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
            let Kind::Matrix { ty, format, .. } = tensor.kind else { continue };
            let from = tensor.translation.as_ref().map_or(ty.name(), |(translation, _)| translation.name);
            let is_kept = ty.format() == Some(format);
            match packings.iter_mut().find(|p| (p.from, p.to, p.is_kept) == (from, format, is_kept)) {
                Some(packing) => packing.count += 1,
                None => {
                    let is_float = ty.is_float();
                    packings.push(Packing { from, is_float, is_kept, to: format, count: 1 });
                }
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

    /// The tokenizer that is stored.
    pub fn tokenizer(&self) -> &[u8] {
        &self.tokenizer
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
        let (ty, format, k, starts) = match tensor.kind {
            Kind::Part(i) => {
                self.parts[i] = bytes.to_vec();
                return Ok(());
            }
            Kind::Bytes { start } => return write(start, bytes),
            Kind::Vector { ty, start, add } => {
                self.floats.clear();
                ty.floats(bytes, &mut self.floats, origin)?;
                self.floats.iter_mut().for_each(|x| *x += add);
                rounder.scale(&tensor.item, &mut self.floats);
                let values: Vec<u8> = self.floats.iter().flat_map(|x| x.to_le_bytes()).collect();
                return write(start, &values);
            }
            Kind::Matrix { ty, format, k, planes } => (ty, format, k, planes),
        };
        let bytes = match &tensor.translation {
            None => bytes,
            Some((translation, first)) => {
                self.translated.clear();
                let parts = &self.parts[*first..*first + translation.parts.len()];
                (translation.by.translate(bytes, step.first_row, parts, &mut self.translated)).map_err(
                    |problem| Error::malformed(origin.file, format!("tensor {}", tensor.name), problem),
                )?;
                &self.translated
            }
        };
        let planes = match &mut self.planes {
            Some((owner, planes)) if *owner == step.tensor => planes,
            slot => {
                let planes = Planes::new(format, 0, k).ok_or_else(|| overflow(origin))?;
                &mut slot.insert((step.tensor, planes)).1
            }
        };
        if ty.format() == Some(format) {
            planes.pack_ggml(ty, step.rows, bytes, origin)?;
            // The page packs nothing reversibly and has no code for it.
            if cfg!(not(target_family = "wasm")) && self.reversible {
                check_reversible(planes, ty, step.rows, bytes, origin)?;
            }
        } else {
            self.floats.clear();
            floats_of(ty, k, bytes, &mut self.floats, origin)?;
            rounder.scale(&tensor.item, &mut self.floats);
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
        let SourceTensor { file, name, offset, ty, translation, add } = source;
        let origin = Origin { file: &self.files[file], tensor: &name };
        let (kind, n, k) = match (item, self.layout.place(item.name())) {
            (&Item::Matrix { format, n, k, .. }, Some(Place::Planes(planes))) => {
                (Kind::Matrix { ty, format, k, planes }, n, k)
            }
            (&Item::Vector { len, .. }, Some(Place::Flat(start))) => {
                (Kind::Vector { ty, start, add }, 1, len)
            }
            _ => return Err(overflow(origin).into()),
        };
        let mut row_bytes = ty.bytes_of(k).ok_or_else(|| overflow(origin))?;
        let mut rows_at_once = (STEP_BYTES / row_bytes / TILE_N * TILE_N).max(TILE_N);
        let translation = translation.map(|translation| (translation, self.parts.len()));
        if let Some((translation, _)) = &translation {
            row_bytes = translation.row_bytes;
            if translation.whole {
                rows_at_once = n;
            }
            for (file, range) in &translation.parts {
                let kind = Kind::Part(self.parts.len());
                self.parts.push(Vec::new());
                let (file, range, tensor) = (*file, range.clone(), self.tensors.len());
                self.steps.push(Step { file, range, tensor, first_row: 0, rows: 0 });
                let item = String::new();
                self.tensors.push(Tensor { item, name: name.clone(), file, kind, translation: None });
            }
        }
        for first_row in (0..n).step_by(rows_at_once) {
            let rows = rows_at_once.min(n - first_row);
            let start = (first_row * row_bytes) as u64;
            let range = offset + start..offset + start + (rows * row_bytes) as u64;
            self.steps.push(Step { file, range, tensor: self.tensors.len(), first_row, rows });
        }
        let item = item.name().to_owned();
        self.tensors.push(Tensor { item, name, file, kind, translation });
        Ok(())
    }

    /// Adds the steps that copy parts of the first file, one after the other, to `start` in the data region.
    fn copy(&mut self, parts: &[Range<u64>], mut start: usize) {
        for part in parts {
            for first in (part.start..part.end).step_by(STEP_BYTES) {
                let range = first..part.end.min(first + STEP_BYTES as u64);
                let len = (range.end - range.start) as usize;
                self.steps.push(Step { file: 0, range, tensor: self.tensors.len(), first_row: 0, rows: 0 });
                let (name, kind) = (SOURCE.to_owned(), Kind::Bytes { start });
                let item = String::new();
                self.tensors.push(Tensor { item, name, file: 0, kind, translation: None });
                start += len;
            }
        }
    }
}

/// Whether blocks come back from their planes byte for byte.
fn check_reversible(
    planes: &Planes,
    ty: GgmlType,
    rows: usize,
    bytes: &[u8],
    origin: Origin<'_>,
) -> Result<()> {
    let mut back = Vec::new();
    planes.unpack_ggml(ty, rows, &mut back, origin)?;
    if back == bytes {
        return Ok(());
    }
    let what = format!("{} that its weights do not tell byte for byte", ty.name());
    let hint = "pack the model without --reversible";
    Err(Error::unsupported(origin.file, format!("tensor {}", origin.tensor), what, hint).into())
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
            let format = match options.asked(&name) {
                _ if options.scheme != Scheme::Block => {
                    let hint = "choose other bits or another scheme";
                    of_rows(options, is_outer(&name)).map_err(|what| {
                        Error::unsupported(file, format!("tensor {}", source.name), what, hint)
                    })?
                }
                _ if options.reversible || !source.ty.is_float() && !options.requantize => format,
                Some(chosen) => chosen,
                None if options.weights == Weights::Auto && quantise_by_default && source.ty.is_float() => {
                    Format::Q8
                }
                None => format,
            };
            match format.refuses(k) {
                Some(problem) => {
                    Err(Error::malformed(file, format!("tensor {}", source.name), problem).into())
                }
                None => Ok(Item::Matrix { name, format, n, k }),
            }
        }
    }
}

/// The format of a matrix whose rows have one scale each; or what is wrong with the options.
fn of_rows(options: &Options, outer: bool) -> std::result::Result<Format, &'static str> {
    match (options.scheme, options.weights) {
        (_, Weights::Keep) => Err("weights that are kept and yet have a scale a row"),
        (Scheme::Progressive, Weights::Q8) => Err("8 bits with progressive scales"),
        (_, Weights::Q8) => Ok(Format::C8),
        (_, Weights::Auto | Weights::Q4) if outer => Ok(Format::C8),
        (Scheme::Progressive, Weights::Auto | Weights::Q4) => Ok(Format::P4),
        (_, Weights::Auto | Weights::Q4) => Ok(Format::C4),
        _ => Err("2, 3, 5 or 6 bits with a scale a row"),
    }
}

fn overflow(origin: Origin<'_>) -> Error {
    Error::malformed(origin.file, format!("tensor {}", origin.tensor), "its size overflows the address space")
}
