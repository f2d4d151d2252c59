//! The largest logits, chosen on the GPU.

use std::task::{Poll, ready};

use crate::backend::{Inner, check_rows, shape};
use crate::executor::Executor;
use crate::memory::{Matrix, Tensor, Vector};
use crate::plan::{BufferId, Cost};
use crate::shader::Shader;
use lowbit_core::Result;
use lowbit_core::backend::{MAX_TOP_K, Norm};
use lowbit_core::candidates::Candidate;

/// Candidates that a workgroup takes.
const HELD: usize = 1024;
/// Bytes of a candidate: its id and its rank.
const CANDIDATE: usize = 8;

/// How many candidates a workgroup keeps: one in greedy decoding, and the customary 40 with or without penalties.
const KEPT: [u32; 3] = [1, 64, MAX_TOP_K as u32];

/// What workgroups choose from, and how many they keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopKRound {
    /// Candidates that are kept.
    pub kept: u32,
    /// Logits, or what workgroups kept before.
    pub of_logits: bool,
}

impl TopKRound {
    /// All that there are.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        KEPT.into_iter().flat_map(|kept| [true, false].map(|of_logits| Self { kept, of_logits }))
    }
}

impl<E: Executor> Inner<E> {
    /// Asks for the `k` largest logits of a row of `x`.
    pub(crate) fn top_k(
        &mut self,
        x: &Tensor,
        row: usize,
        norm: Norm<'_, Vector>,
        output: &Matrix,
        k: usize,
    ) -> Result<()> {
        let Some(kept) = KEPT.into_iter().find(|kept| (1..=*kept as usize).contains(&k)) else {
            return shape("top-k", format!("{k} tokens, expected 1 to {MAX_TOP_K}"));
        };
        check_rows(x, &(row..row + 1))?;
        let logits = self.product_of_rows(x, row..row + 1, norm, output)?;
        let top = self.choose(logits, output.n, kept)?;
        self.ask(top, (k.min(output.n) * CANDIDATE) as u64)
    }

    /// The first of `n` logits in order, `kept` or more, or all if there are fewer.
    fn choose(&mut self, logits: BufferId, n: usize, kept: u32) -> Result<BufferId> {
        let (mut from, mut left, mut of_logits) = (logits, n, true);
        // Two buffers take turns.
        for turn in [0, 1].into_iter().cycle() {
            let groups = left.div_ceil(HELD);
            let bytes = groups * kept as usize * CANDIDATE;
            let to = self.candidates[turn].reserve(&mut self.device, bytes as u64)?;
            let read = left * if of_logits { size_of::<f32>() } else { CANDIDATE };
            let cost = Cost { others: (read + bytes) as u64, ..Cost::default() };
            let shader = Shader::TopK(TopKRound { kept, of_logits });
            self.plan.push(shader, &[left as u32, 0, 0, 0], &[from, to], [groups, 1], cost);
            (from, left, of_logits) = (to, groups * kept as usize, false);
            if groups == 1 {
                break;
            }
        }
        Ok(from)
    }

    /// The candidates that were asked for.
    pub(crate) fn take_top_k(&mut self, top: &mut Vec<Candidate>) -> Poll<Result<()>> {
        let bytes = ready!(self.device.executor.take())?;
        let words: Vec<u32> = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        top.clear();
        top.extend(words.as_chunks().0.iter().map(|[id, rank]| Candidate::of_rank(*id, *rank)));
        Poll::Ready(Ok(()))
    }
}
