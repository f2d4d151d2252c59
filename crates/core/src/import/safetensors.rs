//! Safetensors headers, also those of artifacts.
//!
//! Layout: header length u64 (little-endian), JSON header, data. The header maps each tensor's name to `dtype`, `shape`
//! and `data_offsets`; `__metadata__` maps strings to strings. The `safetensors` crate reads whole files only and lets
//! the last of two equal names win, hence this reader; tests hold the two against each other.

use super::Parsed;
use crate::{Error, Result};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;

/// The limit of the safetensors specification.
const MAX_HEADER: u64 = 100_000_000;
/// Bytes of the header's length.
const LENGTH: u64 = 8;

/// The header of a safetensors file.
#[derive(Clone, Debug)]
pub struct Safetensors {
    /// The file's name as the caller gave it.
    pub file: String,
    /// `__metadata__`
    pub metadata: BTreeMap<String, String>,
    /// Tensors in the order of their data, which has neither gaps nor overlaps.
    pub tensors: Vec<Tensor>,
    /// Where the data begins in the file.
    pub data_start: u64,
    /// Bytes of data.
    pub data_len: u64,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Type of the elements, as in the file: `F32`, `BF16`, `U8`, ...
    pub dtype: String,
    /// Sizes, slowest first.
    pub shape: Vec<u64>,
    /// Where its bytes are in the data.
    pub range: Range<u64>,
}

/// Parses the header. `prefix` holds the first bytes of the file, `file_len` its length where that is known.
///
/// # Errors
/// [`Error::Malformed`], naming the tensor and the value.
pub fn parse(file: &str, prefix: &[u8], file_len: Option<u64>) -> Result<Parsed<Safetensors>> {
    let Some((length, rest)) = prefix.split_first_chunk() else {
        return need_more(file, LENGTH, file_len);
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        return Err(Error::malformed(
            file,
            "header length",
            format!(
                "is {length}, the format allows {MAX_HEADER}; this is no safetensors file or it is damaged"
            ),
        ));
    }
    let data_start = LENGTH + length;
    let Some(json) = rest.get(..length as usize) else {
        return need_more(file, data_start, file_len);
    };
    let header: Header = serde_json::from_slice(json)
        .map_err(|e| Error::malformed(file, "header", format!("{e}; the file is damaged")))?;
    let data_len = check_tensors(file, &header.tensors)?;
    if let Some(found) = file_len
        && found != data_start + data_len
    {
        let expected = data_start + data_len;
        return Err(Error::malformed(
            file,
            "length",
            format!("the file has {found} bytes, its header describes {expected}; fetch it again"),
        ));
    }
    Ok(Parsed::Complete(Safetensors {
        file: file.to_owned(),
        metadata: header.metadata,
        tensors: header.tensors,
        data_start,
        data_len,
    }))
}

impl Safetensors {
    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|t| t.name == name)
    }
}

fn need_more(file: &str, at_least: u64, file_len: Option<u64>) -> Result<Parsed<Safetensors>> {
    match file_len {
        Some(len) if len < at_least => Err(Error::malformed(
            file,
            "header",
            format!("reaches to byte {at_least}, the file has {len}; it is truncated, fetch it again"),
        )),
        _ => Ok(Parsed::NeedMore { at_least }),
    }
}

/// Checks names, sizes, gaps and overlaps; returns the length of the data.
fn check_tensors(file: &str, tensors: &[Tensor]) -> Result<u64> {
    let mut names = HashSet::new();
    let mut end = 0;
    for tensor in tensors {
        let fail = |problem: String| Err(Error::malformed(file, format!("tensor {}", tensor.name), problem));
        if !names.insert(tensor.name.as_str()) {
            return fail("this name occurs twice".into());
        }
        let Some(size) = element_size(&tensor.dtype) else {
            return fail(format!("its dtype {} is unknown", tensor.dtype));
        };
        let count = tensor.shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
        let Some(size) = count.and_then(|count| count.checked_mul(size as u64)) else {
            return fail(format!("its shape {:?} overflows", tensor.shape));
        };
        let Range { start, end: tensor_end } = tensor.range;
        if start != end {
            return fail(format!(
                "begins at byte {start} of the data, expected {end}: tensors lie without gaps or overlaps"
            ));
        }
        if tensor_end.checked_sub(start) != Some(size) {
            return fail(format!(
                "its offsets {start}..{tensor_end} do not span the {size} bytes of its shape"
            ));
        }
        end = tensor_end;
    }
    Ok(end)
}

/// Bytes of an element, for the types that occur in language models.
fn element_size(dtype: &str) -> Option<usize> {
    Some(match dtype {
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" => 1,
        "U16" | "I16" | "F16" | "BF16" => 2,
        "U32" | "I32" | "F32" => 4,
        "U64" | "I64" | "F64" => 8,
        _ => return None,
    })
}

/// The JSON header, tensors sorted by position.
struct Header {
    metadata: BTreeMap<String, String>,
    tensors: Vec<Tensor>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct HeaderVisitor;

        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Header, A::Error> {
                let mut header = Header { metadata: BTreeMap::new(), tensors: Vec::new() };
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        header.metadata = map.next_value()?;
                        continue;
                    }
                    let Entry { dtype, shape, data_offsets: (start, end) } = map.next_value()?;
                    header.tensors.push(Tensor { name, dtype, shape, range: start..end });
                }
                header.tensors.sort_by_key(|t| (t.range.start, t.range.end));
                Ok(header)
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}
