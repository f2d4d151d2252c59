//! Integer codes with a scale and a zero for a group of inputs: `w = scale * (code - zero)`.

use super::{SourceTensor, Taker, TensorSpec, Translate, Translation, source_tensor, words};
use crate::Result;
use lowbit_core::format::BLOCK_K;

/// How codes lie in words of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::convert::hugging_face) enum Order {
    /// GPTQ: words run along the inputs, those of zeros along the outputs; zeros are stored less `zero_less`.
    Gptq { zero_less: u32 },
    /// AWQ: words run along the outputs, of which neighbours are interleaved.
    Awq,
}

/// Which field of a word of AWQ holds output `i` of its eight.
const AWQ_FIELDS: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A quantised matrix of `n` outputs and `k` inputs.
#[derive(Clone, Debug)]
pub(super) struct Integers {
    pub order: Order,
    pub bits: usize,
    pub n: usize,
    pub k: usize,
    /// Inputs that share a scale.
    pub group: usize,
    /// Whether all zeros are the middle and groups are of neighbours: then codes and scales are kept one to one.
    pub symmetric: bool,
}

impl Integers {
    /// Takes the tensors of the matrix; `None` when it is not quantised.
    pub fn take(self, taker: &mut Taker<'_, '_>, spec: &TensorSpec) -> Result<Option<SourceTensor>> {
        let Self { order, bits, n, k, group, symmetric } = self;
        let stem = spec.hf_name.strip_suffix("weight").unwrap_or(&spec.hf_name);
        let named = |suffix: &str| format!("{stem}{suffix}");
        if !taker.tensors.contains_key(named("qweight").as_str()) {
            return Ok(None);
        }
        let (per_word, groups) = (32 / bits, k.div_ceil(group));
        let shape = match order {
            Order::Gptq { .. } => [k / per_word, n],
            Order::Awq => [k, n / per_word],
        };
        let weight = taker.checked(&named("qweight"), "I32", &shape)?;
        if !n.is_multiple_of(per_word) || !k.is_multiple_of(BLOCK_K) {
            let problem = format!("{n} x {k} weights, expected multiples of {per_word} and {BLOCK_K}");
            return Err(taker.fail(&weight, problem));
        }
        let zeros = taker.checked(&named("qzeros"), "I32", &[groups, n / per_word])?;
        let scales = taker.checked(&named("scales"), "F16", &[groups, n])?;
        let mut parts = vec![zeros.part(), scales.part()];
        if taker.tensors.contains_key(named("g_idx").as_str()) {
            parts.push(taker.checked(&named("g_idx"), "I32", &[k])?.part());
        }
        let kept = symmetric && group.is_multiple_of(BLOCK_K);
        let name = match (order, bits) {
            (Order::Awq, _) => "AWQ",
            (_, 4) => "GPTQ of 4 bits",
            _ => "GPTQ of 8 bits",
        };
        let ty = match (kept, bits) {
            (false, _) => "F32",
            (true, 4) => "Q4_0",
            (true, _) => "Q8_0",
        };
        let by = Box::new(Self { symmetric: kept, ..self });
        let translation = Translation { name, row_bytes: k * bits / 8, whole: true, parts, by };
        Ok(source_tensor(&weight, ty, translation))
    }

    /// A field of a word.
    fn field(&self, bytes: &[u8], word: usize, field: usize) -> u32 {
        u32::from_le_bytes(words(bytes)[word]) >> (self.bits * field) & ((1 << self.bits) - 1)
    }

    fn code(&self, bytes: &[u8], row: usize, j: usize) -> u32 {
        let per_word = 32 / self.bits;
        match self.order {
            Order::Gptq { .. } => self.field(bytes, j / per_word * self.n + row, j % per_word),
            Order::Awq => self.field(bytes, (j * self.n + row) / per_word, AWQ_FIELDS[row % 8]),
        }
    }

    fn zero(&self, bytes: &[u8], group: usize, row: usize) -> u32 {
        let per_word = 32 / self.bits;
        let word = (group * self.n + row) / per_word;
        match self.order {
            Order::Gptq { zero_less } => {
                (self.field(bytes, word, row % per_word) + zero_less) & ((1 << self.bits) - 1)
            }
            Order::Awq => self.field(bytes, word, AWQ_FIELDS[row % 8]),
        }
    }

    /// The group of every input.
    fn groups(&self, g_idx: Option<&Vec<u8>>) -> std::result::Result<Vec<usize>, String> {
        let Some(g_idx) = g_idx else {
            return Ok((0..self.k).map(|j| j / self.group).collect());
        };
        let groups = self.k.div_ceil(self.group);
        let group = |(j, word): (usize, &[u8; 4])| {
            let (group, expected) = (u32::from_le_bytes(*word) as usize, j / self.group);
            if group >= groups {
                return Err(format!("g_idx[{j}] is {group}, there are {groups} groups"));
            }
            if self.symmetric && group != expected {
                return Err(format!("g_idx[{j}] is {group}, expected {expected} where desc_act is false"));
            }
            Ok(group)
        };
        words(g_idx).iter().enumerate().map(group).collect()
    }

    /// Appends a row as blocks of Q4_0 or Q8_0: scale, codes.
    fn blocks(&self, row: usize, bytes: &[u8], scales: &[u8], out: &mut Vec<u8>) {
        for first in (0..self.k).step_by(BLOCK_K) {
            let at = 2 * (first / self.group * self.n + row);
            out.extend(&scales[at..at + 2]);
            let code = |i: usize| self.code(bytes, row, first + i) as u8;
            match self.bits {
                4 => out.extend((0..BLOCK_K / 2).map(|i| code(i) | code(i + BLOCK_K / 2) << 4)),
                // Signed: 128 less.
                _ => out.extend((0..BLOCK_K).map(|i| code(i) ^ 0x80)),
            }
        }
    }
}

impl Translate for Integers {
    fn translate(
        &self,
        bytes: &[u8],
        _first_row: usize,
        parts: &[Vec<u8>],
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), String> {
        let [zeros, scales, rest @ ..] = parts else {
            return Err("has no scales".to_owned());
        };
        let (groups, middle) = (self.groups(rest.first())?, 1 << (self.bits - 1));
        let values = super::halves(scales)?;
        for row in 0..self.n {
            if !self.symmetric {
                for (j, group) in groups.iter().enumerate() {
                    let code = self.code(bytes, row, j) as i32 - self.zero(zeros, *group, row) as i32;
                    out.extend((values[group * self.n + row] * code as f32).to_le_bytes());
                }
                continue;
            }
            for group in 0..self.k.div_ceil(self.group) {
                let zero = self.zero(zeros, group, row);
                if zero != middle {
                    return Err(format!(
                        "zero [{group}, {row}] is {zero}, expected {middle} where sym is true"
                    ));
                }
            }
            self.blocks(row, bytes, scales, out);
        }
        Ok(())
    }
}
