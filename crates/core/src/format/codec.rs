//! The scalar meaning of the planes: which bits hold which weight, and its value.

use super::codebook::{E4M3_MAX, E8M0_MAX, e4m3, e8m0};
use super::{BLOCK_K, Codes, Format, MAX_STEP, PLANES, PackedMatrix, SUPER_K, ScaleForm, TILE_N};
use crate::buffer::Bytes;
use crate::{Error, Result};

impl Format {
    /// The format called `name` in [`super::FORMATS`].
    pub fn from_name(name: &str) -> Option<Self> {
        super::FORMATS.iter().find(|spec| spec.name == name).map(|spec| spec.format)
    }

    /// The bytes that fill the padding of `W` and `X`: codes that equal the offset.
    pub(crate) fn padding(self) -> [u8; 2] {
        let spec = self.spec();
        let [low, high] = spec.codes.fields();
        // `field`, in every field of so many bits of a byte.
        let repeat = |field: i32, bits: usize| match bits {
            0 => 0,
            _ => (0..8).step_by(bits).fold(0, |byte, at| byte | ((field & ((1 << bits) - 1)) << at)) as u8,
        };
        [repeat(spec.offset, low), repeat(spec.offset >> low, high)]
    }
}

impl PackedMatrix {
    /// A matrix over planes that may be longer than needed (artifacts pad them to 256 bytes); they are cut to size.
    ///
    /// # Errors
    /// When a size overflows, a plane is too short, or a scale or min is not finite or out of its range. `name` is quoted in
    /// the message.
    pub fn new(name: &str, format: Format, n: usize, k: usize, planes: [Bytes; PLANES]) -> Result<Self> {
        let shape = |problem: String| Error::Shape { what: name.to_owned(), problem };
        if n == 0 || k == 0 {
            return Err(shape(format!("the matrix is {n} x {k}; both sides must be above 0")));
        }
        if let Some(problem) = format.refuses(k) {
            return Err(shape(problem));
        }
        let of = format.spec().name;
        let sizes = format
            .plane_sizes(n, k)
            .ok_or_else(|| shape(format!("{n} x {k} overflows the address space")))?;
        let mut planes = planes;
        for ((plane, size), letter) in planes.iter_mut().zip(sizes.array()).zip(PLANE_NAMES) {
            *plane = plane.prefix(size).ok_or_else(|| {
                shape(format!(
                    "plane {letter} has {} bytes, a {of} matrix of {n} x {k} needs {size}",
                    plane.len()
                ))
            })?;
        }
        let [w, x, s, m, d, c] = planes;
        let (halves, of_byte) = match format.spec().scale {
            ScaleForm::None | ScaleForm::Channel => (&[][..], u8::MAX),
            ScaleForm::F16 | ScaleForm::F16Min => (&[(&s, "S"), (&m, "M")][..], u8::MAX),
            ScaleForm::Super | ScaleForm::SuperMin => (&[(&d, "D")][..], u8::MAX),
            ScaleForm::Progressive => (&[][..], MAX_STEP),
            ScaleForm::E8m0 => (&[][..], E8M0_MAX),
            ScaleForm::E4m3 => (&[][..], E4M3_MAX),
        };
        for (plane, letter) in halves {
            if let Some(i) = first_non_finite_f16(plane) {
                return Err(shape(format!(
                    "plane {letter}, element {i} is {}; scales must be finite, the file is damaged",
                    f16_at(plane, i)
                )));
            }
        }
        if let Some(i) = s.iter().position(|byte| *byte > of_byte) {
            return Err(shape(format!(
                "plane S, element {i} is {}, at most {of_byte} expected; the file is damaged",
                s[i]
            )));
        }
        if let Some(i) = (0..c.len() / 4).find(|i| !f32_at(&c, *i).is_finite()) {
            let value = f32_at(&c, i);
            return Err(shape(format!(
                "plane C, element {i} is {value}; scales must be finite, the file is damaged"
            )));
        }
        Ok(Self { format, n, k, w, x, s, m, d, c })
    }

    /// The planes in order: W, X, S, M, D, C.
    pub fn planes(&self) -> [&Bytes; PLANES] {
        [&self.w, &self.x, &self.s, &self.m, &self.d, &self.c]
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
        self.planes().iter().map(|plane| plane.len()).sum()
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
                _ => f32_at(&self.w, i),
            };
        }
    }

    fn code_block(&self, block: usize, lane: usize, out: &mut [f32]) {
        let spec = self.format.spec();
        for (k, out) in out.iter_mut().enumerate() {
            let code = match spec.codes {
                Codes::I8 => {
                    let word = u32_at(&self.w, (block * 8 + k / 4) * TILE_N + lane);
                    i32::from(word.to_le_bytes()[k % 4] as i8)
                }
                _ => {
                    let [low, high] = spec.codes.fields();
                    let field = |plane, bits| field_at(plane, bits, block, lane, k);
                    field(&self.w, low) | field(&self.x, high) << low
                }
            };
            let (scale, min) = self.scale(block * BLOCK_K + k, lane);
            let value = scale * (self.step(block, lane) * spec.value(code)) as f32;
            *out = match min {
                Some(min) => value + min,
                None => value,
            };
        }
    }

    /// The integer that the codes of a block are multiplied with before they are scaled.
    fn step(&self, block: usize, lane: usize) -> i32 {
        match self.format.spec().scale {
            ScaleForm::Progressive => i32::from(self.s[block * TILE_N + lane]),
            _ => 1,
        }
    }

    /// Scale and min of the group of weight `k` of a column, where `k` goes on from tile to tile.
    fn scale(&self, k: usize, lane: usize) -> (f32, Option<f32>) {
        let spec = self.format.spec();
        let at = k / spec.group * TILE_N + lane;
        let sub = |plane: &[u8]| f32::from(plane[at] as i8);
        let of_super =
            |part: usize| f16_at(&self.d, (k / SUPER_K * spec.scale.parts() + part) * TILE_N + lane);
        match spec.scale {
            ScaleForm::None => (1.0, None),
            ScaleForm::F16 => (f16_at(&self.s, at), None),
            ScaleForm::F16Min => (f16_at(&self.s, at), Some(f16_at(&self.m, at))),
            ScaleForm::Super => (of_super(0) * sub(&self.s), None),
            ScaleForm::SuperMin => (of_super(0) * sub(&self.s), Some(of_super(1) * sub(&self.m))),
            ScaleForm::E8m0 => (e8m0(self.s[at]), None),
            ScaleForm::E4m3 => (e4m3(self.s[at]), None),
            ScaleForm::Channel | ScaleForm::Progressive => {
                (f32_at(&self.c, k / BLOCK_K / self.blocks() * TILE_N + lane), None)
            }
        }
    }
}

/// What the names of planes in artifacts end with.
pub(crate) const PLANE_NAMES: [&str; PLANES] = ["W", "X", "S", "M", "D", "C"];

/// The field of code `k` of a block in a plane of `bits` bits a code.
pub(crate) fn field_at(plane: &[u8], bits: usize, block: usize, lane: usize, k: usize) -> i32 {
    if bits == 0 {
        return 0;
    }
    let (word, k) = (k * bits / 32, k % (32 / bits));
    let word = u32_at(plane, (block * bits + word) * TILE_N + lane);
    (word >> (8 * (k % 4) + bits * (k / 4)) & ((1 << bits) - 1)) as i32
}

fn u16_at(bytes: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])
}

fn u32_at(bytes: &[u8], i: usize) -> u32 {
    u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
}

fn f32_at(bytes: &[u8], i: usize) -> f32 {
    f32::from_bits(u32_at(bytes, i))
}

fn f16_at(bytes: &[u8], i: usize) -> f32 {
    half::f16::from_bits(u16_at(bytes, i)).to_f32()
}

fn first_non_finite_f16(bytes: &[u8]) -> Option<usize> {
    bytes.chunks_exact(2).position(|h| h[1] & 0x7c == 0x7c)
}
