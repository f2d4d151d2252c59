//! A model whose bytes arrive piece by piece: an artifact as it is, or a GGUF file that is packed on the way.

use crate::error::Failure;
use lowbit_core::buffer::AlignedBytes;
use lowbit_core::container::{self, Header, parse_header};
use lowbit_core::import::{Parsed, safetensors};
use lowbit_engine::convert::{self, InMemory};
use std::sync::Arc;
use wasm_bindgen::prelude::*;

/// SHA-256 in hexadecimal, for pages without WebCrypto.
#[wasm_bindgen]
pub fn sha256(bytes: &[u8]) -> String {
    container::sha256_hex(bytes)
}

/// Bytes that a model can have in a page. WebAssembly addresses 4 GiB, and half of that in one piece.
const MOST_BYTES: u64 = (2 << 30) - 1;

/// Refuses, before anything of it is fetched, a model that no page can hold.
fn fits(name: &str, bytes: u64) -> Result<(), Failure> {
    if bytes <= MOST_BYTES {
        return Ok(());
    }
    let advice = "use a smaller model, or the command line, which has no such limit";
    let problem = format!("the model has {bytes} bytes, and a page can hold {MOST_BYTES}; {advice}");
    Err(Failure::new("out-of-memory", format!("{name}: {problem}")))
}

fn no_memory(name: &str, bytes: usize) -> Failure {
    let problem = format!("the browser does not grant this page {bytes} bytes more");
    Failure::new("out-of-memory", format!("{name}: {problem}; close other pages or use a smaller model"))
}

/// A checked header and the memory for its data.
#[wasm_bindgen]
pub struct Artifact {
    header_bytes: Vec<u8>,
    content: Content,
}

enum Content {
    /// The worker writes the data at [`Artifact::pointer`], verified.
    Filling(Header, AlignedBytes),
    /// Packed from another file.
    Whole(container::Artifact),
}

#[wasm_bindgen]
impl Artifact {
    /// Checks the header, the bytes of the file before its data, and allocates the data region.
    #[wasm_bindgen(constructor)]
    pub fn new(name: &str, header: Vec<u8>) -> Result<Artifact, JsValue> {
        Ok(Self::checked(name, header)?)
    }

    /// Bytes of the data region.
    #[wasm_bindgen(getter, js_name = dataLength)]
    pub fn data_length(&self) -> usize {
        self.data().len()
    }

    /// Where the data region lies in the module's memory.
    pub fn pointer(&self) -> usize {
        self.data().as_ptr() as usize
    }

    /// The bytes of the artifact before its data region.
    pub fn header(&self) -> Vec<u8> {
        self.header_bytes.clone()
    }
}

impl Artifact {
    fn checked(name: &str, header_bytes: Vec<u8>) -> Result<Self, Failure> {
        // First of all, since a larger size may not even be a number here.
        fits(name, safetensors::parse(name, &header_bytes, None)?.complete(name)?.data_len)?;
        let header = parse_header(name, &header_bytes, None)?.complete(name)?;
        let data =
            AlignedBytes::try_zeroed(header.data_len).ok_or_else(|| no_memory(name, header.data_len))?;
        Ok(Self { header_bytes, content: Content::Filling(header, data) })
    }

    fn data(&self) -> &[u8] {
        match &self.content {
            Content::Filling(_, data) => data.as_slice(),
            Content::Whole(artifact) => artifact.data().as_slice(),
        }
    }

    /// The artifact, now that its data is there.
    pub(crate) fn whole(self) -> Result<container::Artifact, Failure> {
        match self.content {
            Content::Filling(header, data) => Ok(container::Artifact::new(header, Arc::new(data))?),
            Content::Whole(artifact) => Ok(artifact),
        }
    }
}

/// A GGUF file that is packed while it arrives.
#[wasm_bindgen]
pub struct GgufImport {
    name: String,
    /// Bytes of the file, where known.
    size: Option<u64>,
    stage: Stage,
}

enum Stage {
    /// The first bytes of the file; the header is not whole.
    Header(Vec<u8>),
    Data(Box<InMemory>),
}

#[wasm_bindgen]
impl GgufImport {
    /// `size` is the length of the file, 0 where it is not known.
    #[wasm_bindgen(constructor)]
    pub fn new(name: String, size: f64) -> GgufImport {
        Self { name, size: (size > 0.0).then_some(size as u64), stage: Stage::Header(Vec::new()) }
    }

    /// Takes the next bytes of the start of the file. Returns how many more are needed at least; 0 when the header is
    /// whole and the data region is allocated.
    pub fn header(&mut self, part: &[u8]) -> Result<f64, JsValue> {
        Ok(self.take_header(part)? as f64)
    }

    /// Offset and length of the bytes that [`GgufImport::put`] wants next, in the order of the file; none when all are
    /// there.
    #[wasm_bindgen(js_name = "next")]
    pub fn next_range(&self) -> Option<Vec<f64>> {
        let Stage::Data(data) = &self.stage else { return None };
        let (_, range) = data.next_range()?;
        Some(vec![range.start as f64, (range.end - range.start) as f64])
    }

    /// Packs bytes of the file.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), JsValue> {
        match &mut self.stage {
            Stage::Data(data) => Ok(data.push(bytes).map_err(Failure::from)?),
            Stage::Header(_) => Err(no_header(&self.name).into()),
        }
    }

    /// Where the packed data lies in the module's memory, and its length.
    #[wasm_bindgen(js_name = packed)]
    pub fn packed(&self) -> Vec<usize> {
        let Stage::Data(data) = &self.stage else { return vec![0, 0] };
        vec![data.data().as_ptr() as usize, data.data().len()]
    }

    /// The artifact. `chunks` are the SHA-256 of every chunk of the packed data, in hexadecimal.
    pub fn finish(self, chunks: Vec<String>) -> Result<Artifact, JsValue> {
        let Stage::Data(data) = self.stage else { return Err(no_header(&self.name).into()) };
        let (header_bytes, artifact) = data.finish(Some(chunks)).map_err(Failure::from)?;
        Ok(Artifact { header_bytes, content: Content::Whole(artifact) })
    }
}

impl GgufImport {
    fn take_header(&mut self, part: &[u8]) -> Result<u64, Failure> {
        let Stage::Header(prefix) = &mut self.stage else { return Ok(0) };
        // What is packed is about as large as the file.
        fits(&self.name, self.size.unwrap_or(0))?;
        prefix.extend_from_slice(part);
        let have = prefix.len() as u64;
        match convert::gguf(&self.name, prefix, self.size, &convert::Options::default())? {
            Parsed::Complete(plan) => {
                let len = plan.layout().data_len();
                fits(&self.name, len as u64)?;
                let data = InMemory::new(plan).map_err(|_| no_memory(&self.name, len))?;
                self.stage = Stage::Data(Box::new(data));
                Ok(0)
            }
            // Every try parses from the start: ask for much at a time.
            Parsed::NeedMore { at_least } => {
                let wanted = at_least.max(have.saturating_mul(2)).max(1 << 20);
                Ok(self.size.map_or(wanted, |size| wanted.min(size)).saturating_sub(have).max(1))
            }
        }
    }
}

fn no_header(name: &str) -> Failure {
    Failure::new("malformed-file", format!("{name}: its header is not whole"))
}
