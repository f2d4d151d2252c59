//! A `tokenizer.json` as the vocabulary of a GGUF file: the inverse of `convert/tokenizer.rs`.

use super::header::HeaderWriter;
use crate::Result;
use crate::arch::ModelConfig;
use crate::convert::TOKENIZER;
use crate::convert::tokenizer::{
    BYTE, CONTROL, MERGES, MODEL, PRE, SCORES, SPLITS, Split, TOKENS, TYPES, UNKNOWN, USER_DEFINED,
    byte_level_normalizer, byte_level_pre_tokenizer,
};
use crate::tokenizer::SCORED;
use lowbit_core::Error;
use serde_json::Value;
use std::collections::BTreeMap;

const NORMAL: i32 = 1;
const UNUSED: i32 = 5;

#[derive(PartialEq, serde::Deserialize)]
struct Tokenizer {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    model: Model,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
struct Added {
    id: usize,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
}

#[derive(PartialEq, serde::Deserialize)]
struct Model {
    r#type: Option<String>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    ignore_merges: bool,
    vocab: BTreeMap<String, usize>,
    #[serde(default)]
    merges: Vec<Merge>,
    #[serde(default)]
    scores: Vec<Option<f32>>,
}

/// Both forms that the `tokenizers` library writes.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Text(String),
}

impl Merge {
    fn text(&self) -> String {
        match self {
            Self::Pair(left, right) => format!("{left} {right}"),
            Self::Text(text) => text.clone(),
        }
    }
}

impl PartialEq for Merge {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

/// Writes the vocabulary and the special tokens.
///
/// # Errors
/// When the tokenizer is malformed or of a kind that GGUF files of this model cannot hold.
pub(super) fn write(writer: &mut HeaderWriter, file: &str, json: &[u8], config: &ModelConfig) -> Result<()> {
    let tokenizer = parse(file, json)?;
    let scored = tokenizer.model.r#type.as_deref() == Some(SCORED);
    if scored {
        writer.text(MODEL, "llama");
        writer.flag("tokenizer.ggml.add_space_prefix", tokenizer.normalizer["type"] == "Sequence");
    } else {
        writer.text(MODEL, "gpt2");
        writer.text(PRE, pre(file, &tokenizer)?);
    }
    let (tokens, types) = tokens(file, &tokenizer, config.vocab_size)?;
    writer.texts(TOKENS, &tokens);
    writer.i32s(TYPES, &types);
    if scored {
        let score = |id: usize| tokenizer.model.scores.get(id).copied().flatten().unwrap_or_default();
        writer.f32s(SCORES, &(0..tokens.len()).map(score).collect::<Vec<_>>());
        let unknown = tokenizer.model.unk_token.as_ref().and_then(|token| tokenizer.model.vocab.get(token));
        if let Some(&id) = unknown {
            writer.u32("tokenizer.ggml.unknown_token_id", id as u32);
        }
    } else {
        writer.texts(MERGES, &tokenizer.model.merges.iter().map(Merge::text).collect::<Vec<_>>());
    }
    if let Some(bos) = config.tokens.bos {
        writer.u32("tokenizer.ggml.bos_token_id", bos);
    }
    for (name, id) in ["eos", "eot", "eom"].iter().zip(&config.tokens.eos) {
        writer.u32(&format!("tokenizer.ggml.{name}_token_id"), *id);
    }
    writer.flag("tokenizer.ggml.add_bos_token", config.tokens.add_bos);
    Ok(())
}

/// Checks that a tokenizer says what another one says, which was written and read again: the same tokens, and how text
/// becomes them. The latter may have tokens of its own where the former has none.
///
/// # Errors
/// When it does not.
pub(super) fn compare(file: &str, json: &[u8], again: &[u8]) -> Result<()> {
    let [before, after] = [parse(file, json)?, parse(file, again)?].map(|mut tokenizer| {
        let added = tokenizer.added_tokens.iter().map(|added| (added.content.clone(), added.id));
        tokenizer.model.vocab.extend(added.collect::<Vec<_>>());
        tokenizer.added_tokens.sort();
        if tokenizer.model.r#type.as_deref() != Some(SCORED) {
            // Bytes spell every text.
            tokenizer.model.unk_token = None;
        }
        tokenizer
    });
    let known = |(token, id): (&String, &usize)| after.model.vocab.get(token) == Some(id);
    let has_tokens = before.model.vocab.iter().all(known);
    let vocab = after.model.vocab.clone();
    if has_tokens && after == (Tokenizer { model: Model { vocab, ..before.model }, ..before }) {
        return Ok(());
    }
    let hint = "pack the GGUF file with --reversible, and export that";
    Err(Error::unsupported(file, TOKENIZER, "a tokenizer that GGUF files cannot hold as it is", hint).into())
}

fn parse(file: &str, json: &[u8]) -> Result<Tokenizer> {
    let bad = |e| Error::malformed(file, TOKENIZER, format!("{e}; pack the model again"));
    Ok(serde_json::from_slice(json).map_err(bad)?)
}

/// The name of the way in which text is split.
fn pre(file: &str, tokenizer: &Tokenizer) -> Result<&'static str> {
    let is_bpe = matches!(tokenizer.model.r#type.as_deref(), Some("BPE"));
    let split = SPLITS.iter().find(|&&(split, _)| {
        is_bpe
            && byte_level_pre_tokenizer(split) == tokenizer.pre_tokenizer
            && byte_level_normalizer(split) == tokenizer.normalizer
            && (split == Split::Llama3) == tokenizer.model.ignore_merges
    });
    match split.and_then(|(_, names)| names.first()) {
        Some(name) => Ok(name),
        None => {
            let hint = "GGUF files hold byte-level BPE of known kinds";
            Err(Error::unsupported(file, TOKENIZER, "this tokenizer", hint).into())
        }
    }
}

/// Every token and its type.
fn tokens(file: &str, tokenizer: &Tokenizer, count: usize) -> Result<(Vec<String>, Vec<i32>)> {
    let fail = |problem: String| Err(Error::malformed(file, TOKENIZER, problem).into());
    // A token for every row of the embedding table, which is in the file.
    let mut tokens: Vec<String> = (0..count).map(|id| format!("[PAD{id}]")).collect();
    let mut types = vec![UNUSED; count];
    for (token, &id) in &tokenizer.model.vocab {
        let Some(slot) = tokens.get_mut(id) else {
            return fail(format!("token {token:?} has the id {id}, the model has {count}"));
        };
        token.clone_into(slot);
        types[id] = NORMAL;
    }
    if !tokenizer.model.scores.is_empty() {
        for byte in 0..=u8::MAX {
            if let Some(&id) = tokenizer.model.vocab.get(&format!("<0x{byte:02X}>")) {
                types[id] = if tokenizer.model.scores.get(id) == Some(&None) { BYTE as i32 } else { NORMAL };
            }
        }
    }
    for added in &tokenizer.added_tokens {
        let Some(slot) = tokens.get_mut(added.id) else {
            return fail(format!("token {:?} has the id {}, the model has {count}", added.content, added.id));
        };
        added.content.clone_into(slot);
        let is_unknown = tokenizer.model.unk_token.as_deref() == Some(&added.content);
        types[added.id] = match added.special {
            true if is_unknown => UNKNOWN,
            true => CONTROL,
            false => USER_DEFINED,
        } as i32;
    }
    Ok((tokens, types))
}
