//! The superblocks of GGML's K types and of IQ4_XS: 256 codes, and scales (and mins) a byte each that are multiplied with an f16.
//!
//! GGML spreads 256 codes over bytes of which each holds one field of several codes that lie 32 apart: bits
//! `bits * j..` of byte `i` of a run of 32 belong to code `32 * j + i` of those that share the run.
//!
//! Each type is taken apart by one function and put together, from zero bytes, by the next one. The latter fail where a
//! scale or min does not fit into its bits, as it always does where it comes from a block of that type.

use crate::format::{SUPER_K, SuperScales};

/// What does not fit.
type Result = std::result::Result<(), String>;

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
    pub(super) const ZERO: Self = Self { codes: [0; SUPER_K], scales: [0; 16], mins: [0; 16], d: [0; 2] };

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

    pub(super) fn put_q2_k(&self, block: &mut [u8]) -> Result {
        for (i, (scale, min)) in self.scales.iter().zip(self.mins).enumerate() {
            block[i] = unsigned("scale", *scale, 0, 4)? | unsigned("min", min.wrapping_neg(), 0, 4)? << 4;
        }
        self.put_fields(&mut block[16..80], 2, 0);
        put_half(block, 80, self.d[0]);
        put_half(block, 82, self.d[1]);
        Ok(())
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

    pub(super) fn put_q3_k(&self, block: &mut [u8]) -> Result {
        self.put_fields(&mut block[..32], 1, 2);
        self.put_fields(&mut block[32..96], 2, 0);
        for (i, scale) in self.scales.iter().enumerate() {
            let scale = unsigned("scale", *scale, 32, 6)?;
            block[96 + i % 8] |= (scale & 15) << (4 * (i / 8));
            block[104 + i % 4] |= (scale >> 4) << (2 * (i / 4));
        }
        put_half(block, 108, self.d[0]);
        Ok(())
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

    pub(super) fn put_q45_k(&self, block: &mut [u8], five_bits: bool) -> Result {
        put_half(block, 0, self.d[0]);
        put_half(block, 2, self.d[1]);
        let packed = &mut block[4..16];
        for i in 0..8 {
            let scale = unsigned("scale", self.scales[i], 0, 6)?;
            let min = unsigned("min", self.mins[i].wrapping_neg(), 0, 6)?;
            if i < 4 {
                (packed[i], packed[i + 4]) = (scale, min);
            } else {
                packed[i + 4] = scale & 15 | min << 4;
                packed[i - 4] |= scale >> 4 << 6;
                packed[i] |= min >> 4 << 6;
            }
        }
        let low = if five_bits { 48 } else { 16 };
        self.put_fields(&mut block[low..low + 128], 4, 0);
        if five_bits {
            self.put_fields(&mut block[16..48], 1, 4);
        }
        Ok(())
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

    pub(super) fn put_q6_k(&self, block: &mut [u8]) -> Result {
        for (run, codes) in block[..128].chunks_exact_mut(64).zip(self.codes.chunks_exact(128)) {
            for (code, k) in codes.iter().zip(0..) {
                run[k % 64] |= (code & 15) << (4 * (k / 64));
            }
        }
        self.put_fields(&mut block[128..192], 2, 4);
        for (byte, scale) in block[192..208].iter_mut().zip(self.scales) {
            *byte = scale as u8;
        }
        put_half(block, 208, self.d[0]);
        Ok(())
    }

    /// IQ4_XS: d, bits 4 and 5 of 8 scales with offset 32, their low bits, codes: 16 bytes hold those of 32 in a row.
    pub(super) fn iq4_xs(block: &[u8]) -> Self {
        let mut out = Self { d: [half_at(block, 0), 0], ..Self::ZERO };
        let (high, low) = (half_at(block, 2), &block[4..8]);
        for i in 0..8 {
            let scale = low[i / 2] >> (4 * (i % 2)) & 15 | ((high >> (2 * i) & 3) as u8) << 4;
            out.scales[i] = scale as i8 - 32;
        }
        for (run, codes) in block[8..136].chunks_exact(16).zip(out.codes.chunks_exact_mut(32)) {
            for (code, k) in codes.iter_mut().zip(0..) {
                *code = run[k % 16] >> (4 * (k / 16)) & 15;
            }
        }
        out
    }

    /// The inverse of [`Self::iq4_xs`].
    pub(super) fn put_iq4_xs(&self, block: &mut [u8]) -> Result {
        put_half(block, 0, self.d[0]);
        let mut high = 0;
        for i in 0..8 {
            let scale = unsigned("scale", self.scales[i], 32, 6)?;
            block[4 + i / 2] |= (scale & 15) << (4 * (i % 2));
            high |= u16::from(scale >> 4) << (2 * i);
        }
        put_half(block, 2, high);
        for (run, codes) in block[8..136].chunks_exact_mut(16).zip(self.codes.chunks_exact(32)) {
            for (code, k) in codes.iter().zip(0..) {
                run[k % 16] |= code << (4 * (k / 16));
            }
        }
        Ok(())
    }

    fn add_fields(&mut self, bytes: &[u8], bits: usize, shift: usize) {
        add_fields(&mut self.codes, bytes, bits, shift);
    }

    fn put_fields(&self, bytes: &mut [u8], bits: usize, shift: usize) {
        put_fields(&self.codes, bytes, bits, shift);
    }
}

/// Adds a field of `bits` bits of all codes, at bit `shift` of each.
pub(super) fn add_fields(codes: &mut [u8; SUPER_K], bytes: &[u8], bits: usize, shift: usize) {
    let of_run = 32 * (8 / bits);
    for (run, codes) in bytes.chunks_exact(32).zip(codes.chunks_exact_mut(of_run)) {
        for (code, k) in codes.iter_mut().zip(0..) {
            *code |= (run[k % 32] >> (bits * (k / 32)) & ((1 << bits) - 1)) << shift;
        }
    }
}

/// Writes the field of `bits` bits at bit `shift` of all codes.
pub(super) fn put_fields(codes: &[u8; SUPER_K], bytes: &mut [u8], bits: usize, shift: usize) {
    let of_run = 32 * (8 / bits);
    for (run, codes) in bytes.chunks_exact_mut(32).zip(codes.chunks_exact(of_run)) {
        for (code, k) in codes.iter().zip(0..) {
            run[k % 32] |= (code >> shift & ((1 << bits) - 1)) << (bits * (k / 32));
        }
    }
}

pub(super) fn half_at(bytes: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([bytes[i], bytes[i + 1]])
}

pub(super) fn put_half(bytes: &mut [u8], i: usize, half: u16) {
    bytes[i..i + 2].copy_from_slice(&half.to_le_bytes());
}

/// `value + offset`, where it is a number of `bits` bits.
fn unsigned(what: &str, value: i8, offset: i16, bits: u32) -> std::result::Result<u8, String> {
    let shifted = i16::from(value) + offset;
    match u8::try_from(shifted) {
        Ok(field) if field >> bits == 0 => Ok(field),
        _ => Err(format!("{what} {value} does not fit into {bits} bits")),
    }
}
