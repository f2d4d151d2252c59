//! The stand-ins of byte-level vocabularies: a printable character for every byte.
//!
//! Printable bytes of Latin-1 stand for themselves, the other 68 for U+0100 onwards, in order.

/// Whether the byte stands for itself.
const fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// Bytes that do not stand for themselves, in order.
const OTHERS: [u8; 68] = {
    let mut others = [0; 68];
    let (mut byte, mut n) = (0, 0);
    while byte < 256 {
        if !is_printable(byte as u8) {
            others[n] = byte as u8;
            n += 1;
        }
        byte += 1;
    }
    others
};

/// The character that stands for `byte`.
pub(super) fn stand_in(byte: u8) -> char {
    match OTHERS.binary_search(&byte) {
        Ok(n) => char::from_u32(0x100 + n as u32).unwrap_or(char::REPLACEMENT_CHARACTER),
        Err(_) => byte.into(),
    }
}

/// The byte that `c` stands for.
pub(super) fn byte(c: char) -> Option<u8> {
    match u8::try_from(c) {
        Ok(byte) => is_printable(byte).then_some(byte),
        Err(_) => OTHERS.get((c as usize).checked_sub(0x100)?).copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_printable_stand_in() {
        for b in 0..=255 {
            assert_eq!(byte(stand_in(b)), Some(b));
        }
        assert_eq!([b' ', b'\n', b'\t', 0, 0x7f, 0xad].map(stand_in), ['Ġ', 'Ċ', 'ĉ', 'Ā', 'ġ', 'Ń']);
        assert_eq!([' ', '\n', '\u{ad}', '\u{144}', '一'].map(byte), [None; 5]);
    }
}
