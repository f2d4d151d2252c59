//! Writing GGUF files, sound and unsound ones.

/// A metadata value.
#[derive(Clone, Debug)]
pub enum Meta {
    /// u32
    U32(u32),
    /// u64
    U64(u64),
    /// f32
    F32(f32),
    /// bool
    Bool(bool),
    /// string
    Text(String),
    /// array of strings
    Texts(Vec<String>),
    /// array of i32
    I32s(Vec<i32>),
    /// array of f32
    F32s(Vec<f32>),
    /// array of f64
    F64s(Vec<f64>),
}

impl From<&str> for Meta {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Collects metadata and tensors and writes them in this order. Nothing is checked.
#[derive(Clone, Debug)]
pub struct GgufBuilder {
    /// Written into the header.
    pub version: u32,
    /// Tensors' data begins at multiples of this.
    pub alignment: usize,
    metadata: Vec<(String, Meta)>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

impl Default for GgufBuilder {
    fn default() -> Self {
        Self { version: 3, alignment: 32, metadata: Vec::new(), tensors: Vec::new() }
    }
}

impl GgufBuilder {
    /// Adds or replaces a metadata value.
    pub fn meta(&mut self, key: &str, value: impl Into<Meta>) -> &mut Self {
        let value = value.into();
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some(entry) => entry.1 = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    /// Removes a metadata value.
    pub fn remove_meta(&mut self, key: &str) -> &mut Self {
        self.metadata.retain(|(k, _)| k != key);
        self
    }

    /// Adds or replaces a tensor. `dims` are fastest first, `ty` is GGML's number.
    pub fn tensor(&mut self, name: &str, dims: &[u64], ty: u32, data: Vec<u8>) -> &mut Self {
        let tensor = (name.to_owned(), dims.to_vec(), ty, data);
        match self.tensors.iter_mut().find(|t| t.0 == name) {
            Some(entry) => *entry = tensor,
            None => self.tensors.push(tensor),
        }
        self
    }

    /// Removes a tensor.
    pub fn remove_tensor(&mut self, name: &str) -> &mut Self {
        self.tensors.retain(|t| t.0 != name);
        self
    }

    /// The header and where its data begins.
    pub fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            text(&mut out, key);
            meta(&mut out, value);
        }
        let mut offset = 0;
        for (name, dims, ty, data) in &self.tensors {
            text(&mut out, name);
            out.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(ty.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset = (offset + data.len()).next_multiple_of(self.alignment);
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out
    }

    /// The whole file.
    pub fn build(&self) -> Vec<u8> {
        let mut out = self.header();
        for (_, _, _, data) in &self.tensors {
            out.extend(data);
            out.resize(out.len().next_multiple_of(self.alignment), 0);
        }
        out
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn array(out: &mut Vec<u8>, ty: u32, len: usize) {
    out.extend(9u32.to_le_bytes());
    out.extend(ty.to_le_bytes());
    out.extend((len as u64).to_le_bytes());
}

fn meta(out: &mut Vec<u8>, value: &Meta) {
    match value {
        Meta::U32(x) => {
            out.extend(4u32.to_le_bytes());
            out.extend(x.to_le_bytes());
        }
        Meta::U64(x) => {
            out.extend(10u32.to_le_bytes());
            out.extend(x.to_le_bytes());
        }
        Meta::F32(x) => {
            out.extend(6u32.to_le_bytes());
            out.extend(x.to_le_bytes());
        }
        Meta::Bool(x) => {
            out.extend(7u32.to_le_bytes());
            out.push(u8::from(*x));
        }
        Meta::Text(x) => {
            out.extend(8u32.to_le_bytes());
            text(out, x);
        }
        Meta::Texts(x) => {
            array(out, 8, x.len());
            x.iter().for_each(|x| text(out, x));
        }
        Meta::I32s(x) => {
            array(out, 5, x.len());
            x.iter().for_each(|x| out.extend(x.to_le_bytes()));
        }
        Meta::F32s(x) => {
            array(out, 6, x.len());
            x.iter().for_each(|x| out.extend(x.to_le_bytes()));
        }
        Meta::F64s(x) => {
            array(out, 12, x.len());
            x.iter().for_each(|x| out.extend(x.to_le_bytes()));
        }
    }
}
