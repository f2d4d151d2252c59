//! Writing GGUF headers.

use lowbit_core::pack::GgmlType;

/// `general.alignment` where a file does not say.
const ALIGNMENT: usize = 32;

const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// A GGUF header that grows: metadata and the table of tensors.
#[derive(Default)]
pub(super) struct HeaderWriter {
    metadata: Vec<u8>,
    metadata_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
    data_len: usize,
}

impl HeaderWriter {
    pub fn text(&mut self, key: &str, value: &str) {
        self.key(key, TEXT);
        put_text(&mut self.metadata, value);
    }

    pub fn u32(&mut self, key: &str, value: u32) {
        self.key(key, U32);
        self.metadata.extend(value.to_le_bytes());
    }

    pub fn f32(&mut self, key: &str, value: f32) {
        self.key(key, F32);
        self.metadata.extend(value.to_le_bytes());
    }

    pub fn flag(&mut self, key: &str, value: bool) {
        self.key(key, BOOL);
        self.metadata.push(value.into());
    }

    pub fn texts<T: AsRef<str>>(&mut self, key: &str, values: &[T]) {
        self.array(key, TEXT, values.len());
        values.iter().for_each(|value| put_text(&mut self.metadata, value.as_ref()));
    }

    pub fn i32s(&mut self, key: &str, values: &[i32]) {
        self.array(key, I32, values.len());
        self.metadata.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    pub fn f32s(&mut self, key: &str, values: &[f32]) {
        self.array(key, F32, values.len());
        self.metadata.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    /// Adds a tensor of `bytes` bytes behind the last one; `dims` are fastest first.
    pub fn tensor(&mut self, name: &str, dims: &[usize], ty: GgmlType, bytes: usize) {
        put_text(&mut self.tensors, name);
        self.tensors.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| self.tensors.extend((*dim as u64).to_le_bytes()));
        self.tensors.extend(ty.id().to_le_bytes());
        self.tensors.extend((self.data_len as u64).to_le_bytes());
        self.tensor_count += 1;
        self.data_len += bytes + padding(bytes);
    }

    /// The bytes before the data of the first tensor.
    pub fn finish(self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(self.tensor_count.to_le_bytes());
        bytes.extend(self.metadata_count.to_le_bytes());
        bytes.extend(self.metadata);
        bytes.extend(self.tensors);
        bytes.resize(bytes.len() + padding(bytes.len()), 0);
        bytes
    }

    fn key(&mut self, key: &str, ty: u32) {
        put_text(&mut self.metadata, key);
        self.metadata.extend(ty.to_le_bytes());
        self.metadata_count += 1;
    }

    fn array(&mut self, key: &str, ty: u32, len: usize) {
        self.key(key, ARRAY);
        self.metadata.extend(ty.to_le_bytes());
        self.metadata.extend((len as u64).to_le_bytes());
    }
}

/// Zeros that follow `len` bytes.
pub(super) fn padding(len: usize) -> usize {
    len.wrapping_neg() % ALIGNMENT
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
