//! What tests of several modules need.

/// A file of `tests/golden`.
pub(super) fn golden_json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

/// The bytes that a string of such a file holds in hexadecimal.
pub(super) fn golden_bytes(hex: &serde_json::Value) -> Vec<u8> {
    let (pairs, rest) = hex.as_str().unwrap().as_bytes().as_chunks::<2>();
    assert!(rest.is_empty());
    pairs.iter().map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Numbers that look random but are the same in every run.
pub(super) struct Noise(pub u64);

impl Noise {
    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 32) as u32
    }

    /// Up to `limit` excluded.
    pub fn below(&mut self, limit: u32) -> u32 {
        ((u64::from(self.bits()) * u64::from(limit)) >> 32) as u32
    }

    /// The highest bit of a byte, set or not.
    pub fn sign(&mut self) -> u8 {
        self.below(2) as u8 * 0x80
    }

    /// Of magnitudes from 2^-8 to 1, of either sign.
    pub fn float(&mut self) -> f32 {
        let magnitude = f32::from_bits((119 + self.below(8)) << 23 | self.below(1 << 23));
        if self.bits() >> 31 == 0 { magnitude } else { -magnitude }
    }

    pub fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.float()).collect()
    }

    pub fn int8s(&mut self, len: usize) -> Vec<i8> {
        (0..len).map(|_| (self.bits() >> 24) as i8).collect()
    }

    /// Small multiples of 1/4: their products and short sums are exact in f32.
    pub fn quarters(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (self.below(33) as f32 - 16.0) / 4.0).collect()
    }
}
