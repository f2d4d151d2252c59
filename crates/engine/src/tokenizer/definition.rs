//! `tokenizer.json` as it is written.

use super::added::AddedToken;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::fmt::Formatter;

/// The file. What has a `type` of its own stays JSON here.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Definition {
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub(super) normalizer: Value,
    #[serde(default)]
    pub(super) pre_tokenizer: Value,
    #[serde(default)]
    pub(super) post_processor: Value,
    #[serde(default)]
    pub(super) decoder: Value,
    pub(super) model: Model,
}

/// The model: BPE with merges, or with scores.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Model {
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) unk_token: Option<String>,
    pub(super) continuing_subword_prefix: Option<String>,
    pub(super) end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub(super) fuse_unk: bool,
    #[serde(default)]
    pub(super) byte_fallback: bool,
    #[serde(default)]
    pub(super) ignore_merges: bool,
    pub(super) vocab: Vocab,
    #[serde(default)]
    pub(super) merges: Merges,
    /// By id, for the type [`SCORED`]: how early neighbours become the token; `None`: never.
    #[serde(default)]
    pub(super) scores: Vec<Option<f32>>,
}

/// The type of a model of SentencePiece, which is ours: the `tokenizers` library knows merges only, and those of a large
/// vocabulary are several times as large as its scores.
pub(crate) const SCORED: &str = "ScoredBPE";

/// Spellings one after another in one string, each with its end and its id.
#[derive(Debug, Default)]
pub(super) struct Vocab {
    text: String,
    entries: Vec<(usize, u32)>,
}

impl Vocab {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        let mut start = 0;
        self.entries.iter().map(move |&(end, id)| (&self.text[std::mem::replace(&mut start, end)..end], id))
    }
}

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vocab;
            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map from token to id")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
                let mut vocab = Vocab::default();
                while map.next_key_seed(Append(&mut vocab.text))?.is_some() {
                    let id = map.next_value()?;
                    vocab.entries.push((vocab.text.len(), id));
                }
                Ok(vocab)
            }
            /// Of another type of model, which is reported later.
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocab, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Vocab::default())
            }
        }
        deserializer.deserialize_any(Entries)
    }
}

/// Pairs of spellings one after another in one string, each with the ends of its two parts.
#[derive(Debug, Default)]
pub(super) struct Merges {
    text: String,
    cuts: Vec<(usize, usize)>,
}

impl Merges {
    pub(super) fn len(&self) -> usize {
        self.cuts.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut start = 0;
        self.cuts.iter().map(move |&(middle, end)| {
            let start = std::mem::replace(&mut start, end);
            (&self.text[start..middle], &self.text[middle..end])
        })
    }
}

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Merges;
            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of merges")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merges, A::Error> {
                let mut merges = Merges::default();
                while let Some(()) = list.next_element_seed(Pair(&mut merges))? {}
                Ok(merges)
            }
        }
        deserializer.deserialize_seq(Pairs)
    }
}

/// One merge: `"a b"` or `["a", "b"]`.
struct Pair<'m>(&'m mut Merges);

impl<'de> serde::de::DeserializeSeed<'de> for Pair<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Pair<'_> {
    type Value = ();
    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("two tokens, as one string with a space between them or as a list")
    }
    fn visit_str<E: serde::de::Error>(self, pair: &str) -> Result<(), E> {
        let (left, right) = pair.split_once(' ').ok_or_else(|| E::custom(format!("no space in {pair:?}")))?;
        self.0.text.push_str(left);
        let middle = self.0.text.len();
        self.0.text.push_str(right);
        self.0.cuts.push((middle, self.0.text.len()));
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let first = list.next_element_seed(Append(&mut self.0.text))?;
        let middle = self.0.text.len();
        let second = list.next_element_seed(Append(&mut self.0.text))?;
        if first.is_none() || second.is_none() || list.next_element::<IgnoredAny>()?.is_some() {
            return Err(A::Error::custom("a merge must have two tokens"));
        }
        self.0.cuts.push((middle, self.0.text.len()));
        Ok(())
    }
}

/// Appends a string, without an allocation of its own.
struct Append<'s>(&'s mut String);

impl<'de> serde::de::DeserializeSeed<'de> for Append<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Append<'_> {
    type Value = ();
    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("a token")
    }
    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        self.0.push_str(text);
        Ok(())
    }
}
