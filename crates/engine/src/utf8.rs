//! Text from bytes that arrive piece by piece.

/// Turns a stream of bytes into text as soon as the bytes form whole characters.
///
/// Bytes that can never become a character are replaced by U+FFFD, one for each maximal subpart of an ill-formed
/// sequence, so that all the text together equals [`String::from_utf8_lossy`] of all the bytes together, however the
/// bytes were cut.
#[derive(Clone, Debug, Default)]
pub struct Utf8Gate {
    /// The beginning of a character: at most three bytes.
    pending: Vec<u8>,
}

impl Utf8Gate {
    /// Takes the next bytes and returns the text that has become certain.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::with_capacity(self.pending.len());
        let mut taken = 0;
        while taken < self.pending.len() {
            let rest = &self.pending[taken..];
            let Err(error) = std::str::from_utf8(rest).map(|whole| {
                text.push_str(whole);
                taken += whole.len();
            }) else {
                break;
            };
            let (valid, tail) = rest.split_at(error.valid_up_to());
            text.push_str(std::str::from_utf8(valid).unwrap_or_default());
            taken += valid.len();
            match error.error_len() {
                Some(ill_formed) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    taken += ill_formed;
                }
                None => {
                    debug_assert!(tail.len() < 4);
                    break;
                }
            }
        }
        self.pending.drain(..taken);
        text
    }

    /// Ends the stream: an unfinished character becomes U+FFFD. The gate is then ready for another stream.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes in which whole, broken and cut characters are all frequent.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            any::<char>().prop_map(|c| c.to_string().into_bytes()),
            "[a-z😀é]{1,3}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 1..4),
            prop::sample::select(vec![0xc3, 0xe2, 0x80, 0xf0, 0x9f, 0xed, 0xa0, 0xff]).prop_map(|b| vec![b]),
        ];
        prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_text(bytes in bytes(), cuts in prop::collection::vec(1usize..6, 1..60)) {
            let mut gate = Utf8Gate::default();
            let mut text = String::new();
            let mut rest = &bytes[..];
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (head, tail) = rest.split_at((*cut).min(rest.len()));
                text += &gate.push(head);
                rest = tail;
            }
            text += &gate.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
            prop_assert_eq!(gate.finish(), "");
        }

        #[test]
        fn a_whole_character_appears_at_once(text in any::<String>()) {
            let mut gate = Utf8Gate::default();
            for c in text.chars() {
                let mut buffer = [0; 4];
                let bytes = c.encode_utf8(&mut buffer).as_bytes();
                let (last, head) = bytes.split_last().unwrap();
                prop_assert_eq!(gate.push(head), "");
                prop_assert_eq!(gate.push(&[*last]), c.to_string());
            }
        }
    }

    #[test]
    fn one_replacement_for_each_maximal_subpart() {
        let mut gate = Utf8Gate::default();
        // Cut short by `a`; never a beginning; a surrogate, whose second byte already is wrong.
        assert_eq!(gate.push(b"\xf0\x9f\x98a"), "\u{fffd}a");
        assert_eq!(gate.push(b"\xff"), "\u{fffd}");
        assert_eq!(gate.push(b"\xed\xa0\x80"), "\u{fffd}\u{fffd}\u{fffd}");
        assert_eq!(gate.push(b"\xe2\x82"), "");
        assert_eq!(gate.finish(), "\u{fffd}");
    }
}
