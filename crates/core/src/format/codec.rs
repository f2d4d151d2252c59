//! The scalar meaning of the planes: which bits hold which weight, and its value.

use super::{BLOCK_K, Codes, Format, PackedMatrix, PlaneSizes, ScaleForm, TILE_N};
use crate::buffer::Bytes;
use crate::{Error, Result};

impl Format {
    /// The format called `name` in [`super::FORMATS`].
    pub fn from_name(name: &str) -> Option<Self> {
        super::FORMATS.iter().find(|spec| spec.name == name).map(|spec| spec.format)
    }

    /// The byte that fills the padding of `W` and `X`: codes that equal the offset.
    pub(crate) fn padding(self) -> (u8, u8) {
        match self {
            Self::Q4 => (0x88, 0),
            Self::Q5 => (0, 0xff),
            _ => (0, 0),
        }
    }
}

impl PackedMatrix {
    /// A matrix over planes that may be longer than needed (artifacts pad them to 256 bytes); they are cut to size.
    ///
    /// # Errors
    /// When a size overflows, a plane is too short, or a scale or min is not finite. `name` is quoted in the message.
    pub fn new(name: &str, format: Format, n: usize, k: usize, planes: [Bytes; 4]) -> Result<Self> {
        let shape = |problem: String| Error::Shape { what: name.to_owned(), problem };
        if n == 0 || k == 0 {
            return Err(shape(format!("the matrix is {n} x {k}; both sides must be above 0")));
        }
        let sizes = format
            .plane_sizes(n, k)
            .ok_or_else(|| shape(format!("{n} x {k} overflows the address space")))?;
        let PlaneSizes { w, x, s, m } = sizes;
        let mut planes = planes;
        for ((plane, size), letter) in planes.iter_mut().zip([w, x, s, m]).zip(["W", "X", "S", "M"]) {
            *plane = plane.prefix(size).ok_or_else(|| {
                shape(format!(
                    "plane {letter} has {} bytes, a {} matrix of {n} x {k} needs {size}",
                    plane.len(),
                    format.spec().name
                ))
            })?;
        }
        let [w, x, s, m] = planes;
        for (plane, letter) in [(&s, "S"), (&m, "M")] {
            if let Some(i) = first_non_finite_f16(plane) {
                return Err(shape(format!(
                    "plane {letter}, element {i} is {}; scales must be finite, the file is damaged",
                    f16_at(plane, i)
                )));
            }
        }
        Ok(Self { format, n, k, w, x, s, m })
    }

    /// Blocks along `k`.
    pub fn blocks(&self) -> usize {
        self.k.div_ceil(BLOCK_K)
    }

    /// Tiles along `n`.
    pub fn tiles(&self) -> usize {
        self.n.div_ceil(TILE_N)
    }

    /// Bytes of all planes.
    pub fn byte_len(&self) -> usize {
        self.w.len() + self.x.len() + self.s.len() + self.m.len()
    }

    /// The weights of output feature `row`, as f32. This is the definition of every format's values; products of scale
    /// and code, and their sum with a min, are each rounded to f32.
    ///
    /// Panics unless `row < n` and `out` has `k` elements.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n && out.len() == self.k, "row {row} of {}, {} outputs", self.n, out.len());
        let (tile, lane) = (row / TILE_N, row % TILE_N);
        for (b, out) in out.chunks_mut(BLOCK_K).enumerate() {
            let block = tile * self.blocks() + b;
            if self.format.spec().codes == Codes::Float {
                self.float_block(block, lane, out);
            } else {
                self.code_block(block, lane, out);
            }
        }
    }

    fn float_block(&self, block: usize, lane: usize, out: &mut [f32]) {
        for (k, out) in out.iter_mut().enumerate() {
            let i = (block * BLOCK_K + k) * TILE_N + lane;
            *out = match self.format {
                Format::F16 => f16_at(&self.w, i),
                Format::Bf16 => f32::from_bits(u32::from(u16_at(&self.w, i)) << 16),
                _ => f32::from_bits(u32_at(&self.w, i)),
            };
        }
    }

    fn code_block(&self, block: usize, lane: usize, out: &mut [f32]) {
        let spec = self.format.spec();
        let scale = f16_at(&self.s, block * TILE_N + lane);
        let min = match spec.scale {
            ScaleForm::F16Min => Some(f16_at(&self.m, block * TILE_N + lane)),
            _ => None,
        };
        let mut codes = [0i32; BLOCK_K];
        match spec.codes {
            Codes::I8 => {
                for (word, codes) in codes.chunks_exact_mut(4).enumerate() {
                    let bytes = u32_at(&self.w, (block * 8 + word) * TILE_N + lane).to_le_bytes();
                    for (code, byte) in codes.iter_mut().zip(bytes) {
                        *code = i32::from(byte as i8);
                    }
                }
            }
            _ => {
                let high = match spec.codes {
                    Codes::U5 => u32_at(&self.x, block * TILE_N + lane),
                    _ => 0,
                };
                for (word, codes) in codes.chunks_exact_mut(8).enumerate() {
                    let bits = u32_at(&self.w, (block * 4 + word) * TILE_N + lane);
                    for (i, code) in codes.iter_mut().enumerate() {
                        let k = word * 8 + i;
                        let nibble = bits >> (8 * (i % 4) + 4 * (i / 4)) & 15;
                        let bit = high >> (8 * (k % 4) + k / 4) & 1;
                        *code = (nibble | bit << 4) as i32;
                    }
                }
            }
        }
        for (out, code) in out.iter_mut().zip(codes) {
            let value = scale * (code - spec.offset) as f32;
            *out = match min {
                Some(min) => value + min,
                None => value,
            };
        }
    }
}

fn u16_at(bytes: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])
}

fn u32_at(bytes: &[u8], i: usize) -> u32 {
    u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
}

fn f16_at(bytes: &[u8], i: usize) -> f32 {
    half::f16::from_bits(u16_at(bytes, i)).to_f32()
}

fn first_non_finite_f16(bytes: &[u8]) -> Option<usize> {
    bytes.chunks_exact(2).position(|h| h[1] & 0x7c == 0x7c)
}
