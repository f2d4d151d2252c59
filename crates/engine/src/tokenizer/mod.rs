//! Text to tokens and back, as a `tokenizer.json` of Hugging Face says.
//!
//! Byte-pair encoding with the normalisers, pre-tokenizers and decoders that published language models use; anything
//! else is an error that names it. It is our own code because the libraries are larger than all else in the page
//! together: built for wasm32, `kitoken` 0.11 takes 2.1 MB and `tokenizers` 0.22 takes 2.7 MB; this takes a quarter of a
//! megabyte, most of it tables of Unicode.
//!
//! # Special tokens
//!
//! Text that spells a special token (`<|im_end|>`) becomes that token only where the caller says so. A chat prompt
//! mixes both: the template writes special tokens, and users write text that must not become one. So texts of users
//! are passed through [`Tokenizer::guard`] before they enter the template: it sets a mark, a character that occurs
//! nowhere else, before every place where a special token is spelt. [`Tokenizer::encode_guarded`] removes the marks
//! and takes the text behind a mark as text. A text without such places is not changed, so templates see what the user
//! wrote.

mod added;
mod bpe;
mod bytes;
mod definition;
mod pattern;
mod steps;
mod vocabulary;

use crate::{Error, Result};
use added::{AddedToken, Finder, Part};
use bpe::{Bpe, Merge, Merges};
use definition::Definition;
pub(crate) use definition::SCORED;
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;
use steps::{Decoder, Normalizer, PreTokenizer};
use vocabulary::{Strings, Vocabulary};

/// A tokenizer.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    /// By id: the bytes that the token stands for.
    bytes: Strings,
    special: FxHashSet<u32>,
    /// Added tokens found in the text as given, and in the normalised text.
    finders: [Finder; 2],
    normalizers: Vec<Normalizer>,
    pre_tokenizers: Vec<PreTokenizer>,
    bpe: Bpe,
    decoder: Decoder,
    surroundings: [Vec<u32>; 2],
}

/// An error at `field`.
fn error(field: impl Into<String>, problem: impl Into<String>) -> Error {
    Error::Tokenizer { field: field.into(), problem: problem.into() }
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// When it is defective, or has a component that is not supported.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        let definition: Definition =
            serde_json::from_slice(json).map_err(|e| error("JSON", e.to_string()))?;
        let vocabulary = vocabulary(&definition)?;
        let decoder = Decoder::new(&definition.decoder)?;
        let mut bytes = Strings::default();
        for id in 0..vocabulary.len() as u32 {
            bytes.push(&decoder.bytes(vocabulary.spelling(id)));
        }
        let pre_tokenizers = PreTokenizer::list(&definition.pre_tokenizer)?;
        let byte_level = pre_tokenizers.iter().any(|step| matches!(step, PreTokenizer::ByteLevel { .. }));
        let bpe = bpe(&definition.model, &vocabulary, byte_level)?;
        let normalizers = Normalizer::list(&definition.normalizer)?;
        let surroundings = steps::surroundings(&definition.post_processor)?;
        if let Some(id) = surroundings.iter().flatten().find(|&&id| id as usize >= vocabulary.len()) {
            return Err(error("post_processor", format!("token {id} does not exist")));
        }
        let special = definition.added_tokens.iter().filter(|t| t.special).map(|t| t.id).collect();
        Ok(Self {
            finders: finders(definition.added_tokens, &normalizers),
            vocabulary,
            bytes,
            special,
            normalizers,
            pre_tokenizers,
            bpe,
            decoder,
            surroundings,
        })
    }

    /// The tokens of `text`. What spells a special token becomes that token if `allow_special`, else it is text.
    pub fn encode(&self, text: &str, allow_special: bool) -> Vec<u32> {
        self.encode_if(text, |_| allow_special)
    }

    /// The tokens of a text in which only some of the places that spell a special token stand for it: those that do not
    /// follow a `mark`. The marks are removed. See [`Self::guard`].
    pub fn encode_guarded(&self, text: &str, mark: char) -> Vec<u32> {
        let mut clean = String::with_capacity(text.len());
        let mut guarded = FxHashSet::default();
        for c in text.chars() {
            if c == mark {
                guarded.insert(clean.len());
            } else {
                clean.push(c);
            }
        }
        self.encode_if(&clean, |at| !guarded.contains(&at))
    }

    /// Sets `mark` before every place of `text` that spells a special token, so that [`Self::encode_guarded`] takes it
    /// as text. `mark` must occur in no text; see [`unused_mark`].
    pub fn guard<'t>(&self, text: &'t str, mark: char) -> Cow<'t, str> {
        let mut out = String::new();
        let mut done = 0;
        for at in self.finders[0].special_starts(text) {
            out.push_str(&text[done..at]);
            out.push(mark);
            done = at;
        }
        if done == 0 && out.is_empty() {
            return Cow::Borrowed(text);
        }
        out.push_str(&text[done..]);
        Cow::Owned(out)
    }

    /// The text of `ids`; bytes that are no UTF-8 become U+FFFD. Special tokens are left out if `skip_special`.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let shown = ids.iter().filter(|&&id| !(skip_special && self.is_special(id)));
        let bytes: Vec<u8> = shown.flat_map(|&id| self.token_bytes(id)).copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        match text.strip_prefix(' ') {
            Some(rest) if self.decoder.strip_first_space => rest.to_owned(),
            _ => text.into_owned(),
        }
    }

    /// The bytes that a token stands for: often not whole characters. Empty for an id that no token has.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).unwrap_or_default()
    }

    /// Whether the token steers the model and is no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The token spelt so in the vocabulary: `<|im_end|>`, `Ġthe`.
    pub fn token_to_id(&self, spelling: &str) -> Option<u32> {
        self.vocabulary.id(spelling)
    }

    /// The spelling of a token in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<&str> {
        Some(self.vocabulary.spelling(id)).filter(|spelling| !spelling.is_empty())
    }

    /// The tokens that the model expects before a text that no chat template made, such as a BOS.
    pub fn prefix(&self) -> &[u32] {
        &self.surroundings[0]
    }

    /// The tokens that the model expects after such a text.
    pub fn suffix(&self) -> &[u32] {
        &self.surroundings[1]
    }

    /// Encodes; a special token that begins at byte `at` is one if `special(at)`.
    fn encode_if(&self, text: &str, special: impl Fn(usize) -> bool) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3);
        let mut scratch = bpe::Scratch::default();
        let allowed = |token: &AddedToken, at| !token.special || special(at);
        self.finders[0].split(text, allowed, |part| match part {
            Part::Token(id) => out.push(id),
            Part::Text { text, at } => self.encode_text(text, at == 0, &mut scratch, &mut out),
        });
        out
    }

    /// Encodes what lies between added tokens.
    fn encode_text(&self, text: &str, is_first: bool, scratch: &mut bpe::Scratch, out: &mut Vec<u32>) {
        let text = self.normalizers.iter().fold(Cow::Borrowed(text), |text, step| step.apply(text));
        self.finders[1].split(
            &text,
            |_, _| true,
            |part| match part {
                Part::Token(id) => out.push(id),
                Part::Text { text, at } => {
                    for piece in self.pieces(text, is_first && at == 0) {
                        self.bpe.encode(&self.vocabulary, &piece, scratch, out);
                    }
                }
            },
        );
    }

    fn pieces<'t>(&self, text: &'t str, is_first: bool) -> Vec<Cow<'t, str>> {
        let mut pieces = vec![Cow::Borrowed(text)];
        for step in &self.pre_tokenizers {
            let mut cut = Vec::with_capacity(pieces.len());
            for (i, piece) in pieces.into_iter().enumerate() {
                step.apply(piece, is_first && i == 0, &mut cut);
            }
            pieces = cut;
        }
        pieces
    }
}

/// A character that occurs in none of `texts`, for [`Tokenizer::guard`]. `None` if every candidate occurs, which only
/// a text made for it does.
pub fn unused_mark<'t>(texts: impl Iterator<Item = &'t str> + Clone) -> Option<char> {
    // Noncharacters: Unicode promises that no text needs them.
    ('\u{fdd0}'..='\u{fdef}').find(|&mark| texts.clone().all(|text| !text.contains(mark)))
}

/// All tokens by id.
fn vocabulary(definition: &Definition) -> Result<Vocabulary> {
    let Definition { model, added_tokens, .. } = definition;
    match model.kind.as_deref() {
        Some("BPE" | SCORED) => {}
        None if model.merges.len() > 0 => {}
        other => {
            let found = other.unwrap_or("missing");
            return Err(error("model.type", format!("{found} is not supported; supported: BPE")));
        }
    }
    let added = added_tokens.iter().map(|token| (token.content.as_str(), token.id));
    let all = model.vocab.iter().chain(added);
    // Published vocabularies have few holes; a lone huge id must not become a huge table.
    let limit = 2 * (model.vocab.len() + added_tokens.len()) + 4096;
    let mut tokens: Vec<&str> = Vec::new();
    for (token, id) in all {
        let index = id as usize;
        if index >= limit {
            return Err(error(
                "model.vocab",
                format!("token {token:?} has id {id}, expected less than {limit}"),
            ));
        }
        if index >= tokens.len() {
            tokens.resize(index + 1, "");
        }
        tokens[index] = token;
    }
    Ok(Vocabulary::new(&tokens))
}

fn bpe(model: &definition::Model, vocabulary: &Vocabulary, byte_level: bool) -> Result<Bpe> {
    for (field, affix) in [
        ("model.continuing_subword_prefix", &model.continuing_subword_prefix),
        ("model.end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if let Some(affix) = affix.as_deref().filter(|affix| !affix.is_empty()) {
            return Err(error(field, format!("{affix:?} is not supported; supported: none")));
        }
    }
    let unknown = match &model.unk_token {
        Some(token) => Some(
            vocabulary
                .id(token)
                .ok_or_else(|| error("model.unk_token", format!("{token:?} is not in the vocabulary")))?,
        ),
        None => None,
    };
    let bytes = if byte_level {
        Some(byte_table(|byte| vocabulary.id(bytes::stand_in(byte).encode_utf8(&mut [0; 4]))))
    } else {
        model.byte_fallback.then(|| byte_table(|byte| vocabulary.id(&format!("<0x{byte:02X}>"))))
    };
    Ok(Bpe {
        merges: match model.kind.as_deref() {
            Some(SCORED) => scores(&model.scores, vocabulary)?,
            _ => merges(&model.merges, vocabulary)?,
        },
        bytes,
        byte_level,
        unknown,
        fuse_unknown: model.fuse_unk,
        ignore_merges: model.ignore_merges,
    })
}

fn byte_table(id: impl Fn(u8) -> Option<u32>) -> Box<[Option<u32>; 256]> {
    let mut table = Box::new([None; 256]);
    for byte in 0..=255 {
        table[usize::from(byte)] = id(byte);
    }
    table
}

fn scores(scores: &[Option<f32>], vocabulary: &Vocabulary) -> Result<Merges> {
    let tokens = vocabulary.len();
    if scores.len() == tokens {
        return Ok(Merges::of_scores(scores));
    }
    Err(error(
        "model.scores",
        format!("there are {}, expected one for each of {tokens} tokens", scores.len()),
    ))
}

fn merges(merges: &definition::Merges, vocabulary: &Vocabulary) -> Result<Merges> {
    let mut table = FxHashMap::with_capacity_and_hasher(merges.len(), Default::default());
    let mut joined = String::new();
    for (rank, (left, right)) in (0..).zip(merges.iter()) {
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let id = |token: &str| {
            let problem = || format!("number {rank}: {token:?} is not in the vocabulary");
            vocabulary.id(token).ok_or_else(|| error("model.merges", problem()))
        };
        table.insert((id(left)?, id(right)?), Merge { rank, id: id(&joined)? });
    }
    Ok(Merges::Learnt(table))
}

/// Special tokens are always found in the text as given.
fn finders(tokens: Vec<AddedToken>, normalizers: &[Normalizer]) -> [Finder; 2] {
    let (given, mut normalized): (Vec<_>, Vec<_>) =
        tokens.into_iter().partition(|token| token.special || !token.normalized);
    for token in &mut normalized {
        let content =
            normalizers.iter().fold(Cow::Borrowed(&token.content[..]), |text, step| step.apply(text));
        token.content = content.into_owned();
    }
    [Finder::new(given), Finder::new(normalized)]
}

#[cfg(test)]
mod tests;
