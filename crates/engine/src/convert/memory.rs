//! A conversion into memory.

use super::Plan;
use crate::Result;
use lowbit_core::Error;
use lowbit_core::buffer::AlignedBytes;
use lowbit_core::container::{Artifact, chunk_hashes};
use std::ops::Range;
use std::sync::Arc;

/// A conversion whose result is kept in one region of memory, which becomes the loaded model without a copy.
///
/// Give the bytes of every step in turn: `while let Some((file, range)) = it.next() { it.push(bytes)?; }`, then
/// [`InMemory::finish`].
pub struct InMemory {
    plan: Plan,
    data: AlignedBytes,
    done: usize,
}

impl InMemory {
    /// Allocates the data region.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn new(plan: Plan) -> Result<Self> {
        let len = plan.layout().data_len();
        let Some(mut data) = AlignedBytes::try_zeroed(len) else {
            let file = plan.files().first().cloned().unwrap_or_default();
            return Err(Error::no_memory_for_model(&file, len).into());
        };
        plan.write_documents(&mut writer(&mut data))?;
        Ok(Self { plan, data, done: 0 })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The next bytes to push: index of the file and range in it. `None` when all are there.
    pub fn next_range(&self) -> Option<(usize, Range<u64>)> {
        self.plan.steps().get(self.done).map(|step| (step.file, step.range.clone()))
    }

    /// Packs the bytes of [`InMemory::next_range`].
    ///
    /// # Errors
    /// When they are not as many or not sound; they may then be fetched and pushed again.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        if self.done < self.plan.steps().len() {
            self.plan.run(self.done, bytes, &mut writer(&mut self.data))?;
            self.done += 1;
        }
        Ok(())
    }

    /// The data region, to be hashed chunk by chunk ([`lowbit_core::container::Layout::chunk_range`]) or written to a
    /// cache behind the header.
    pub fn data(&self) -> &[u8] {
        self.data.as_slice()
    }

    /// The bytes of the artifact before its data region, and the artifact. `chunks` are the SHA-256 of every chunk in
    /// hexadecimal where the caller has computed them; they are computed here otherwise.
    ///
    /// # Errors
    /// When steps are missing, or the hashes are not as many as the chunks.
    pub fn finish(self, chunks: Option<Vec<String>>) -> Result<(Vec<u8>, Artifact)> {
        let layout = self.plan.layout();
        if let Some((file, range)) = self.next_range() {
            let problem = format!("ended before byte {}; fetch the file again", range.start);
            return Err(Error::malformed(&self.plan.files()[file], "data", problem).into());
        }
        let data = self.data.as_slice();
        let chunks = chunks.unwrap_or_else(|| chunk_hashes(data, layout.manifest().chunk_size));
        let bytes = layout.header_bytes(chunks, "")?;
        let header = layout.header(&bytes)?;
        Ok((bytes, Artifact::new(header, Arc::new(self.data))?))
    }
}

fn writer(data: &mut AlignedBytes) -> impl FnMut(usize, &[u8]) -> Result<()> {
    |start, bytes| {
        data.as_mut_slice()[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}
