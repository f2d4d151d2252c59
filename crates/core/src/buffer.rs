//! Aligned, shareable memory for the planes of a model.

use std::ops::Range;
use std::sync::Arc;

/// Every plane starts at a multiple of this: the storage-offset alignment of WebGPU, four cache lines.
pub const ALIGN: usize = 256;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(256))]
struct Line([u8; ALIGN]);

/// Zeroed memory that starts at a multiple of [`ALIGN`]; natively in huge pages where the system grants them
/// (they double the speed at which weights are read).
pub struct AlignedBytes {
    len: usize,
    memory: Memory,
}

enum Memory {
    Lines(Vec<Line>),
    #[cfg(not(target_family = "wasm"))]
    Pages(memmap2::MmapMut),
}

impl AlignedBytes {
    /// `len` zero bytes. `len` must have been checked against the size of a real file: this allocates.
    pub fn zeroed(len: usize) -> Self {
        #[cfg(not(target_family = "wasm"))]
        if len >= 2 << 20
            && let Ok(pages) = huge_pages(len)
        {
            return Self { len, memory: Memory::Pages(pages) };
        }
        Self { len, memory: Memory::Lines(vec![Line([0; ALIGN]); len.div_ceil(ALIGN)]) }
    }

    /// `len` zero bytes, or `None` when the system does not grant that much memory.
    pub fn try_zeroed(len: usize) -> Option<Self> {
        #[cfg(not(target_family = "wasm"))]
        if len >= 2 << 20 {
            return Some(Self { len, memory: Memory::Pages(huge_pages(len).ok()?) });
        }
        let mut lines = Vec::new();
        lines.try_reserve_exact(len.div_ceil(ALIGN)).ok()?;
        lines.resize(len.div_ceil(ALIGN), Line([0; ALIGN]));
        Some(Self { len, memory: Memory::Lines(lines) })
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.as_mut_slice().copy_from_slice(bytes);
        buffer
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match &self.memory {
            Memory::Lines(lines) => &bytemuck::cast_slice(lines)[..self.len],
            #[cfg(not(target_family = "wasm"))]
            Memory::Pages(pages) => pages,
        }
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Lines(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.len],
            #[cfg(not(target_family = "wasm"))]
            Memory::Pages(pages) => pages,
        }
    }
}

#[cfg(not(target_family = "wasm"))]
fn huge_pages(len: usize) -> std::io::Result<memmap2::MmapMut> {
    let pages = memmap2::MmapMut::map_anon(len)?;
    #[cfg(target_os = "linux")]
    let _ = pages.advise(memmap2::Advice::HugePage);
    Ok(pages)
}

/// A range of shared [`AlignedBytes`].
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<AlignedBytes>,
    range: Range<usize>,
}

impl Bytes {
    /// The bytes `range` of `owner`. Panics when the range lies outside: callers validate first.
    pub fn new(owner: Arc<AlignedBytes>, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= owner.len, "range outside its buffer");
        Self { owner, range }
    }

    /// A copy of `bytes` in memory of its own.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let owner = Arc::new(AlignedBytes::copy_of(bytes));
        Self { range: 0..bytes.len(), owner }
    }

    /// The first `len` bytes, sharing the memory; `None` when there are fewer.
    pub fn prefix(&self, len: usize) -> Option<Self> {
        let range = self.range.start..self.range.start.checked_add(len)?;
        (range.end <= self.range.end).then(|| Self { owner: self.owner.clone(), range })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.owner.as_slice()[self.range.clone()]
    }
}

impl Default for Bytes {
    fn default() -> Self {
        Self::copy_of(&[])
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({})", self.range.len())
    }
}
