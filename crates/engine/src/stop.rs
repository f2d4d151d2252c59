//! Stop strings that may begin in one piece of text and end in another.

use crate::{Error, Result};

/// The most stop strings of one answer.
const MAX_STOPS: usize = 64;

/// Watches a stream of text for stop strings.
///
/// Text is withheld only while it may be the beginning of a stop string. The text before the stop string that ends
/// first is emitted (of two that end together, the one that begins first counts), the stop string and what follows are
/// not.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<Stop>,
    withheld: String,
    stopped: bool,
}

/// One stop string and how much of it the text so far ends with.
#[derive(Clone, Debug)]
struct Stop {
    text: Vec<u8>,
    /// `border[i]`: the longest proper prefix of `text[..=i]` that is also its suffix (Knuth, Morris and Pratt).
    border: Vec<usize>,
    matched: usize,
}

impl Stop {
    fn new(text: String) -> Self {
        let text = text.into_bytes();
        let mut border = vec![0; text.len()];
        for i in 1..text.len() {
            let mut k = border[i - 1];
            while k > 0 && text[i] != text[k] {
                k = border[k - 1];
            }
            border[i] = k + usize::from(text[i] == text[k]);
        }
        Self { text, border, matched: 0 }
    }

    /// Takes the next byte; whether the stop string is complete.
    fn push(&mut self, byte: u8) -> bool {
        if self.matched == self.text.len() {
            self.matched = self.border[self.matched - 1];
        }
        while self.matched > 0 && self.text[self.matched] != byte {
            self.matched = self.border[self.matched - 1];
        }
        self.matched += usize::from(self.text[self.matched] == byte);
        self.matched == self.text.len()
    }
}

impl StopStrings {
    /// # Errors
    /// When one of them is empty, or there are more than 64.
    pub fn new(stops: Vec<String>) -> Result<Self> {
        let problem = if stops.len() > MAX_STOPS {
            Some(format!("there are {}, expected at most {MAX_STOPS}", stops.len()))
        } else {
            stops.iter().position(String::is_empty).map(|i| format!("number {} is empty", i + 1))
        };
        match problem {
            Some(problem) => Err(Error::Option { field: "stop", problem }),
            None => Ok(Self {
                stops: stops.into_iter().map(Stop::new).collect(),
                withheld: String::new(),
                stopped: false,
            }),
        }
    }

    /// Takes the next text. Returns the text that has become certain, and whether a stop string has appeared; after
    /// that nothing more comes out.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        if self.stopped {
            return (String::new(), true);
        }
        let before = self.withheld.len();
        self.withheld.push_str(text);
        for (i, &byte) in text.as_bytes().iter().enumerate() {
            let mut complete = 0;
            for stop in &mut self.stops {
                if stop.push(byte) {
                    complete = complete.max(stop.text.len());
                }
            }
            if complete > 0 {
                self.stopped = true;
                self.withheld.truncate(before + i + 1 - complete);
                return (std::mem::take(&mut self.withheld), true);
            }
        }
        let possible = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let rest = self.withheld.split_off(self.withheld.len() - possible);
        (std::mem::replace(&mut self.withheld, rest), false)
    }

    /// Ends the stream: what was withheld is text after all.
    pub fn finish(&mut self) -> String {
        for stop in &mut self.stops {
            stop.matched = 0;
        }
        std::mem::take(&mut self.withheld)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stops(stops: &[&str]) -> StopStrings {
        StopStrings::new(stops.iter().map(ToString::to_string).collect()).unwrap()
    }

    /// The definition, tried at every end.
    fn naive(text: &str, stops: &[String]) -> Option<usize> {
        (1..=text.len()).find_map(|end| {
            let ending = stops.iter().filter(|s| text.as_bytes()[..end].ends_with(s.as_bytes()));
            ending.map(|s| end - s.len()).min()
        })
    }

    proptest! {
        #[test]
        fn equals_naive_search(
            pieces in prop::collection::vec("[abé]{0,4}", 0..12),
            patterns in prop::collection::vec("[abé]{1,5}", 0..4),
        ) {
            let mut watch = StopStrings::new(patterns.clone()).unwrap();
            let mut seen = String::new();
            let mut out = String::new();
            let mut stopped = false;
            for piece in &pieces {
                seen += piece;
                let (text, stop) = watch.push(piece);
                out += &text;
                stopped = stop;
                match naive(&seen, &patterns) {
                    Some(start) => {
                        prop_assert!(stop);
                        prop_assert_eq!(&out, &seen[..start]);
                        break;
                    }
                    None => {
                        prop_assert!(!stop);
                        // Exactly the longest possible beginning of a stop string is withheld.
                        let withheld = (0..=seen.len())
                            .filter(|&at| seen.is_char_boundary(at))
                            .find(|&at| patterns.iter().any(|p| p.starts_with(&seen[at..])))
                            .unwrap_or(seen.len());
                        prop_assert_eq!(&out, &seen[..withheld]);
                    }
                }
            }
            if !stopped {
                out += &watch.finish();
                prop_assert_eq!(out, seen);
            }
        }
    }

    #[test]
    fn nothing_comes_after_the_stop() {
        let mut watch = stops(&["</s>", "User:"]);
        assert_eq!(watch.push("Hi <"), ("Hi ".into(), false));
        assert_eq!(watch.push("b> <"), ("<b> ".into(), false));
        assert_eq!(watch.push("/s>more"), (String::new(), true));
        assert_eq!(watch.push("x"), (String::new(), true));
        assert_eq!(watch.finish(), "");
    }

    #[test]
    fn an_unfinished_stop_is_text() {
        let mut watch = stops(&["END"]);
        assert_eq!(watch.push("the EN"), ("the ".into(), false));
        assert_eq!(watch.finish(), "EN");
    }

    #[test]
    fn refuses_what_would_always_stop() {
        let error = StopStrings::new(vec!["a".into(), String::new()]).unwrap_err();
        assert_eq!((error.code(), error.to_string().as_str()), ("bad-option", "stop: number 2 is empty"));
        assert!(StopStrings::new(vec!["a".into(); 65]).is_err());
    }
}
