//! Patterns, their matches, and patterns that are refused.

use super::*;

fn found(pattern: &str, text: &str) -> Option<usize> {
    Pattern::new(pattern).unwrap().match_at(text, 0, &mut Scratch::default())
}

#[test]
fn what_it_knows() {
    let cases = [
        ("abc|ab", "abd", Some(2)),
        ("ab|abc", "abc", Some(2)),
        ("a*ab", "aaab", Some(4)),
        ("a*+ab", "aaab", None),
        ("a?+a", "a", None),
        (r"\p{N}{1,3}", "12345", Some(3)),
        (r"\p{N}{2,}", "1", None),
        (r"x{2}", "xxx", Some(2)),
        (r"\s+(?!\S)", "   a", Some(2)),
        (r"\s+(?!\S)", "   ", Some(3)),
        (r"\s+(?!\S)", " a", None),
        (r"a(?=b)", "ab", Some(1)),
        (r"a(?=b)", "a", None),
        ("(?i:'LL|'s)", "'lL", Some(3)),
        ("(?i:'s)", "'\u{17f}", Some(3)),
        ("(?i:[k])x", "\u{212a}x", Some(4)),
        ("(?i:a)a", "aA", None),
        (r"[^\r\n\p{L}\p{N}]?\p{L}+", "-été1", Some(6)),
        (r"[a\-z]+", "a-zb", Some(3)),
        (r"[]a]+", "a]b", Some(2)),
        (r"[一-龥]+", "一二三x", Some(9)),
        (r"\P{L}\D\S\W", "1a-!", Some(4)),
        (r"[\P{L}b]+", "1ba", Some(2)),
        (r"\p{^L}", "a", None),
        (r"\w+", "aé_9٣\u{301}-", Some(9)),
        (r"(ab){1,2}c", "ababc", Some(5)),
        (r"(ab){2,3}", "abac", None),
        (r"a(?:b|c)?d", "acd", Some(3)),
        (".", "\n", None),
        ("", "x", Some(0)),
    ];
    for (pattern, text, expected) in cases {
        assert_eq!(found(pattern, text), expected, "{pattern} on {text:?}");
    }
}

#[test]
fn what_it_refuses() {
    let patterns = [
        "(",
        ")",
        "[",
        "[a",
        "[]",
        "a{",
        "a{x}",
        "a{2,1}",
        "a{0}",
        "*",
        "a**",
        "a+?",
        "^a",
        "a$",
        r"\b",
        r"\1",
        r"\",
        r"\p",
        r"\pL",
        r"\p{}",
        r"\p{Han}",
        "(?<a>b)",
        "(?>a)",
        "(?<!a)",
        "(?!ab)",
        "(?!a)*",
        "(ab)*",
        "(ab)++",
        "[z-a]",
        r"[a-\s]",
        "[a[b]]",
        "[a&&b]",
        "a{99999999999999999999}",
        "((((a|b){64}){64}){64}){64}",
    ];
    for pattern in patterns {
        assert!(Pattern::new(pattern).is_err(), "{pattern}");
    }
    assert!(Pattern::new(&"(".repeat(100_000)).is_err());
    assert_eq!(Pattern::new(r"x\p{Han}").unwrap_err(), r#"pattern "x\\p{Han}": \p{Han} is not supported"#);
}

#[test]
fn a_hostile_pattern_does_not_take_exponential_time() {
    let text = "a".repeat(1_000);
    assert_eq!(found("a*a*a*a*a*a*b|a", &text), Some(1));
    assert_eq!(found("(a?){64}(a?){64}(a?){64}b|a", &text), Some(1));
}

#[test]
fn every_category_has_its_own_bit() {
    let all = CATEGORIES.iter().fold(0u32, |set, &c| set | category_bit(c));
    assert_eq!(all.count_ones(), 30);
}
