//! Damaging files.

use crate::Rng;

/// `bytes` with one to four defects in the first `header_len` bytes: flipped bits, foreign bytes, huge or tiny numbers,
/// ranges lost, repeated or swapped, the end cut off.
pub fn mutate(rng: &mut Rng, bytes: &[u8], header_len: usize) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..=rng.below(4) {
        let limit = header_len.min(out.len());
        if limit < 16 {
            break;
        }
        let at = rng.below(limit - 8);
        match rng.below(9) {
            0 => out[at] ^= 1 << rng.below(8),
            1 => out[at] = rng.next_u64() as u8,
            2 => out[at..at + 8].copy_from_slice(&hostile_number(rng).to_le_bytes()),
            3 => out[at..at + 4].copy_from_slice(&(hostile_number(rng) as u32).to_le_bytes()),
            4 => {
                let end = (at + 1 + rng.below(64)).min(limit);
                out.drain(at..end);
            }
            5 => {
                let end = (at + 1 + rng.below(64)).min(limit);
                let range = out[at..end].to_vec();
                out.splice(at..at, range);
            }
            6 => {
                let from = rng.below(limit - 8);
                out.copy_within(from..from + 8, at);
            }
            7 => out.truncate(rng.below(out.len())),
            // A count or a length that is off by a little.
            _ => out[at] = out[at].wrapping_add(1 + rng.below(3) as u8),
        }
    }
    out
}

fn hostile_number(rng: &mut Rng) -> u64 {
    const NUMBERS: [u64; 12] = [
        0,
        1,
        u64::MAX,
        u64::MAX - 7,
        u64::MAX / 2,
        1 << 63,
        1 << 61,
        1 << 60,
        1 << 40,
        1 << 32,
        u32::MAX as u64,
        i32::MAX as u64,
    ];
    NUMBERS[rng.below(NUMBERS.len())]
}
