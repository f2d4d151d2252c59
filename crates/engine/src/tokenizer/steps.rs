//! What is done to a text before and after byte-pair encoding: normalisers, pre-tokenizers, decoders.

use super::pattern::Pattern;
use crate::{Error, Result};
use serde_json::Value;
use std::borrow::Cow;
use std::ops::Range;
use unicode_normalization::{UnicodeNormalization, is_nfc};

/// The pattern of GPT-2, which byte-level pre-tokenizers have built in.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Steps within steps at most.
const MAX_DEPTH: usize = 16;

/// An error in the component at `field`.
fn error(field: &str, problem: impl Into<String>) -> Error {
    Error::Tokenizer { field: field.to_owned(), problem: problem.into() }
}

fn unsupported(field: &str, kind: &str, known: &str) -> Error {
    error(field, format!("{kind:?} is not supported; supported: {known}"))
}

/// Calls `each` for a component, for every component of a `Sequence`, or not at all for `null`.
fn for_each(
    field: &str,
    list: &str,
    value: &Value,
    depth: usize,
    each: &mut dyn FnMut(&str, &Value) -> Result<()>,
) -> Result<()> {
    match kind(value) {
        _ if value.is_null() => Ok(()),
        Some("Sequence") if depth < MAX_DEPTH => {
            let items = value[list].as_array().ok_or_else(|| error(field, format!("{list} is missing")))?;
            items.iter().try_for_each(|item| for_each(field, list, item, depth + 1, each))
        }
        Some("Sequence") => Err(error(field, format!("sequences are nested deeper than {MAX_DEPTH}"))),
        Some(kind) => each(kind, value),
        None => Err(error(field, "type is missing")),
    }
}

fn kind(value: &Value) -> Option<&str> {
    value["type"].as_str()
}

fn flag(value: &Value, name: &str, absent: bool) -> bool {
    value[name].as_bool().unwrap_or(absent)
}

fn string(field: &str, value: &Value, name: &str) -> Result<String> {
    value[name]
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| error(field, format!("{name} is missing or no string")))
}

/// What is searched for: a string or a regular expression.
#[derive(Clone, Debug)]
pub(super) enum Needle {
    String(String),
    Pattern(Pattern),
}

impl Needle {
    fn new(field: &str, value: &Value) -> Result<Self> {
        let pattern = &value["pattern"];
        match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
            (Some(""), _) => Err(error(field, "pattern.String is empty")),
            (Some(text), _) => Ok(Self::String(text.to_owned())),
            (_, Some(source)) => Ok(Self::Pattern(Pattern::new(source).map_err(|p| error(field, p))?)),
            _ => Err(error(field, "pattern has neither String nor Regex")),
        }
    }

    /// Where it is found; an empty match does not count.
    fn matches(&self, text: &str) -> Vec<Range<usize>> {
        match self {
            Self::String(needle) => {
                text.match_indices(needle.as_str()).map(|(at, found)| at..at + found.len()).collect()
            }
            Self::Pattern(pattern) => pattern.matches(text),
        }
    }
}

/// A step that changes the text.
#[derive(Clone, Debug)]
pub(super) enum Normalizer {
    Nfc,
    Lowercase,
    Replace(Substitution),
    Prepend(String),
}

/// What is replaced, and by what.
#[derive(Clone, Debug)]
pub(super) struct Substitution(Needle, String);

impl Normalizer {
    pub(super) fn list(value: &Value) -> Result<Vec<Self>> {
        const FIELD: &str = "normalizer";
        let mut steps = Vec::new();
        for_each(FIELD, "normalizers", value, 0, &mut |kind, value| {
            steps.push(match kind {
                "NFC" => Self::Nfc,
                "Lowercase" => Self::Lowercase,
                "Prepend" => Self::Prepend(string(FIELD, value, "prepend")?),
                "Replace" => {
                    Self::Replace(Substitution(Needle::new(FIELD, value)?, string(FIELD, value, "content")?))
                }
                other => return Err(unsupported(FIELD, other, "NFC, Lowercase, Replace, Prepend, Sequence")),
            });
            Ok(())
        })?;
        Ok(steps)
    }

    pub(super) fn apply<'t>(&self, text: Cow<'t, str>) -> Cow<'t, str> {
        match self {
            _ if text.is_empty() => text,
            Self::Nfc if is_nfc(&text) => text,
            Self::Nfc => text.nfc().collect(),
            Self::Lowercase => text.chars().flat_map(char::to_lowercase).collect(),
            Self::Prepend(prefix) => Cow::Owned(format!("{prefix}{text}")),
            Self::Replace(Substitution(needle, content)) => {
                let mut out = String::with_capacity(text.len());
                let mut done = 0;
                for found in needle.matches(&text) {
                    out.push_str(&text[done..found.start]);
                    out.push_str(content);
                    done = found.end;
                }
                out.push_str(&text[done..]);
                out.into()
            }
        }
    }
}

/// Which pieces a match and its surroundings become.
#[derive(Clone, Copy, Debug)]
pub(super) enum Behavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

/// A step that cuts the text into pieces.
#[derive(Clone, Debug)]
pub(super) enum PreTokenizer {
    Split { needle: Needle, behavior: Behavior, invert: bool },
    Digits { individual: bool },
    ByteLevel { prefix_space: bool, gpt2: Option<Pattern> },
    Metaspace { replacement: char, prepend: Prepend, split: bool },
}

/// Which pieces of a text get a space in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepend {
    Always,
    First,
    Never,
}

impl PreTokenizer {
    pub(super) fn list(value: &Value) -> Result<Vec<Self>> {
        const FIELD: &str = "pre_tokenizer";
        let mut steps = Vec::new();
        for_each(FIELD, "pretokenizers", value, 0, &mut |kind, value| {
            steps.push(match kind {
                "Digits" => Self::Digits { individual: flag(value, "individual_digits", false) },
                "Split" => Self::Split {
                    needle: Needle::new(FIELD, value)?,
                    behavior: behavior(FIELD, value)?,
                    invert: flag(value, "invert", false),
                },
                "ByteLevel" => Self::ByteLevel {
                    prefix_space: flag(value, "add_prefix_space", true),
                    gpt2: match flag(value, "use_regex", true) {
                        true => Some(Pattern::new(GPT2).map_err(|p| error(FIELD, p))?),
                        false => None,
                    },
                },
                "Metaspace" => Self::Metaspace {
                    replacement: replacement(value),
                    prepend: prepend(FIELD, value)?,
                    split: flag(value, "split", true),
                },
                other => {
                    return Err(unsupported(FIELD, other, "Split, Digits, ByteLevel, Metaspace, Sequence"));
                }
            });
            Ok(())
        })?;
        Ok(steps)
    }

    /// Cuts one piece; `is_first` if the text begins with it.
    pub(super) fn apply<'t>(&self, piece: Cow<'t, str>, is_first: bool, out: &mut Vec<Cow<'t, str>>) {
        match self {
            Self::Split { needle, behavior, invert } => {
                cut(piece.clone(), &needle.matches(&piece), *behavior, *invert, out);
            }
            Self::Digits { individual } => {
                let digits: Vec<_> =
                    piece.match_indices(char::is_numeric).map(|(at, found)| at..at + found.len()).collect();
                let behavior = if *individual { Behavior::Isolated } else { Behavior::Contiguous };
                cut(piece, &digits, behavior, false, out);
            }
            Self::ByteLevel { prefix_space, gpt2 } => {
                let piece = match piece {
                    piece if *prefix_space && !piece.starts_with(' ') => Cow::Owned(format!(" {piece}")),
                    piece => piece,
                };
                match gpt2 {
                    Some(pattern) => {
                        let found = pattern.matches(&piece);
                        cut(piece, &found, Behavior::Isolated, false, out);
                    }
                    None => out.push(piece),
                }
            }
            Self::Metaspace { replacement, prepend, split } => {
                let mut text = piece.replace(' ', replacement.encode_utf8(&mut [0; 4]));
                let wanted = *prepend == Prepend::Always || *prepend == Prepend::First && is_first;
                if wanted && !text.starts_with(*replacement) {
                    text.insert(0, *replacement);
                }
                if *split {
                    let found: Vec<_> =
                        text.match_indices(*replacement).map(|(at, found)| at..at + found.len()).collect();
                    cut(Cow::Owned(text), &found, Behavior::MergedWithNext, false, out);
                } else {
                    out.push(Cow::Owned(text));
                }
            }
        }
    }
}

fn behavior(field: &str, value: &Value) -> Result<Behavior> {
    Ok(match value["behavior"].as_str() {
        Some("Removed") => Behavior::Removed,
        Some("Isolated") => Behavior::Isolated,
        Some("MergedWithPrevious") => Behavior::MergedWithPrevious,
        Some("MergedWithNext") => Behavior::MergedWithNext,
        Some("Contiguous") => Behavior::Contiguous,
        other => return Err(error(field, format!("behavior is {other:?}, which is not known"))),
    })
}

fn replacement(value: &Value) -> char {
    value["replacement"].as_str().and_then(|text| text.chars().next()).unwrap_or('▁')
}

fn prepend(field: &str, value: &Value) -> Result<Prepend> {
    match value["prepend_scheme"].as_str() {
        Some("always") => Ok(Prepend::Always),
        Some("first") => Ok(Prepend::First),
        Some("never") => Ok(Prepend::Never),
        Some(other) => Err(error(field, format!("prepend_scheme is {other:?}, which is not known"))),
        None if flag(value, "add_prefix_space", true) => Ok(Prepend::Always),
        None => Ok(Prepend::Never),
    }
}

/// Cuts `piece` at `matches`, which do not overlap and rise.
fn cut<'t>(
    piece: Cow<'t, str>,
    matches: &[Range<usize>],
    behavior: Behavior,
    invert: bool,
    out: &mut Vec<Cow<'t, str>>,
) {
    let mut spans: Vec<(Range<usize>, bool)> = Vec::with_capacity(2 * matches.len() + 1);
    let mut done = 0;
    for found in matches {
        spans.extend((done < found.start).then_some((done..found.start, invert)));
        spans.push((found.clone(), !invert));
        done = found.end;
    }
    spans.extend((done < piece.len()).then_some((done..piece.len(), invert)));
    join(&mut spans, behavior);
    if let [(only, _)] = &spans[..]
        && *only == (0..piece.len())
    {
        return out.push(piece);
    }
    for (span, _) in spans {
        out.push(match &piece {
            Cow::Borrowed(text) => Cow::Borrowed(&text[span]),
            Cow::Owned(text) => Cow::Owned(text[span].to_owned()),
        });
    }
}

/// Joins the spans that belong together; the flag tells a match.
fn join(spans: &mut Vec<(Range<usize>, bool)>, behavior: Behavior) {
    match behavior {
        Behavior::Isolated => {}
        Behavior::Removed => spans.retain(|(_, is_match)| !is_match),
        Behavior::MergedWithPrevious => spans.dedup_by(|next, previous| {
            // A match joins what is before it, unless that is a match that has itself been joined.
            let joins = next.1 && !previous.1;
            if joins {
                *previous = (previous.0.start..next.0.end, true);
            }
            joins
        }),
        Behavior::MergedWithNext => {
            spans.reverse();
            spans.dedup_by(|before, after| {
                let joins = before.1 && !after.1;
                if joins {
                    *after = (before.0.start..after.0.end, true);
                }
                joins
            });
            spans.reverse();
        }
        Behavior::Contiguous => spans.dedup_by(|next, previous| {
            let joins = next.1 == previous.1;
            if joins {
                previous.0.end = next.0.end;
            }
            joins
        }),
    }
}

/// How the bytes of a token follow from its spelling.
#[derive(Clone, Debug, Default)]
pub(super) struct Decoder {
    byte_level: bool,
    byte_fallback: bool,
    replace: Vec<(String, String)>,
    /// A text that begins with a space loses it.
    pub(super) strip_first_space: bool,
}

impl Decoder {
    pub(super) fn new(value: &Value) -> Result<Self> {
        const FIELD: &str = "decoder";
        let mut decoder = Self::default();
        for_each(FIELD, "decoders", value, 0, &mut |kind, value| {
            match kind {
                "ByteLevel" => decoder.byte_level = true,
                "ByteFallback" => decoder.byte_fallback = true,
                "Fuse" => {}
                "Replace" => {
                    let pattern = value["pattern"]["String"].as_str().filter(|text| !text.is_empty());
                    let pattern = pattern.ok_or_else(|| error(FIELD, "Replace without pattern.String"))?;
                    decoder.replace.push((pattern.to_owned(), string(FIELD, value, "content")?));
                }
                "Strip" => match (value["content"].as_str(), value["start"].as_u64(), value["stop"].as_u64())
                {
                    (Some(" "), Some(start @ 0..=1), Some(0)) => decoder.strip_first_space = start == 1,
                    _ => return Err(error(FIELD, "Strip is supported only for one space at the start")),
                },
                "Metaspace" => {
                    decoder.replace.push((replacement(value).to_string(), " ".to_owned()));
                    decoder.strip_first_space = prepend(FIELD, value)? != Prepend::Never;
                }
                other => {
                    let known = "ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, Sequence";
                    return Err(unsupported(FIELD, other, known));
                }
            }
            Ok(())
        })?;
        Ok(decoder)
    }

    /// The bytes that `spelling` stands for.
    pub(super) fn bytes(&self, spelling: &str) -> Vec<u8> {
        if self.byte_level
            && let Some(bytes) = spelling.chars().map(super::bytes::byte).collect()
        {
            return bytes;
        }
        if self.byte_fallback
            && let Some(byte) = fallback_byte(spelling)
        {
            return vec![byte];
        }
        let replaced = self.replace.iter().fold(Cow::Borrowed(spelling), |text, (from, to)| {
            if text.contains(from.as_str()) { Cow::Owned(text.replace(from.as_str(), to)) } else { text }
        });
        replaced.into_owned().into_bytes()
    }
}

/// The byte of a token `<0x..>`.
fn fallback_byte(spelling: &str) -> Option<u8> {
    let digits = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// The special tokens that a post-processor sets before and after a text.
pub(super) fn surroundings(value: &Value) -> Result<[Vec<u32>; 2]> {
    const FIELD: &str = "post_processor";
    let mut around = [Vec::new(), Vec::new()];
    for_each(FIELD, "processors", value, 0, &mut |kind, value| match kind {
        "ByteLevel" => Ok(()),
        "TemplateProcessing" => template(FIELD, value, &mut around),
        other => Err(unsupported(FIELD, other, "ByteLevel, TemplateProcessing, Sequence")),
    })?;
    Ok(around)
}

fn template(field: &str, value: &Value, around: &mut [Vec<u32>; 2]) -> Result<()> {
    let items = value["single"].as_array().ok_or_else(|| error(field, "single is missing"))?;
    let mut after = 0;
    for item in items {
        if item.get("Sequence").is_some() {
            after = 1;
            continue;
        }
        let name = item["SpecialToken"]["id"].as_str().unwrap_or_default();
        let ids = value["special_tokens"][name]["ids"].as_array();
        let ids = ids.ok_or_else(|| error(field, format!("special_tokens.{name:?}.ids is missing")))?;
        for id in ids {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            around[after].push(id.ok_or_else(|| error(field, format!("the id of {name:?} is no number")))?);
        }
    }
    Ok(())
}
