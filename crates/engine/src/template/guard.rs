//! What is checked in a template's source before it is compiled.
//!
//! The compiler descends into an expression once for every operator of a chain (`not not not x`, `1 + 1 + 1`), and into
//! an `if` once for every `elif`. A source made for it would exhaust the stack, which no caller survives.

/// Characters of one tag at most, besides those of its strings and spaces: no chain of operators can be longer.
const MAX_TAG: usize = 1024;
/// Tags `elif` of a template at most.
const MAX_ELIFS: usize = 1000;

/// A tag of the source.
struct Tag<'s> {
    /// Between the delimiters.
    inner: &'s str,
    /// Characters outside of strings, spaces not counted.
    len: usize,
    /// Bytes up to and with the closing delimiter.
    end: usize,
}

/// Checks that no chain is too long. Where a block `generation` only marks the assistant's text for training, it becomes
/// a block without effect.
///
/// # Errors
/// Says which tag is too long.
pub(super) fn prepare(source: &str) -> Result<String, String> {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut elifs = 0;
    while let Some(start) = rest.find("{{").into_iter().chain(rest.find("{%")).chain(rest.find("{#")).min() {
        let (before, at) = rest.split_at(start);
        out.push_str(before);
        let tag = match &at[..2] {
            "{#" => {
                let end = at.find("#}").map_or(at.len(), |end| end + 2);
                out.push_str(&at[..end]);
                rest = &at[end..];
                continue;
            }
            open => tag(&at[2..], if open == "{%" { "%}" } else { "}}" }),
        };
        if tag.len > MAX_TAG {
            let line = out.matches('\n').count() + 1;
            return Err(format!("line {line}: a tag has more than {MAX_TAG} characters besides its strings"));
        }
        let whole = &at[..2 + tag.end];
        let word = tag.inner.trim_matches(['-', '+']).trim();
        let is_block = at.starts_with("{%");
        match word.split_whitespace().next() {
            Some("raw") if is_block => {
                let end = raw_end(at);
                out.push_str(&at[..end]);
                rest = &at[end..];
                continue;
            }
            Some("elif") if is_block => elifs += 1,
            _ => {}
        }
        match word {
            "generation" if is_block => out.push_str(&whole.replace(word, "if true")),
            "endgeneration" if is_block => out.push_str(&whole.replace(word, "endif")),
            _ => out.push_str(whole),
        }
        rest = &at[whole.len()..];
    }
    if elifs > MAX_ELIFS {
        return Err(format!("it has {elifs} tags elif, expected at most {MAX_ELIFS}"));
    }
    Ok(out + rest)
}

/// The tag at the beginning of `text`, which follows the opening delimiter. Without a closing one it is all of it.
fn tag<'s>(text: &'s str, close: &str) -> Tag<'s> {
    let bytes = text.as_bytes();
    let (mut at, mut len, mut depth) = (0, 0, 0usize);
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'"' | b'\'') => at = string_end(bytes, at, quote),
            _ if depth == 0 && text.as_bytes()[at..].starts_with(close.as_bytes()) => {
                return Tag { inner: &text[..at], len, end: at + 2 };
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        len += usize::from(bytes.get(at).is_some_and(|byte| !byte.is_ascii_whitespace()));
        at += 1;
    }
    Tag { inner: text, len, end: text.len() }
}

/// Where the closing quote of the string stands that begins at `start`.
fn string_end(bytes: &[u8], start: usize, quote: u8) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at
}

/// The bytes of a block `raw` with its end tag, or all of them if it has none.
fn raw_end(text: &str) -> usize {
    let mut at = 2;
    while let Some(found) = text[at..].find("{%") {
        at += found + 2;
        let Some(end) = text[at..].find("%}") else { break };
        if text[at..at + end].trim_matches(['-', '+']).trim() == "endraw" {
            return at + end + 2;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_sources_pass_unchanged() {
        let sources = [
            "",
            "text",
            "{{ a }}{% if b -%} c {%- endif %}{# d {{ #}",
            "{{ {'a': {'b': '}}'}} }} }}",
            "{{ 'it\\'s }}' ~ \"{%\" }}",
            "{% raw %}{{ ' {% not a tag {%- endraw -%} {{ a }}",
            "{{ unfinished",
            "{# unfinished",
            "{% raw %} unfinished",
            "{{ 'unfinished\\",
            "é{{ 'é' }}é{%",
        ];
        for source in sources {
            assert_eq!(prepare(source).as_deref(), Ok(source));
        }
        let long_text = format!("{{{{ '{}' }}}}", "x".repeat(9999));
        assert_eq!(prepare(&long_text), Ok(long_text.clone()));
    }

    #[test]
    fn generation_blocks_lose_their_effect() {
        assert_eq!(
            prepare("{%- generation -%}a{% endgeneration %}{{ generation }}").unwrap(),
            "{%- if true -%}a{% endif %}{{ generation }}"
        );
    }

    #[test]
    fn long_chains_are_refused_wherever_they_hide() {
        let chain = "not ".repeat(500);
        for (before, after) in [
            ("{{", "1 }}"),
            ("{%+ if ", "1 %}{% endif %}"),
            ("{{ {'a': {}} and ", "1 }}"),
            ("{{ '}}' ~ ", "1 }}"),
            ("{{ '\\'}}' ~ ", "1 }}"),
            ("{# {{ ' #}{{ ", "1 }}{# ' }} #}"),
            ("{% raw %}{{ ' {%- endraw %}{{", " }}{% raw %}' }}{% endraw %}"),
            ("{% raw %}{% endraw %}{{ ", ""),
            ("{{ [[( ", ""),
        ] {
            let error = prepare(&format!("\n{before}{chain}{after}")).unwrap_err();
            assert_eq!(error, "line 2: a tag has more than 1024 characters besides its strings", "{before}");
        }
        assert!(prepare(&"{% elif 0 %}".repeat(1001)).unwrap_err().contains("1001 tags elif"));
    }
}
