//! GGML's blocks of codes of 1 or 2 bits that share one f16: its bits, and the codes (the first 128, or all).

use super::superblock::{add_fields, half_at, put_fields, put_half};
use crate::format::SUPER_K;

type Block = (u16, [u8; SUPER_K]);

/// TQ1_0: 32 bytes of five digits to base 3, 16 bytes of five, 4 bytes of four, d. Digit `i` of the bytes of a run makes
/// codes one after the other, and then digit `i + 1`.
pub(super) fn tq1_0(block: &[u8]) -> Block {
    let mut codes = [0; SUPER_K];
    let mut at = 0;
    for (run, digits) in [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)] {
        let mut shifted = [0; 32];
        shifted[..run.len()].copy_from_slice(run);
        for _ in 0..digits {
            // A byte is a fraction of 256: three times it is the next digit, and what is left of the fraction.
            for (byte, code) in shifted.iter_mut().zip(&mut codes[at..at + run.len()]) {
                let three = u16::from(*byte) * 3;
                (*code, *byte) = ((three >> 8) as u8, three as u8);
            }
            at += run.len();
        }
    }
    (half_at(block, 52), codes)
}

/// The inverse of [`tq1_0`], as GGML writes it: the least byte that has these digits.
pub(super) fn put_tq1_0(scale: u16, codes: &[u8; SUPER_K], block: &mut [u8]) {
    let mut at = 0;
    for (run, digits) in [(0..32, 5), (32..48, 5), (48..52, 4)] {
        let len = run.len();
        for (i, byte) in block[run].iter_mut().enumerate() {
            let digit = |n: usize| if n < digits { u16::from(codes[at + n * len + i]) } else { 0 };
            let number = (0..5).fold(0, |number, n| number * 3 + digit(n));
            *byte = (number * 256).div_ceil(243) as u8;
        }
        at += digits * len;
    }
    put_half(block, 52, scale);
}

/// TQ2_0: codes, d.
pub(super) fn tq2_0(block: &[u8]) -> Block {
    let mut codes = [0; SUPER_K];
    add_fields(&mut codes, &block[..64], 2, 0);
    (half_at(block, 64), codes)
}

/// The inverse of [`tq2_0`].
pub(super) fn put_tq2_0(scale: u16, codes: &[u8; SUPER_K], block: &mut [u8]) {
    put_fields(codes, &mut block[..64], 2, 0);
    put_half(block, 64, scale);
}

/// Q1_0: d, 128 bits in order.
pub(super) fn q1_0(block: &[u8]) -> Block {
    let bit = |k: usize| if k < 128 { block[2 + k / 8] >> (k % 8) & 1 } else { 0 };
    (half_at(block, 0), std::array::from_fn(bit))
}

/// The inverse of [`q1_0`].
pub(super) fn put_q1_0(scale: u16, codes: &[u8; SUPER_K], block: &mut [u8]) {
    put_half(block, 0, scale);
    for (k, code) in codes[..128].iter().enumerate() {
        block[2 + k / 8] |= code << (k % 8);
    }
}
