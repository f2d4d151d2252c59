//! The tokens: their spelling in `tokenizer.json`, and the bytes that they stand for.

use hashbrown::HashTable;
use rustc_hash::FxHasher;
use std::hash::Hasher;

/// Strings one after another in one allocation.
#[derive(Clone, Debug, Default)]
pub(super) struct Strings {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Strings {
    pub(super) fn push(&mut self, string: &[u8]) {
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len());
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, i: usize) -> Option<&[u8]> {
        let end = *self.ends.get(i)?;
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        Some(&self.bytes[start..end])
    }
}

/// The tokens by id and by spelling.
#[derive(Clone, Debug)]
pub(super) struct Vocabulary {
    /// By id; empty where no token has the id.
    spellings: Strings,
    ids: HashTable<u32>,
    /// Bytes of the longest spelling.
    longest: usize,
}

impl Vocabulary {
    /// Tokens by id; `""` is no token. Of equal spellings the last counts.
    pub(super) fn new(tokens: &[&str]) -> Self {
        let mut spellings = Strings::default();
        let mut ids: HashTable<u32> = HashTable::with_capacity(tokens.len());
        for (id, token) in (0u32..).zip(tokens) {
            spellings.push(token.as_bytes());
            if !token.is_empty() {
                let same = |&other: &u32| tokens[other as usize] == *token;
                let rehash = |&other: &u32| hash(tokens[other as usize].as_bytes());
                *ids.entry(hash(token.as_bytes()), same, rehash).or_insert(id).get_mut() = id;
            }
        }
        let longest = tokens.iter().map(|token| token.len()).max().unwrap_or(0);
        Self { spellings, ids, longest }
    }

    /// One more than the largest id.
    pub(super) fn len(&self) -> usize {
        self.spellings.len()
    }

    pub(super) fn id(&self, spelling: &str) -> Option<u32> {
        self.find(spelling.as_bytes())
    }

    /// The token that is spelt as two others in a row.
    pub(super) fn joined(&self, left: u32, right: u32) -> Option<u32> {
        let [left, right] = [left, right].map(|id| self.spellings.get(id as usize).unwrap_or_default());
        let len = left.len() + right.len();
        if len > self.longest {
            return None;
        }
        let (mut small, mut large) = ([0; 64], Vec::new());
        let spelling = if let Some(spelling) = small.get_mut(..len) {
            spelling
        } else {
            large.resize(len, 0);
            &mut large
        };
        spelling[..left.len()].copy_from_slice(left);
        spelling[left.len()..].copy_from_slice(right);
        self.find(spelling)
    }

    fn find(&self, spelling: &[u8]) -> Option<u32> {
        let same = |&id: &u32| self.spellings.get(id as usize) == Some(spelling);
        self.ids.find(hash(spelling), same).copied()
    }

    /// Empty for an id that no token has.
    pub(super) fn spelling(&self, id: u32) -> &str {
        let bytes = self.spellings.get(id as usize).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}
