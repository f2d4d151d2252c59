//! Dynamic quantisation of activations (accuracy contract, level A').
//!
//! Every 32 values of a row share a scale. With `m` their largest magnitude and `Q` = 127 (a8) or 16256 = 127 * 128
//! (a16): `d = m / Q`, `r = Q / m`, `q = clamp(round(x * r), -Q, Q)`, every operation rounded to f32, ties to even.
//! Two bytes hold a code of a16: `hi = (q + 64) >> 7`, `lo = q - 128 * hi`, so that both are dot products of signed
//! bytes and `q = 128 * hi + lo`.
//!
//! A block of zeros, and one so small that `r` is infinite, has `d = 1` and codes 0. Infinities saturate; a NaN counts
//! as the largest float, so that every ISA does the same with it.

use crate::format::BLOCK_K;
use crate::simd::{LANES, Simd};
use crate::{Error, Result};

/// The precision of activations in matrix products: a property of the model, the same on every device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activations {
    /// One signed byte per value, one scale per 32.
    A8,
    /// Two signed bytes per value (`128 * hi + lo`), one scale per 32: as exact as f32.
    A16,
}

/// The codes of 32 values in `P` planes: 1 for a8, 2 (hi, lo) for a16.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Block<const P: usize> {
    /// Signed bytes, `[plane][k]`.
    pub codes: [[i8; BLOCK_K]; P],
    /// `x = scale * q`
    pub scale: f32,
    /// Sum of the codes `q`.
    pub sum: i32,
}

impl<const P: usize> Block<P> {
    const ZERO: Self = Self { codes: [[0; BLOCK_K]; P], scale: 1.0, sum: 0 };
    /// The largest code.
    const MAX: f32 = if P == 1 { 127.0 } else { 16256.0 };

    #[inline(always)]
    fn quantize<S: Simd>(&mut self, s: S, x: &[f32; BLOCK_K]) {
        let (low, high) = halves(x);
        let x = [finite(s, s.load(low)), finite(s, s.load(high))];
        let largest = s.reduce_max(s.max(s.abs(x[0]), s.abs(x[1])));
        let mut r = Self::MAX / largest;
        self.scale = largest / Self::MAX;
        if r == f32::INFINITY {
            (r, self.scale) = (0.0, 1.0);
        }
        let mut q = [[0; LANES]; 2];
        for (x, q) in x.into_iter().zip(&mut q) {
            let rounded = s.round(s.mul(x, s.splat(r)));
            let clamped = s.min(s.max(rounded, s.splat(-Self::MAX)), s.splat(Self::MAX));
            s.store_i32(s.f32_to_i32(clamped), q);
        }
        self.encode(q.as_flattened());
    }

    #[inline(always)]
    fn encode(&mut self, q: &[i32]) {
        self.sum = q.iter().sum();
        if P == 1 {
            for (code, &q) in self.codes[0].iter_mut().zip(q) {
                *code = q as i8;
            }
        } else {
            for (i, &q) in q.iter().enumerate().take(BLOCK_K) {
                let hi = (q + 64) >> 7;
                self.codes[0][i] = hi as i8;
                self.codes[P - 1][i] = (q - 128 * hi) as i8;
            }
        }
    }
}

/// Clamps to the finite floats; a NaN becomes the largest.
#[inline(always)]
fn finite<S: Simd>(s: S, x: S::F32) -> S::F32 {
    s.max(s.min(x, s.splat(f32::MAX)), s.splat(f32::MIN))
}

#[inline(always)]
fn halves(x: &[f32; BLOCK_K]) -> (&[f32; LANES], &[f32; LANES]) {
    let [low, high]: &[[f32; LANES]; 2] = bytemuck::cast_ref(x);
    (low, high)
}

/// Rows of quantised activations, `[row][k/32]` blocks; a buffer that is used again and again.
#[derive(Clone, Debug)]
pub struct QuantizedRows {
    rows: usize,
    k: usize,
    blocks: Blocks,
}

/// The blocks of some rows, in either precision.
#[derive(Clone, Debug)]
enum Blocks {
    A8(Vec<Block<1>>),
    A16(Vec<Block<2>>),
}

/// A borrowed view of the blocks of a [`QuantizedRows`].
#[derive(Clone, Copy, Debug)]
pub enum BlocksRef<'a> {
    /// One plane.
    A8(&'a [Block<1>]),
    /// Planes hi and lo.
    A16(&'a [Block<2>]),
}

impl QuantizedRows {
    /// No rows yet.
    pub fn new(activations: Activations) -> Self {
        let blocks = match activations {
            Activations::A8 => Blocks::A8(Vec::new()),
            Activations::A16 => Blocks::A16(Vec::new()),
        };
        Self { rows: 0, k: 0, blocks }
    }

    /// The precision.
    pub fn activations(&self) -> Activations {
        match self.blocks {
            Blocks::A8(_) => Activations::A8,
            Blocks::A16(_) => Activations::A16,
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The blocks, `[row][k.div_ceil(32)]`.
    pub fn blocks(&self) -> BlocksRef<'_> {
        match &self.blocks {
            Blocks::A8(blocks) => BlocksRef::A8(blocks),
            Blocks::A16(blocks) => BlocksRef::A16(blocks),
        }
    }

    /// Makes room for `rows` rows of `k` values and returns them for [`RowsMut::quantize`]: whole, or split between
    /// threads. Every row must be written before it is read; until then it holds what the buffer held.
    pub fn resize(&mut self, rows: usize, k: usize) -> RowsMut<'_> {
        (self.rows, self.k) = (rows, k);
        let len = rows * k.div_ceil(BLOCK_K);
        let blocks = match &mut self.blocks {
            Blocks::A8(blocks) => {
                blocks.resize(len, Block::ZERO);
                BlocksMut::A8(blocks)
            }
            Blocks::A16(blocks) => {
                blocks.resize(len, Block::ZERO);
                BlocksMut::A16(blocks)
            }
        };
        RowsMut { rows, k, blocks }
    }

    /// Quantises the rows of `x`, `[rows][k]`.
    #[inline(always)]
    pub fn quantize<S: Simd>(&mut self, s: S, x: &[f32], k: usize) -> Result<()> {
        self.resize(x.len() / k.max(1), k).quantize(s, x)
    }
}

/// Rows that are about to be written.
#[derive(Debug)]
pub struct RowsMut<'a> {
    rows: usize,
    k: usize,
    blocks: BlocksMut<'a>,
}

#[derive(Debug)]
enum BlocksMut<'a> {
    A8(&'a mut [Block<1>]),
    A16(&'a mut [Block<2>]),
}

impl<'a> RowsMut<'a> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The first `rows` rows (at most all) and the others.
    pub fn split_at(self, rows: usize) -> (RowsMut<'a>, RowsMut<'a>) {
        let first = rows.min(self.rows);
        let blocks = first * self.k.div_ceil(BLOCK_K);
        let (left, right) = match self.blocks {
            BlocksMut::A8(all) => {
                let (left, right) = all.split_at_mut(blocks);
                (BlocksMut::A8(left), BlocksMut::A8(right))
            }
            BlocksMut::A16(all) => {
                let (left, right) = all.split_at_mut(blocks);
                (BlocksMut::A16(left), BlocksMut::A16(right))
            }
        };
        let part = |rows, blocks| RowsMut { rows, k: self.k, blocks };
        (part(first, left), part(self.rows - first, right))
    }

    /// Writes the codes of `x`, `[rows][k]`.
    #[inline(always)]
    pub fn quantize<S: Simd>(self, s: S, x: &[f32]) -> Result<()> {
        if x.len() != self.rows * self.k {
            let problem = format!("{} values for {} rows of {}", x.len(), self.rows, self.k);
            return Err(Error::Shape { what: "activations".into(), problem });
        }
        match self.blocks {
            BlocksMut::A8(blocks) => quantize_rows(s, x, self.k, blocks),
            BlocksMut::A16(blocks) => quantize_rows(s, x, self.k, blocks),
        }
        Ok(())
    }
}

#[inline(always)]
fn quantize_rows<S: Simd, const P: usize>(s: S, x: &[f32], k: usize, blocks: &mut [Block<P>]) {
    if k == 0 {
        return;
    }
    for (row, blocks) in x.chunks_exact(k).zip(blocks.chunks_exact_mut(k.div_ceil(BLOCK_K))) {
        let (whole, rest) = row.as_chunks::<BLOCK_K>();
        for (x, block) in whole.iter().zip(blocks.iter_mut()) {
            block.quantize(s, x);
        }
        if let (false, Some(last)) = (rest.is_empty(), blocks.last_mut()) {
            let mut padded = [0.0; BLOCK_K];
            padded[..rest.len()].copy_from_slice(rest);
            last.quantize(s, &padded);
        }
    }
}
