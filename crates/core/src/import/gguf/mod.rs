//! GGUF, versions 2 and 3.
//!
//! Layout, little-endian: magic, version u32, tensor count u64, metadata count u64, metadata, tensor infos, padding to
//! `general.alignment`, data. See the GGUF specification in the ggml repository.

mod cursor;
mod value;

pub use value::{Array, Value};

use super::Parsed;
use crate::pack::{GgmlType, Origin};
use crate::{Error, Result};
use cursor::{Cursor, Stop};
use std::collections::{BTreeMap, HashSet};

const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 20;
/// ggml's limit on the name of a tensor is 64; some room is left.
const MAX_NAME: usize = 256;
const MAX_DIMS: u32 = 4;

/// The header of a GGUF file.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// The file's name as the caller gave it.
    pub file: String,
    /// 2 or 3.
    pub version: u32,
    /// Metadata by key.
    pub metadata: BTreeMap<String, Value>,
    /// Tensors in the order of the file's table.
    pub tensors: Vec<TensorInfo>,
    /// Where the tensors' data begins in the file.
    pub data_start: u64,
}

/// One tensor of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Sizes, fastest first: a matrix of `n` outputs and `k` inputs is `[k, n]`.
    pub dims: Vec<usize>,
    /// Type of the elements.
    pub ty: GgmlType,
    /// Where its data begins in the file.
    pub offset: u64,
    /// Bytes of its data.
    pub size: u64,
}

/// Parses the header. `prefix` holds the first bytes of the file, `file_len` its length where that is known: then tensors
/// that reach past the end are found out.
///
/// # Errors
/// [`Error::Malformed`] and [`Error::Unsupported`], naming the key or tensor and the value.
pub fn parse(file: &str, prefix: &[u8], file_len: Option<u64>) -> Result<Parsed<Gguf>> {
    match header(&mut Cursor::new(file, prefix, file_len), file_len) {
        Ok(gguf) => Ok(Parsed::Complete(gguf)),
        Err(Stop::NeedMore(at_least)) => Ok(Parsed::NeedMore { at_least }),
        Err(Stop::Failed(error)) => Err(error),
    }
}

fn header(cursor: &mut Cursor<'_>, file_len: Option<u64>) -> std::result::Result<Gguf, Stop> {
    let version = version(cursor)?;
    let tensor_count = cursor.u64("tensor_count")?;
    let metadata_count = cursor.u64("metadata_kv_count")?;
    // The shortest tensor: empty name (8), dimension count (4), one dimension (8), type (4), offset (8).
    cursor.check_count("tensor_count", tensor_count, 32)?;
    // The shortest entry: empty key (8), type (4), one byte.
    cursor.check_count("metadata_kv_count", metadata_count, 13)?;

    let mut metadata = BTreeMap::new();
    for i in 0..metadata_count {
        let key = cursor.string(&format!("metadata key {i}"))?.to_owned();
        let value = value::read(cursor, &key)?;
        if metadata.insert(key.clone(), value).is_some() {
            return cursor.fail(&key, "this metadata key occurs twice");
        }
    }
    let alignment = alignment(cursor, &metadata)?;
    let mut tensors = Vec::new();
    for i in 0..tensor_count {
        tensors.push(tensor_info(cursor, i, alignment)?);
    }
    let data_start = cursor.position().next_multiple_of(alignment);
    check_layout(cursor, &mut tensors, data_start, file_len)?;
    Ok(Gguf { file: cursor.file().to_owned(), version, metadata, tensors, data_start })
}

fn version(cursor: &mut Cursor<'_>) -> std::result::Result<u32, Stop> {
    let magic = cursor.bytes(4, "magic")?;
    if magic != b"GGUF" {
        let found = String::from_utf8_lossy(magic).escape_debug().to_string();
        return cursor.fail("magic", format!("is \"{found}\", expected \"GGUF\"; this is not a GGUF file"));
    }
    let version = cursor.u32("version")?;
    match version {
        2 | 3 => Ok(version),
        _ if (1..=3).contains(&version.swap_bytes()) => cursor.unsupported(
            "version",
            "a big-endian file",
            "convert it to little-endian (gguf-py's gguf_convert_endian)",
        ),
        _ => cursor.unsupported(
            "version",
            format!("GGUF version {version}"),
            "convert the model again with a current llama.cpp; versions 2 and 3 are read",
        ),
    }
}

fn alignment(cursor: &Cursor<'_>, metadata: &BTreeMap<String, Value>) -> std::result::Result<u64, Stop> {
    let field = "general.alignment";
    match metadata.get(field) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::Unsigned(x)) if x.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(&x) => Ok(x),
        Some(value) => {
            cursor.fail(field, format!("is {value}, expected a power of two from 8 to {MAX_ALIGNMENT}"))
        }
    }
}

/// The offset is still relative to the start of the data.
fn tensor_info(cursor: &mut Cursor<'_>, i: u64, alignment: u64) -> std::result::Result<TensorInfo, Stop> {
    let name = cursor.string(&format!("name of tensor {i}"))?.to_owned();
    let field = format!("tensor {name}");
    if name.is_empty() || name.len() > MAX_NAME {
        return cursor.fail(
            &format!("tensor {i}"),
            format!("its name has {} bytes, expected 1 to {MAX_NAME}", name.len()),
        );
    }
    let n_dims = cursor.u32(&field)?;
    if !(1..=MAX_DIMS).contains(&n_dims) {
        return cursor.fail(&field, format!("has {n_dims} dimensions, expected 1 to {MAX_DIMS}"));
    }
    let mut dims = Vec::new();
    for _ in 0..n_dims {
        let dim = cursor.u64(&field)?;
        match usize::try_from(dim) {
            Ok(dim) if dim > 0 => dims.push(dim),
            _ => return cursor.fail(&field, format!("has a dimension of {dim}")),
        }
    }
    let id = cursor.u32(&field)?;
    let Some(ty) = GgmlType::from_id(id) else {
        return cursor.unsupported(&field, format!("type number {id}"), "use a file with F16, Q8_0 or Q4_K");
    };
    if !dims[0].is_multiple_of(ty.block()) {
        let (k, block, ty) = (dims[0], ty.block(), ty.name());
        return cursor.fail(&field, format!("has rows of {k}, not a multiple of {block}, the block of {ty}"));
    }
    let elements = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
    let Some(size) = elements.and_then(|count| ty.bytes_of(count)) else {
        return cursor.fail(&field, format!("its shape {dims:?} overflows"));
    };
    let offset = cursor.u64(&field)?;
    if !offset.is_multiple_of(alignment) {
        return cursor
            .fail(&field, format!("its offset {offset} is not a multiple of the alignment {alignment}"));
    }
    Ok(TensorInfo { name, dims, ty, offset, size: size as u64 })
}

/// Makes offsets absolute; finds names that occur twice, tensors that overlap and tensors past the end.
fn check_layout(
    cursor: &Cursor<'_>,
    tensors: &mut [TensorInfo],
    data_start: u64,
    file_len: Option<u64>,
) -> std::result::Result<(), Stop> {
    let mut names = HashSet::new();
    if let Some(twice) = tensors.iter().find(|t| !names.insert(t.name.as_str())) {
        return cursor.fail(&format!("tensor {}", twice.name), "this name occurs twice");
    }
    drop(names);
    for tensor in tensors.iter_mut() {
        let relative = tensor.offset;
        let absolute = relative.checked_add(data_start);
        let Some((start, end)) = absolute.and_then(|s| Some((s, s.checked_add(tensor.size)?))) else {
            return cursor
                .fail(&format!("tensor {}", tensor.name), format!("its offset {relative} overflows"));
        };
        if let Some(len) = file_len
            && end > len
        {
            return cursor.fail(
                &format!("tensor {}", tensor.name),
                format!("ends at byte {end}, the file has {len}; it is truncated, fetch it again"),
            );
        }
        tensor.offset = start;
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| t.offset);
    for pair in order.windows(2) {
        if pair[0].offset + pair[0].size > pair[1].offset {
            return cursor.fail(
                &format!("tensor {}", pair[1].name),
                format!("begins at byte {}, inside tensor {}", pair[1].offset, pair[0].name),
            );
        }
    }
    Ok(())
}

impl Gguf {
    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|t| t.name == name)
    }

    /// A tensor of this file, for messages.
    pub fn origin<'a>(&'a self, tensor: &'a str) -> Origin<'a> {
        Origin { file: &self.file, tensor }
    }

    /// The value of `key`; an error when it is missing.
    pub fn required(&self, key: &str) -> Result<&Value> {
        self.metadata.get(key).ok_or_else(|| {
            Error::malformed(
                &self.file,
                key,
                "this metadata key is missing; the model needs it, convert it again",
            )
        })
    }

    /// The text under `key`, or `None` when there is none.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// The non-negative integer under `key`, or `None` when there is none.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "a non-negative integer", |value| match *value {
            Value::Unsigned(x) => Some(x),
            Value::Signed(x) => x.try_into().ok(),
            _ => None,
        })
    }

    /// The finite number under `key`, or `None` when there is none.
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a finite number", |value| match *value {
            Value::Float(x) => x.is_finite().then_some(x),
            Value::Unsigned(x) => Some(x as f64),
            Value::Signed(x) => Some(x as f64),
            _ => None,
        })
    }

    /// The truth value under `key`, or `None` when there is none.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", |value| match *value {
            Value::Bool(x) => Some(x),
            _ => None,
        })
    }

    /// The strings under `key`, or `None` when there are none.
    pub fn texts(&self, key: &str) -> Result<Option<&[String]>> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Array(Array::Text(texts)) => Some(texts.as_slice()),
            _ => None,
        })
    }

    /// The integers under `key`, or `None` when there are none.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>> {
        self.typed(key, "an array of integers", |value| match value {
            Value::Array(Array::Signed(x)) => Some(x.clone()),
            Value::Array(Array::Unsigned(x)) => x.iter().map(|&x| x.try_into().ok()).collect(),
            _ => None,
        })
    }

    /// The numbers under `key`, or `None` when there are none.
    pub fn floats(&self, key: &str) -> Result<Option<&[f64]>> {
        self.typed(key, "an array of numbers", |value| match value {
            Value::Array(Array::Float(x)) => Some(x.as_slice()),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        get: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(value) => match get(value) {
                Some(content) => Ok(Some(content)),
                None => Err(Error::malformed(&self.file, key, format!("is {value}, expected {expected}"))),
            },
        }
    }
}

#[cfg(test)]
mod tests;
