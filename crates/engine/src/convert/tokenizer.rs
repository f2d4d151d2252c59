//! The vocabulary of a GGUF file as a `tokenizer.json`.

use crate::Result;
use crate::tokenizer::SCORED;
use lowbit_core::Error;
use lowbit_core::import::gguf::Gguf;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

pub(super) const MODEL: &str = "tokenizer.ggml.model";
pub(super) const PRE: &str = "tokenizer.ggml.pre";
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const TYPES: &str = "tokenizer.ggml.token_type";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";

pub(super) const UNKNOWN: i64 = 2;
pub(super) const CONTROL: i64 = 3;
pub(super) const USER_DEFINED: i64 = 4;
pub(super) const BYTE: i64 = 6;

/// SentencePiece's stand-in for a space.
const SPACE: &str = "\u{2581}";

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How text is split before byte-level BPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Split {
    /// GPT-2's expression.
    Gpt2,
    /// Every digit alone, then GPT-2's expression.
    DigitsGpt2,
    /// Llama 3's expression; a piece that is a token is taken whole.
    Llama3,
    /// Qwen 2's expression on composed characters.
    Qwen2,
}

/// The values of `tokenizer.ggml.pre`.
pub(super) const SPLITS: &[(Split, &[&str])] = &[
    (Split::Gpt2, &["gpt-2", "gpt2", "default", "phi-2", "olmo", "mpt"]),
    (Split::DigitsGpt2, &["smollm", "starcoder", "refact", "command-r", "codeshell"]),
    (Split::Llama3, &["llama-bpe", "llama3", "llama-v3", "smaug-bpe", "dbrx"]),
    (Split::Qwen2, &["qwen2", "deepseek-r1-qwen"]),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    ByteLevel(Split),
    SentencePiece,
}

/// The vocabulary of a GGUF file.
pub(super) struct Vocabulary<'a> {
    header: &'a Gguf,
    tokens: &'a [String],
    types: Vec<i64>,
    ids: HashMap<&'a str, u32>,
    kind: Kind,
}

/// Serialised in the order of its fields, whatever the features of `serde_json`.
#[derive(Serialize)]
struct Bpe<'a> {
    r#type: &'static str,
    dropout: Option<f32>,
    unk_token: Option<&'a str>,
    continuing_subword_prefix: Option<&'a str>,
    end_of_word_suffix: Option<&'a str>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: BTreeMap<&'a str, u32>,
    merges: Vec<(&'a str, &'a str)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scores: Vec<Option<f32>>,
}

#[derive(Serialize)]
struct AddedToken<'a> {
    id: u32,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Serialize)]
struct Tokenizer<'a> {
    version: &'static str,
    truncation: Option<Value>,
    padding: Option<Value>,
    added_tokens: Vec<AddedToken<'a>>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Option<Value>,
    decoder: Value,
    model: Bpe<'a>,
}

/// The tokenizer of a GGUF file in the form of the `tokenizers` library (`tokenizer.json`).
///
/// # Errors
/// When a key is missing or of the wrong type, or the kind of tokenizer is not supported.
pub fn tokenizer_json(header: &Gguf) -> Result<Vec<u8>> {
    Vocabulary::new(header)?.tokenizer_json()
}

impl<'a> Vocabulary<'a> {
    /// # Errors
    /// When a key is missing or of the wrong type, a token occurs twice, or the kind of tokenizer is not supported.
    pub fn new(header: &'a Gguf) -> Result<Self> {
        for key in [MODEL, TOKENS] {
            header.required(key)?;
        }
        let tokens = header.texts(TOKENS)?.unwrap_or_default();
        let types = header.integers(TYPES)?.unwrap_or_else(|| vec![1; tokens.len()]);
        let fail = |key: &str, problem: String| Err(Error::malformed(&header.file, key, problem).into());
        if tokens.is_empty() || u32::try_from(tokens.len()).is_err() {
            return fail(TOKENS, format!("holds {} tokens", tokens.len()));
        }
        if types.len() != tokens.len() {
            return fail(TYPES, format!("holds {} types for {} tokens", types.len(), tokens.len()));
        }
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            if let Some(first) = ids.insert(token.as_str(), id as u32) {
                return fail(TOKENS, format!("tokens {first} and {id} are both {token:?}"));
            }
        }
        Ok(Self { header, tokens, types, ids, kind: kind(header)? })
    }

    /// Tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The id of a control token.
    pub fn control_token(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied().filter(|&id| self.types[id as usize] == CONTROL)
    }

    /// Whether texts begin with the begin-of-text token where the file does not say.
    pub fn adds_bos_by_default(&self) -> bool {
        matches!(self.kind, Kind::SentencePiece | Kind::ByteLevel(Split::Llama3))
    }

    /// The tokenizer in the form of the `tokenizers` library.
    pub fn tokenizer_json(&self) -> Result<Vec<u8>> {
        let (normalizer, pre_tokenizer, decoder) = match self.kind {
            Kind::ByteLevel(split) => {
                (byte_level_normalizer(split), byte_level_pre_tokenizer(split), byte_level(false))
            }
            Kind::SentencePiece => self.sentence_piece_steps()?,
        };
        let tokenizer = Tokenizer {
            version: "1.0",
            truncation: None,
            padding: None,
            added_tokens: self.added_tokens()?,
            normalizer,
            pre_tokenizer,
            post_processor: None,
            decoder,
            model: self.model()?,
        };
        // Strings, numbers and string-keyed maps only: JSON can always express them.
        Ok(serde_json::to_vec(&tokenizer).unwrap_or_default())
    }

    fn model(&self) -> Result<Bpe<'a>> {
        let sentence_piece = self.kind == Kind::SentencePiece;
        Ok(Bpe {
            r#type: if sentence_piece { SCORED } else { "BPE" },
            dropout: None,
            unk_token: if sentence_piece { self.unknown_token()? } else { None },
            continuing_subword_prefix: None,
            end_of_word_suffix: None,
            fuse_unk: sentence_piece,
            byte_fallback: sentence_piece,
            ignore_merges: self.kind == Kind::ByteLevel(Split::Llama3),
            vocab: self.ids.iter().map(|(&token, &id)| (token, id)).collect(),
            merges: if sentence_piece { Vec::new() } else { self.merges()? },
            scores: if sentence_piece { self.scores()? } else { Vec::new() },
        })
    }

    fn added_tokens(&self) -> Result<Vec<AddedToken<'a>>> {
        // SentencePiece finds the user's own tokens, which may be of spaces, in the text as it is normalised. With a prefix
        // they could not be normalised alone.
        let in_normalised = self.kind == Kind::SentencePiece && !self.adds_space_prefix()?;
        let added = |&id: &usize| matches!(self.types[id], UNKNOWN | CONTROL | USER_DEFINED);
        let token = |id: usize| AddedToken {
            id: id as u32,
            content: &self.tokens[id],
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: in_normalised && self.types[id] == USER_DEFINED,
            special: self.types[id] != USER_DEFINED,
        };
        Ok((0..self.tokens.len()).filter(added).map(token).collect())
    }

    fn merges(&self) -> Result<Vec<(&'a str, &'a str)>> {
        self.header.required(MERGES)?;
        let merges = self.header.texts(MERGES)?.unwrap_or_default();
        let mut pairs = Vec::with_capacity(merges.len());
        for (i, merge) in merges.iter().enumerate() {
            let pair = merge.split_once(' ').filter(|(left, right)| {
                let merged = [*left, *right].concat();
                [left, right, merged.as_str()].iter().all(|token| self.ids.contains_key(token))
            });
            let Some(pair) = pair else {
                let problem = format!("merge {i} is {merge:?}, expected two tokens that form a third");
                return Err(Error::malformed(&self.header.file, MERGES, problem).into());
            };
            pairs.push(pair);
        }
        Ok(pairs)
    }

    /// SentencePiece joins the neighbours whose union scores highest; what is no text is never one.
    fn scores(&self) -> Result<Vec<Option<f32>>> {
        self.header.required(SCORES)?;
        let scores = self.header.floats(SCORES)?.unwrap_or_default();
        let fail = |problem: String| Err(Error::malformed(&self.header.file, SCORES, problem).into());
        if scores.len() != self.tokens.len() {
            return fail(format!("holds {} scores for {} tokens", scores.len(), self.tokens.len()));
        }
        // JSON has no number for what is not finite; a token would silently lose its score.
        if let Some(i) = scores.iter().position(|score| !(*score as f32).is_finite()) {
            return fail(format!("score {i} is {}, expected a finite f32", scores[i]));
        }
        let is_text = |ty: &i64| !matches!(*ty, UNKNOWN | CONTROL | BYTE);
        Ok(scores.iter().zip(&self.types).map(|(score, ty)| is_text(ty).then_some(*score as f32)).collect())
    }

    /// What stands for text that the vocabulary cannot spell: the token that the file names, or else that of the type.
    fn unknown_token(&self) -> Result<Option<&'a str>> {
        let key = "tokenizer.ggml.unknown_token_id";
        let of_type = self.types.iter().zip(0u64..).find_map(|(ty, id)| (*ty == UNKNOWN).then_some(id));
        let has = |byte: u8| self.ids.contains_key(format!("<0x{byte:02X}>").as_str());
        match self.header.unsigned(key)?.or(of_type) {
            None if (0..=u8::MAX).all(has) => Ok(None),
            None => {
                let problem = "is missing, and so are tokens of bytes: text that the vocabulary cannot spell would be \
                               lost; convert the model again";
                Err(Error::malformed(&self.header.file, key, problem).into())
            }
            Some(id) => match usize::try_from(id).ok().and_then(|id| self.tokens.get(id)) {
                Some(token) => Ok(Some(token)),
                None => {
                    let problem = format!("is {id}, the vocabulary has {} tokens", self.tokens.len());
                    Err(Error::malformed(&self.header.file, key, problem).into())
                }
            },
        }
    }

    /// Whether SentencePiece sets a space before a text.
    fn adds_space_prefix(&self) -> Result<bool> {
        Ok(self.header.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true))
    }

    /// Normaliser, pre-tokenizer and decoder.
    fn sentence_piece_steps(&self) -> Result<(Value, Value, Value)> {
        let prefix = self.adds_space_prefix()?;
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
        let normalizer = match prefix {
            true => {
                json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace]})
            }
            false => replace,
        };
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if prefix {
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        Ok((normalizer, Value::Null, json!({"type": "Sequence", "decoders": decoders})))
    }
}

fn kind(header: &Gguf) -> Result<Kind> {
    match header.text(MODEL)?.unwrap_or_default() {
        "llama" => Ok(Kind::SentencePiece),
        "gpt2" => {
            let pre = header.text(PRE)?.unwrap_or("default");
            let split = SPLITS.iter().find(|(_, names)| names.contains(&pre));
            split.map(|&(split, _)| Kind::ByteLevel(split)).ok_or_else(|| {
                let known: Vec<_> = SPLITS.iter().flat_map(|(_, names)| *names).copied().collect();
                let hint = format!("supported: {}", known.join(", "));
                Error::unsupported(&header.file, PRE, format!("pre-tokenizer {pre:?}"), hint).into()
            })
        }
        other => Err(Error::unsupported(
            &header.file,
            MODEL,
            format!("tokenizer {other:?}"),
            "use a model with a gpt2 (byte-level BPE) or llama (SentencePiece) tokenizer",
        )
        .into()),
    }
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

pub(super) fn byte_level_normalizer(split: Split) -> Value {
    match split {
        Split::Qwen2 => json!({"type": "NFC"}),
        _ => Value::Null,
    }
}

pub(super) fn byte_level_pre_tokenizer(split: Split) -> Value {
    let isolated = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let steps = match split {
        Split::Gpt2 => return byte_level(true),
        Split::DigitsGpt2 => [json!({"type": "Digits", "individual_digits": true}), byte_level(true)],
        Split::Llama3 => [isolated(LLAMA3), byte_level(false)],
        Split::Qwen2 => [isolated(QWEN2), byte_level(false)],
    };
    json!({"type": "Sequence", "pretokenizers": steps})
}
