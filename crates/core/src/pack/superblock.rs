//! The superblocks of GGML's K types: 256 codes, and scales (and mins) a byte each that are multiplied with an f16.
//!
//! GGML spreads 256 codes over bytes of which each holds one field of several codes that lie 32 apart: bits
//! `bits * j..` of byte `i` of a run of 32 belong to code `32 * j + i` of those that share the run.

use crate::format::{SUPER_K, SuperScales};

/// A superblock, taken apart.
pub(super) struct Superblock {
    /// Unsigned codes.
    pub codes: [u8; SUPER_K],
    /// Scales of the groups of 16 (all) or 32 (the first 8).
    pub scales: [i8; 16],
    /// Mins of the same groups, to be added: GGML subtracts theirs.
    pub mins: [i8; 16],
    /// The bits of the f16 with which scales and mins are multiplied.
    pub d: [u16; 2],
}

impl Superblock {
    const ZERO: Self = Self { codes: [0; SUPER_K], scales: [0; 16], mins: [0; 16], d: [0; 2] };

    /// The scales alone.
    pub(super) fn of_scales(stored: &SuperScales) -> Self {
        let SuperScales { scales, mins, d } = *stored;
        Self { scales, mins, d: d.map(half::f16::to_bits), ..Self::ZERO }
    }

    /// Q2_K: scales and mins (4 bits each) of 16 groups, codes, d, dmin.
    pub(super) fn q2_k(block: &[u8]) -> Self {
        let mut out = Self { d: [half_at(block, 80), half_at(block, 82)], ..Self::ZERO };
        for (i, byte) in block[..16].iter().enumerate() {
            (out.scales[i], out.mins[i]) = ((byte & 15) as i8, -((byte >> 4) as i8));
        }
        out.add_fields(&block[16..80], 2, 0);
        out
    }

    /// Q3_K: bit 2 of the codes, their low bits, 16 scales of 6 bits with offset 32, d.
    pub(super) fn q3_k(block: &[u8]) -> Self {
        let mut out = Self { d: [half_at(block, 108), 0], ..Self::ZERO };
        out.add_fields(&block[32..96], 2, 0);
        out.add_fields(&block[..32], 1, 2);
        let packed = &block[96..108];
        for (i, scale) in out.scales.iter_mut().enumerate() {
            let low = packed[i % 8] >> (4 * (i / 8)) & 15;
            let high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
            *scale = (low | high << 4) as i8 - 32;
        }
        out
    }

    /// Q4_K and Q5_K: d, dmin, scales and mins (6 bits each) of 8 groups, bit 4 of the codes of Q5_K, their low bits.
    pub(super) fn q45_k(block: &[u8], five_bits: bool) -> Self {
        let mut out = Self { d: [half_at(block, 0), half_at(block, 2)], ..Self::ZERO };
        let packed = &block[4..16];
        for i in 0..8 {
            let (scale, min) = if i < 4 {
                (packed[i] & 63, packed[i + 4] & 63)
            } else {
                let high = |byte: u8| byte >> 6 << 4;
                (packed[i + 4] & 15 | high(packed[i - 4]), packed[i + 4] >> 4 | high(packed[i]))
            };
            (out.scales[i], out.mins[i]) = (scale as i8, -(min as i8));
        }
        let low = if five_bits { 48 } else { 16 };
        out.add_fields(&block[low..low + 128], 4, 0);
        if five_bits {
            out.add_fields(&block[16..48], 1, 4);
        }
        out
    }

    /// Q6_K: low 4 bits of the codes, high 2 bits, 16 signed scales, d.
    pub(super) fn q6_k(block: &[u8]) -> Self {
        let mut out = Self { d: [half_at(block, 208), 0], ..Self::ZERO };
        // Runs of 64 bytes, not 32, share their codes: 128 of them.
        for (run, codes) in block[..128].chunks_exact(64).zip(out.codes.chunks_exact_mut(128)) {
            for (code, k) in codes.iter_mut().zip(0..) {
                *code = run[k % 64] >> (4 * (k / 64)) & 15;
            }
        }
        out.add_fields(&block[128..192], 2, 4);
        for (scale, byte) in out.scales.iter_mut().zip(&block[192..208]) {
            *scale = *byte as i8;
        }
        out
    }

    /// Adds a field of `bits` bits of all codes, at bit `shift` of each.
    fn add_fields(&mut self, bytes: &[u8], bits: usize, shift: usize) {
        let of_run = 32 * (8 / bits);
        for (run, codes) in bytes.chunks_exact(32).zip(self.codes.chunks_exact_mut(of_run)) {
            for (code, k) in codes.iter_mut().zip(0..) {
                *code |= (run[k % 32] >> (bits * (k / 32)) & ((1 << bits) - 1)) << shift;
            }
        }
    }
}

fn half_at(bytes: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([bytes[i], bytes[i + 1]])
}
