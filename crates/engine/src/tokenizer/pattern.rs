//! The regular expressions of pre-tokenizers.
//!
//! Vocabularies are built with patterns that need Unicode categories, possessive quantifiers and look-ahead, which
//! general regex engines offer only together with some hundred kilobytes of tables and automata. This one knows what
//! the patterns of published tokenizers use: literals, classes, `\p{..}` of general categories, groups, `(?i:..)`,
//! alternatives, `? * + {n,m}` greedy and possessive, and `(?=x)`, `(?!x)` for one character. Anything else is an error.
//!
//! Alternatives are tried in order, the first that fits wins. A state that has failed is not entered again once a search
//! becomes long: no pattern takes more than quadratic time, those of published tokenizers linear time.

use rustc_hash::FxHashSet;
use std::ops::Range;
use std::str::Chars;
use unicode_general_category::{GeneralCategory as G, get_general_category};

/// Instructions of one pattern at most.
const MAX_PROGRAM: usize = 4096;
/// Nested groups at most.
const MAX_DEPTH: usize = 32;
/// Steps of one match before failed states are remembered.
const PATIENCE: usize = 256;

/// A compiled pattern.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    program: Vec<Op>,
    classes: Vec<Class>,
}

#[derive(Clone, Debug)]
enum Op {
    /// `min..=max` characters of a class, as many as possible; a possessive run gives none back.
    Run { class: usize, min: usize, max: usize, possessive: bool },
    /// The next character is, or is not, of the class; the end of the text is of no class.
    Look { class: usize, negative: bool },
    /// Goes on at the next operation; if that fails, at this one.
    OrElse(usize),
    /// Goes on there.
    Jump(usize),
}

/// Where a search goes on when it fails.
#[derive(Clone, Copy, Debug)]
enum Retry {
    At {
        pc: usize,
        pos: usize,
    },
    /// One character less of a run that ends at `pos` and must not end before `least`.
    Less {
        pc: usize,
        least: usize,
        pos: usize,
    },
}

/// Memory of a search, kept from one to the next.
#[derive(Debug, Default)]
struct Scratch {
    retries: Vec<Retry>,
    failed: FxHashSet<(usize, usize)>,
}

impl Pattern {
    /// # Errors
    /// Says what in `source` is wrong or not supported.
    pub(super) fn new(source: &str) -> Result<Self, String> {
        let mut parser = Parser { rest: source.chars(), classes: Vec::new(), fold: false, depth: 0 };
        let problem = |problem: String| format!("pattern {source:?}: {problem}");
        let node = parser.alternatives().map_err(problem)?;
        if parser.rest.next().is_some() {
            return Err(problem("a ) without a (".to_owned()));
        }
        let mut program = Vec::new();
        emit(&node, &mut program).map_err(problem)?;
        Ok(Self { program, classes: parser.classes })
    }

    /// Where it is found, from left to right; an empty match does not count.
    pub(super) fn matches(&self, text: &str) -> Vec<Range<usize>> {
        let mut scratch = Scratch::default();
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(c) = text[at..].chars().next() {
            match self.match_at(text, at, &mut scratch) {
                Some(end) if end > at => {
                    found.push(at..end);
                    at = end;
                }
                _ => at += c.len_utf8(),
            }
        }
        found
    }

    /// Where the match that begins at `start` ends; `start` must be a character's boundary.
    fn match_at(&self, text: &str, start: usize, scratch: &mut Scratch) -> Option<usize> {
        let Scratch { retries, failed } = scratch;
        retries.clear();
        failed.clear();
        let (mut pc, mut pos) = (0, start);
        for step in 0usize.. {
            if pc == self.program.len() {
                return Some(pos);
            }
            let seen = step > PATIENCE && !failed.insert((pc, pos));
            let next = if seen { None } else { self.step(text, pc, pos, retries) };
            (pc, pos) = match next {
                Some(next) => next,
                None => retry(text, retries)?,
            };
        }
        None
    }

    fn step(&self, text: &str, pc: usize, pos: usize, retries: &mut Vec<Retry>) -> Option<(usize, usize)> {
        match self.program[pc] {
            Op::Jump(to) => Some((to, pos)),
            Op::OrElse(other) => {
                retries.push(Retry::At { pc: other, pos });
                Some((pc + 1, pos))
            }
            Op::Look { class, negative } => {
                let found = text[pos..].chars().next().is_some_and(|c| self.classes[class].has(c));
                (found != negative).then_some((pc + 1, pos))
            }
            Op::Run { class, min, max, possessive } => {
                let class = &self.classes[class];
                let (mut end, mut least, mut count) = (pos, pos, 0);
                for c in text[pos..].chars().take(max).take_while(|&c| class.has(c)) {
                    end += c.len_utf8();
                    count += 1;
                    if count == min {
                        least = end;
                    }
                }
                if count < min {
                    return None;
                }
                if !possessive && end > least {
                    retries.push(Retry::Less { pc: pc + 1, least, pos: end });
                }
                Some((pc + 1, end))
            }
        }
    }
}

fn retry(text: &str, retries: &mut Vec<Retry>) -> Option<(usize, usize)> {
    match retries.pop()? {
        Retry::At { pc, pos } => Some((pc, pos)),
        Retry::Less { pc, least, pos } => {
            let pos = text.floor_char_boundary(pos - 1);
            if pos > least {
                retries.push(Retry::Less { pc, least, pos });
            }
            Some((pc, pos))
        }
    }
}

/// A set of characters.
#[derive(Clone, Debug, Default)]
struct Class {
    ranges: Vec<(char, char)>,
    /// Bit `c` stands for the general category with discriminant `c`.
    categories: u32,
    space: bool,
    not_space: bool,
    /// Upper and lower case are the same.
    fold: bool,
    negated: bool,
    /// Members below 128, once the class is complete.
    ascii: u128,
}

impl Class {
    fn has(&self, c: char) -> bool {
        if c.is_ascii() { self.ascii >> (c as u32) & 1 == 1 } else { self.holds(c) }
    }

    fn holds(&self, c: char) -> bool {
        let listed = self.lists(c)
            || self.fold
                && (c.to_lowercase().any(|c| self.lists(c)) || c.to_uppercase().any(|c| self.lists(c)));
        listed != self.negated
    }

    fn lists(&self, c: char) -> bool {
        self.ranges.iter().any(|&(first, last)| (first..=last).contains(&c))
            || self.space && c.is_whitespace()
            || self.not_space && !c.is_whitespace()
            || self.categories != 0 && self.categories & category_bit(get_general_category(c)) != 0
    }

    /// Adds a range; of a class that folds, also what its ends are in the other case.
    fn add(&mut self, first: char, last: char) {
        self.ranges.push((first, last));
        if self.fold && first == last {
            self.ranges.extend(first.to_lowercase().chain(first.to_uppercase()).map(|c| (c, c)));
        }
    }

    fn complete(mut self) -> Self {
        self.ascii = (0..128u8).filter(|&b| self.holds(b.into())).fold(0, |set, b| set | 1 << b);
        self
    }
}

const CATEGORIES: [G; 30] = [
    G::ClosePunctuation,
    G::ConnectorPunctuation,
    G::Control,
    G::CurrencySymbol,
    G::DashPunctuation,
    G::DecimalNumber,
    G::EnclosingMark,
    G::FinalPunctuation,
    G::Format,
    G::InitialPunctuation,
    G::LetterNumber,
    G::LineSeparator,
    G::LowercaseLetter,
    G::MathSymbol,
    G::ModifierLetter,
    G::ModifierSymbol,
    G::NonspacingMark,
    G::OpenPunctuation,
    G::OtherLetter,
    G::OtherNumber,
    G::OtherPunctuation,
    G::OtherSymbol,
    G::ParagraphSeparator,
    G::PrivateUse,
    G::SpaceSeparator,
    G::SpacingMark,
    G::Surrogate,
    G::TitlecaseLetter,
    G::Unassigned,
    G::UppercaseLetter,
];

fn category_bit(category: G) -> u32 {
    1 << category as u32
}

/// The categories whose abbreviation begins with `name`: `L`, `Lu`, ...
fn categories(name: &str) -> Option<u32> {
    let named = CATEGORIES.iter().filter(|c| !name.is_empty() && c.abbreviation().starts_with(name));
    named.map(|&c| category_bit(c)).reduce(|a, b| a | b)
}

enum Node {
    Run { class: usize, min: usize, max: usize, possessive: bool },
    Look { class: usize, negative: bool },
    Sequence(Vec<Node>),
    Alternatives(Vec<Node>),
    Repeat { node: Box<Node>, min: usize, max: usize },
}

fn emit(node: &Node, program: &mut Vec<Op>) -> Result<(), String> {
    if program.len() > MAX_PROGRAM {
        return Err(format!("it needs more than {MAX_PROGRAM} operations"));
    }
    match node {
        &Node::Run { class, min, max, possessive } => program.push(Op::Run { class, min, max, possessive }),
        &Node::Look { class, negative } => program.push(Op::Look { class, negative }),
        Node::Sequence(nodes) => nodes.iter().try_for_each(|node| emit(node, program))?,
        Node::Alternatives(nodes) => {
            let mut jumps = Vec::new();
            for (i, node) in nodes.iter().enumerate() {
                let choice = program.len();
                let is_last = i + 1 == nodes.len();
                if !is_last {
                    program.push(Op::OrElse(0));
                }
                emit(node, program)?;
                if !is_last {
                    jumps.push(program.len());
                    program.push(Op::Jump(0));
                    program[choice] = Op::OrElse(program.len());
                }
            }
            for jump in jumps {
                program[jump] = Op::Jump(program.len());
            }
        }
        Node::Repeat { node, min, max } => {
            let mut choices = Vec::new();
            for i in 0..*max {
                if i >= *min {
                    choices.push(program.len());
                    program.push(Op::OrElse(0));
                }
                emit(node, program)?;
            }
            for choice in choices {
                program[choice] = Op::OrElse(program.len());
            }
        }
    }
    Ok(())
}

struct Parser<'a> {
    rest: Chars<'a>,
    classes: Vec<Class>,
    fold: bool,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.clone().next()
    }

    fn eat(&mut self, expected: &str) -> bool {
        match self.rest.as_str().strip_prefix(expected) {
            Some(rest) => {
                self.rest = rest.chars();
                true
            }
            None => false,
        }
    }

    fn next(&mut self) -> Result<char, String> {
        self.rest.next().ok_or_else(|| "it ends too early".to_owned())
    }

    fn alternatives(&mut self) -> Result<Node, String> {
        let mut branches = vec![self.sequence()?];
        while self.eat("|") {
            branches.push(self.sequence()?);
        }
        Ok(Node::Alternatives(branches))
    }

    fn sequence(&mut self) -> Result<Node, String> {
        let mut nodes = Vec::new();
        while self.peek().is_some_and(|c| c != '|' && c != ')') {
            let atom = self.atom()?;
            nodes.push(self.quantified(atom)?);
        }
        Ok(Node::Sequence(nodes))
    }

    fn atom(&mut self) -> Result<Node, String> {
        let mut class = Class { fold: self.fold, ..Class::default() };
        match self.next()? {
            '(' => return self.group(),
            '[' => class = self.bracket()?,
            '\\' => self.escape(&mut class)?,
            '.' => {
                class.add('\n', '\n');
                class.negated = true;
            }
            c @ ('^' | '$' | '*' | '+' | '?' | '{') => return Err(format!("{c} is not supported here")),
            c => class.add(c, c),
        }
        Ok(self.one(class))
    }

    fn one(&mut self, class: Class) -> Node {
        self.classes.push(class.complete());
        Node::Run { class: self.classes.len() - 1, min: 1, max: 1, possessive: false }
    }

    fn group(&mut self) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("groups are nested deeper than {MAX_DEPTH}"));
        }
        let fold = self.fold;
        let mut look = None;
        if self.eat("?i:") {
            self.fold = true;
        } else if self.eat("?!") {
            look = Some(true);
        } else if self.eat("?=") {
            look = Some(false);
        } else if !self.eat("?:") && self.peek() == Some('?') {
            return Err(format!("a group that begins with ({:.3} is not supported", self.rest.as_str()));
        }
        let inner = self.alternatives()?;
        self.fold = fold;
        self.depth -= 1;
        if !self.eat(")") {
            return Err("a ( without a )".to_owned());
        }
        match look {
            None => Ok(inner),
            Some(negative) => match single(&inner) {
                Some(class) => Ok(Node::Look { class, negative }),
                None => Err("look-ahead for more than one character is not supported".to_owned()),
            },
        }
    }

    fn quantified(&mut self, atom: Node) -> Result<Node, String> {
        let (min, max) = match self.peek() {
            Some('?') => (0, 1),
            Some('*') => (0, usize::MAX),
            Some('+') => (1, usize::MAX),
            Some('{') => return self.counted(atom),
            _ => return Ok(atom),
        };
        self.rest.next();
        let possessive = self.eat("+");
        self.repeat(atom, min, max, possessive)
    }

    fn counted(&mut self, atom: Node) -> Result<Node, String> {
        let text = self.rest.as_str();
        let (counts, _) = text[1..].split_once('}').ok_or("a { without a }")?;
        let (min, max) = counts.split_once(',').unwrap_or((counts, counts));
        let number = |text: &str, absent| if text.is_empty() { Ok(absent) } else { text.parse::<usize>() };
        let (Ok(min), Ok(max)) = (number(min, 0), number(max, usize::MAX)) else {
            return Err(format!("{{{counts}}} is no count"));
        };
        self.rest = text[counts.len() + 2..].chars();
        self.repeat(atom, min, max, false)
    }

    fn repeat(&mut self, atom: Node, min: usize, max: usize, possessive: bool) -> Result<Node, String> {
        if min > max || max == 0 {
            return Err(format!("{min} to {max} repetitions make no sense"));
        }
        if matches!(self.peek(), Some('?' | '*' | '+' | '{')) {
            return Err("lazy quantifiers and quantifiers of quantifiers are not supported".to_owned());
        }
        match atom {
            Node::Run { class, .. } => Ok(Node::Run { class, min, max, possessive }),
            Node::Look { .. } => Err("a quantified look-ahead is not supported".to_owned()),
            _ if possessive => Err("a possessive group is not supported".to_owned()),
            _ if max > MAX_PROGRAM => Err("a group repeated without limit is not supported".to_owned()),
            node => Ok(Node::Repeat { node: Box::new(node), min, max }),
        }
    }

    /// After `[`.
    fn bracket(&mut self) -> Result<Class, String> {
        let mut class = Class { fold: self.fold, ..Class::default() };
        class.negated = self.eat("^");
        let mut is_first = true;
        loop {
            match self.next()? {
                ']' if !is_first => return Ok(class),
                '[' => return Err("a class within a class is not supported".to_owned()),
                '&' if self.peek() == Some('&') => return Err("&& is not supported".to_owned()),
                '\\' => {
                    if let Some(first) = self.escape_in(&mut class)? {
                        self.range(first, &mut class)?;
                    }
                }
                first => self.range(first, &mut class)?,
            }
            is_first = false;
        }
    }

    /// After the first character of what may be a range.
    fn range(&mut self, first: char, class: &mut Class) -> Result<(), String> {
        let mut last = first;
        let mut ahead = self.rest.clone();
        if ahead.next() == Some('-') && ahead.next().is_some_and(|c| c != ']') {
            self.rest.next();
            last = self.next()?;
            if last == '\\' {
                last = self.escape_in(class)?.ok_or("a range must end with a character")?;
            }
        }
        if first > last {
            return Err(format!("the range {first:?}-{last:?} is empty"));
        }
        class.add(first, last);
        Ok(())
    }

    fn escape(&mut self, class: &mut Class) -> Result<(), String> {
        if let Some(c) = self.escape_in(class)? {
            class.add(c, c);
        }
        Ok(())
    }

    /// After a backslash: a character, or a class that is added to `class`.
    fn escape_in(&mut self, class: &mut Class) -> Result<Option<char>, String> {
        const WORD: [&str; 5] = ["L", "M", "Nd", "Nl", "Pc"];
        let word = || WORD.iter().filter_map(|name| categories(name)).fold(0, |a, b| a | b);
        let digit = || categories("Nd").unwrap_or_default();
        match self.next()? {
            's' => class.space = true,
            'S' => class.not_space = true,
            'd' => class.categories |= digit(),
            'D' => class.categories |= !digit(),
            'w' => class.categories |= word(),
            'W' => class.categories |= !word(),
            'p' => class.categories |= self.property()?,
            'P' => class.categories |= !self.property()?,
            'n' => return Ok(Some('\n')),
            'r' => return Ok(Some('\r')),
            't' => return Ok(Some('\t')),
            'f' => return Ok(Some('\u{c}')),
            'v' => return Ok(Some('\u{b}')),
            c if !c.is_alphanumeric() => return Ok(Some(c)),
            c => return Err(format!("\\{c} is not supported")),
        }
        Ok(None)
    }

    /// After `\p`.
    fn property(&mut self) -> Result<u32, String> {
        let text = self.rest.as_str();
        let name = match text.strip_prefix('{').and_then(|t| t.split_once('}')) {
            Some((name, rest)) => {
                self.rest = rest.chars();
                name
            }
            None => return Err("\\p without {..}".to_owned()),
        };
        let (name, negated) = name.strip_prefix('^').map_or((name, false), |name| (name, true));
        let bits = categories(name).ok_or_else(|| format!("\\p{{{name}}} is not supported"))?;
        Ok(if negated { !bits } else { bits })
    }
}

/// The class of a node that is exactly one character of it.
fn single(node: &Node) -> Option<usize> {
    match node {
        &Node::Run { class, min: 1, max: 1, .. } => Some(class),
        Node::Sequence(nodes) | Node::Alternatives(nodes) if nodes.len() == 1 => single(&nodes[0]),
        _ => None,
    }
}

#[cfg(test)]
#[path = "pattern_tests.rs"]
mod tests;
