//! A byte-level BPE vocabulary of a few hundred tokens.

use serde_json::{Value, json};

const SPECIALS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const WORDS: [&str; 24] = [
    "the",
    " the",
    " capital",
    " of",
    " France",
    " is",
    " Paris",
    "Hello",
    " world",
    " and",
    " to",
    " a",
    "user",
    "system",
    "assistant",
    " you",
    " are",
    " helpful",
    "What",
    "ing",
    " in",
    "er",
    "\n",
    " that",
];

/// Specials, then the 256 bytes, then merges.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// Tokens by id.
    pub tokens: Vec<String>,
    /// Pairs of tokens, joined by a space, in order of priority.
    pub merges: Vec<String>,
}

impl Default for Vocabulary {
    fn default() -> Self {
        let mut tokens: Vec<String> = SPECIALS.iter().map(|&s| s.to_owned()).collect();
        tokens.extend((0..=255).map(|byte| byte_char(byte).to_string()));
        let mut merges = Vec::new();
        for word in WORDS {
            let chars: Vec<char> = word.bytes().map(byte_char).collect();
            for end in 2..=chars.len() {
                let (left, right) = (&chars[..end - 1], chars[end - 1]);
                let left: String = left.iter().collect();
                let token = format!("{left}{right}");
                if !tokens.contains(&token) {
                    tokens.push(token);
                    merges.push(format!("{left} {right}"));
                }
            }
        }
        Self { tokens, merges }
    }
}

impl Vocabulary {
    /// Tokens 0, 1, 2: end of text, start and end of a turn.
    pub const SPECIALS: [&'static str; 3] = SPECIALS;

    /// The tokenizer as Hugging Face stores it: single digits, then byte-level BPE.
    pub fn tokenizer_json(&self) -> Value {
        let vocab: serde_json::Map<_, _> =
            self.tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
        let added: Vec<_> = SPECIALS
            .iter()
            .enumerate()
            .map(|(id, token)| {
                json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                       "normalized": false, "special": true})
            })
            .collect();
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": null,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": true},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}
            ]},
            "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                      "vocab": vocab, "merges": self.merges}
        })
    }
}

/// GPT-2's printable stand-in for a byte.
fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(256 + rank).unwrap_or('?')
}
