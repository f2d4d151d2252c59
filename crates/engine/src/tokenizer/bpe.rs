//! Byte-pair encoding: a piece of text becomes symbols, and neighbours are merged, the earliest learnt pair first.

use super::vocabulary::Vocabulary;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No symbol.
const NONE: u32 = u32::MAX;

/// Which neighbours become one, and in which order.
#[derive(Clone, Debug)]
pub(super) enum Merges {
    /// Of two neighbours: when they were learnt, and what they become.
    Learnt(FxHashMap<(u32, u32), Merge>),
    /// SentencePiece's: two become the token of their joined spellings, by token: the rank of that, [`NONE`] for never.
    Scored(Vec<u32>),
}

impl Merges {
    /// Of the scores of all tokens by id; neighbours become the token of the highest score first, and none without a score.
    pub(super) fn of_scores(scores: &[Option<f32>]) -> Self {
        let rank = |score: f32| {
            // Made such that larger floats are larger integers.
            let bits = (score + 0.0).to_bits();
            let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
            !ascending
        };
        Self::Scored(scores.iter().map(|score| score.map_or(NONE, rank)).collect())
    }

    fn of(&self, vocabulary: &Vocabulary, left: u32, right: u32) -> Option<Merge> {
        match self {
            Self::Learnt(merges) => merges.get(&(left, right)).copied(),
            Self::Scored(ranks) => {
                let id = vocabulary.joined(left, right)?;
                let rank = *ranks.get(id as usize)?;
                (rank != NONE).then_some(Merge { rank, id })
            }
        }
    }
}

/// The merges of a vocabulary, and what becomes of characters that it does not have.
#[derive(Clone, Debug)]
pub(super) struct Bpe {
    pub(super) merges: Merges,
    /// The token of each byte: of its stand-in for a byte-level vocabulary, else `<0x..>` if bytes are the fallback.
    pub(super) bytes: Option<Box<[Option<u32>; 256]>>,
    /// Pieces are bytes, not characters.
    pub(super) byte_level: bool,
    /// For characters that have no token.
    pub(super) unknown: Option<u32>,
    /// Several unknown characters in a row give one unknown token.
    pub(super) fuse_unknown: bool,
    /// A piece that is itself a token is not taken apart.
    pub(super) ignore_merges: bool,
}

/// What becomes of two neighbours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merge {
    pub(super) rank: u32,
    pub(super) id: u32,
}

/// A symbol in a doubly linked list.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    id: u32,
    before: u32,
    after: u32,
    merged_away: bool,
}

/// Memory of an encoding, kept from one piece to the next.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    symbols: Vec<Symbol>,
    /// `(rank, position, id)`: the earliest learnt, then the leftmost.
    queue: BinaryHeap<Reverse<(u32, u32, u32)>>,
    spelling: String,
}

impl Bpe {
    /// Appends the tokens of one piece to `out`.
    pub(super) fn encode(
        &self,
        vocabulary: &Vocabulary,
        piece: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        if self.ignore_merges
            && let Some(id) = self.whole(vocabulary, piece, scratch)
        {
            return out.push(id);
        }
        scratch.symbols.clear();
        if self.byte_level {
            self.push_bytes(piece.as_bytes(), scratch);
        } else {
            self.push_chars(vocabulary, piece, scratch);
        }
        self.merge(vocabulary, scratch);
        out.extend(scratch.symbols.iter().filter(|s| !s.merged_away).map(|s| s.id));
    }

    fn whole(&self, vocabulary: &Vocabulary, piece: &str, scratch: &mut Scratch) -> Option<u32> {
        if !self.byte_level {
            return vocabulary.id(piece);
        }
        scratch.spelling.clear();
        scratch.spelling.extend(piece.bytes().map(super::bytes::stand_in));
        vocabulary.id(&scratch.spelling)
    }

    fn push_bytes(&self, piece: &[u8], scratch: &mut Scratch) {
        for &byte in piece {
            match self.bytes.as_ref().and_then(|bytes| bytes[usize::from(byte)]) {
                Some(id) => scratch.push(id),
                None => self.push_unknown(scratch),
            }
        }
    }

    fn push_chars(&self, vocabulary: &Vocabulary, piece: &str, scratch: &mut Scratch) {
        for (at, c) in piece.char_indices() {
            let spelling = &piece[at..at + c.len_utf8()];
            if let Some(id) = vocabulary.id(spelling) {
                scratch.push(id);
                continue;
            }
            let fallback = |bytes: &[Option<u32>; 256]| -> Option<Vec<u32>> {
                spelling.bytes().map(|byte| bytes[usize::from(byte)]).collect()
            };
            match self.bytes.as_deref().and_then(fallback) {
                Some(ids) => ids.into_iter().for_each(|id| scratch.push(id)),
                None => self.push_unknown(scratch),
            }
        }
    }

    fn push_unknown(&self, scratch: &mut Scratch) {
        if let Some(id) = self.unknown
            && !(self.fuse_unknown && scratch.symbols.last().is_some_and(|last| last.id == id))
        {
            scratch.push(id);
        }
    }

    fn merge(&self, vocabulary: &Vocabulary, scratch: &mut Scratch) {
        let Scratch { symbols, queue, .. } = scratch;
        let propose = |queue: &mut BinaryHeap<_>, symbols: &[Symbol], at: u32| {
            let left = symbols[at as usize];
            if left.after != NONE
                && let Some(merge) = self.merges.of(vocabulary, left.id, symbols[left.after as usize].id)
            {
                queue.push(Reverse((merge.rank, at, merge.id)));
            }
        };
        queue.clear();
        for at in 0..symbols.len() as u32 {
            propose(queue, symbols, at);
        }
        while let Some(Reverse((_, at, id))) = queue.pop() {
            let left = symbols[at as usize];
            if left.merged_away || left.after == NONE {
                continue;
            }
            let right = symbols[left.after as usize];
            // The proposal may be older than another merge of the same symbols.
            if self.merges.of(vocabulary, left.id, right.id).is_none_or(|merge| merge.id != id) {
                continue;
            }
            symbols[left.after as usize].merged_away = true;
            symbols[at as usize] = Symbol { id, after: right.after, ..left };
            if right.after != NONE {
                symbols[right.after as usize].before = at;
            }
            if left.before != NONE {
                propose(queue, symbols, left.before);
            }
            propose(queue, symbols, at);
        }
    }
}

impl Scratch {
    fn push(&mut self, id: u32) {
        let at = self.symbols.len() as u32;
        let before = match self.symbols.last_mut() {
            Some(last) => {
                last.after = at;
                at - 1
            }
            None => NONE,
        };
        self.symbols.push(Symbol { id, before, after: NONE, merged_away: false });
    }
}
