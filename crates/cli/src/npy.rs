//! NumPy's `.npy` files of little-endian f32, as reference vectors come.

use crate::error::{Error, Result};
use std::io::Read;
use std::path::Path;

/// The elements of the file, whatever its shape.
pub fn read_f32(path: &Path) -> Result<Vec<f32>> {
    let (mut file, len) = lowbit_core::import::open(path)?;
    let mut bytes = Vec::new();
    file.by_ref().take(len).read_to_end(&mut bytes).map_err(|e| Error::io(path, e))?;
    parse(&bytes).map_err(|problem| Error::Reference { path: path.display().to_string(), problem })
}

fn parse(bytes: &[u8]) -> std::result::Result<Vec<f32>, String> {
    let rest = bytes.strip_prefix(b"\x93NUMPY").ok_or("does not begin like a .npy file")?;
    let (header_len, start) = match rest {
        [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 4),
        [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 6),
        _ => return Err("has an unknown .npy version".to_owned()),
    };
    let end = start + header_len;
    let header = rest.get(start..end).ok_or("is cut off in its header")?;
    let header = String::from_utf8_lossy(header);
    if !header.contains("'<f4'") || header.contains("'fortran_order': True") {
        return Err(format!("holds {}, expected C-ordered '<f4'", header.trim()));
    }
    let (values, rest) = rest[end..].as_chunks::<4>();
    if !rest.is_empty() {
        return Err("is cut off in its data".to_owned());
    }
    Ok(values.iter().map(|v| f32::from_le_bytes(*v)).collect())
}

#[cfg(test)]
mod tests {
    use super::parse;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn floats_come_out() {
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
        let data: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(parse(&file(header, &data)), Ok(vec![1.5, -2.0]));
        assert!(parse(&file(header, &data[..7])).is_err());
    }

    #[test]
    fn other_files_are_refused() {
        assert!(parse(b"GGUF").is_err());
        assert!(parse(b"\x93NUMPY\x01\x00\xff\xff").is_err());
        assert!(parse(&file("{'descr': '<f8', 'fortran_order': False}", &[])).is_err());
    }
}
