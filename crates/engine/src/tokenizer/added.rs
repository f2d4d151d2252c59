//! Tokens that are found in the text as they are written, before anything else happens to it.

use rustc_hash::FxHashMap;

/// One of `added_tokens`.
#[derive(Clone, Debug, serde::Deserialize)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) content: String,
    /// Found only where no word goes on before or after it.
    #[serde(default)]
    pub(super) single_word: bool,
    /// White space before it belongs to it.
    #[serde(default)]
    pub(super) lstrip: bool,
    /// White space after it belongs to it.
    #[serde(default)]
    pub(super) rstrip: bool,
    /// Found in the normalised text, not in the text as given.
    #[serde(default)]
    pub(super) normalized: bool,
    /// Steers the model; no text of a user may become it.
    #[serde(default)]
    pub(super) special: bool,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Part<'t> {
    Text {
        text: &'t str,
        /// Where in the whole text it begins.
        at: usize,
    },
    Token(u32),
}

/// Finds added tokens; of several at one place the longest.
#[derive(Clone, Debug)]
pub(super) struct Finder {
    tokens: Vec<AddedToken>,
    /// A trie: what follows a node by a byte. The root is 0.
    children: FxHashMap<(usize, u8), usize>,
    /// By node: the token that ends there.
    ends: Vec<Option<usize>>,
    /// Whether a token begins with the byte.
    begins: [bool; 256],
}

impl Finder {
    pub(super) fn new(tokens: Vec<AddedToken>) -> Self {
        let mut finder =
            Self { children: FxHashMap::default(), ends: vec![None], begins: [false; 256], tokens };
        for (i, token) in finder.tokens.iter().enumerate() {
            let Some(&first) = token.content.as_bytes().first() else { continue };
            finder.begins[usize::from(first)] = true;
            let mut node = 0;
            for &byte in token.content.as_bytes() {
                node = *finder.children.entry((node, byte)).or_insert_with(|| {
                    finder.ends.push(None);
                    finder.ends.len() - 1
                });
            }
            finder.ends[node] = Some(i);
        }
        finder
    }

    /// Cuts `text` into added tokens and what lies between them. A token for which `allowed` (given where it begins) is
    /// false stays text.
    pub(super) fn split<'t>(
        &self,
        text: &'t str,
        allowed: impl Fn(&AddedToken, usize) -> bool,
        mut each: impl FnMut(Part<'t>),
    ) {
        let mut done = 0;
        let mut at = 0;
        let plain = |from: usize, to: usize, each: &mut dyn FnMut(Part<'t>)| {
            if from < to {
                each(Part::Text { text: &text[from..to], at: from });
            }
        };
        while at < text.len() {
            let Some(token) = self.longest(text.as_bytes(), at) else {
                at += 1;
                continue;
            };
            let (mut start, mut end) = (at, at + token.content.len());
            at = end;
            if !allowed(token, start) || token.single_word && is_in_word(text, start, end) {
                continue;
            }
            if token.lstrip {
                start = done + text[done..start].trim_end().len();
            }
            if token.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
            plain(done, start, &mut each);
            each(Part::Token(token.id));
            done = end;
            at = end;
        }
        plain(done, text.len(), &mut each);
    }

    /// Where the special tokens begin that `text` spells, also those that overlap.
    pub(super) fn special_starts(&self, text: &str) -> impl Iterator<Item = usize> {
        let spells = |at: usize| self.tokens_at(text.as_bytes(), at).any(|token| token.special);
        (0..text.len()).filter(move |&at| spells(at))
    }

    fn longest(&self, text: &[u8], at: usize) -> Option<&AddedToken> {
        self.tokens_at(text, at).last()
    }

    /// The tokens that begin at `at`, the shortest first.
    fn tokens_at<'s>(&'s self, text: &[u8], at: usize) -> impl Iterator<Item = &'s AddedToken> {
        let rest = if self.begins[usize::from(text[at])] { &text[at..] } else { &[] };
        let nodes = rest.iter().scan(0, |node, &byte| {
            *node = *self.children.get(&(*node, byte))?;
            Some(*node)
        });
        nodes.filter_map(|node| self.ends[node].map(|i| &self.tokens[i]))
    }
}

fn is_in_word(text: &str, start: usize, end: usize) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text[..start].chars().next_back().is_some_and(is_word) || text[end..].chars().next().is_some_and(is_word)
}
