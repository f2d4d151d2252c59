//! Dynamic quantisation of activations (accuracy contract, level A').
//!
//! Every 32 values of a row share a scale. With `m` their largest magnitude and `Q` = 127 (a8) or 16256 = 127 * 128
//! (a16): `d = m / Q`, `r = Q / m`, `q = clamp(round(x * r), -Q, Q)`, every operation rounded to f32, ties to even.
//! [`Scaling::Row`] has one such scale for all values of a row. Two bytes hold a code of a16: `hi = (q + 64) >> 7`, `lo = q - 128 * hi`, so that both are dot products of signed
//! bytes and `q = 128 * hi + lo`.
//!
//! Values that are all zeros, or so small that `r` is infinite, have `d = 1` and codes 0. Infinities saturate; a NaN counts
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

impl Activations {
    /// All precisions.
    pub const ALL: [Self; 2] = [Self::A8, Self::A16];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::A8 => "a8",
            Self::A16 => "a16",
        }
    }
}

/// Which values share a scale. The format of the matrix that reads rows asks for one or the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scaling {
    /// The 32 of a block.
    Block,
    /// All of a row (accuracy contract, mode T).
    Row,
    /// All of a row, and the scale is the least power of two with which all codes fit: no device rounds when it scales
    /// with it, so that products are the same bits on all of them. For comparisons; it costs up to a bit of precision.
    Strict,
}

/// Rows of a panel: as many as a matrix engine takes at once.
pub const PANEL: usize = 16;

/// The codes of 32 values: signed bytes, `[plane][k]`, in 1 plane for a8 and 2 (hi, lo) for a16. No plane crosses a
/// cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(32))]
pub struct RowCodes<const P: usize>(pub [[i8; BLOCK_K]; P]);

impl<const P: usize> RowCodes<P> {
    const ZERO: Self = Self([[0; BLOCK_K]; P]);
    /// The largest code.
    const MAX: f32 = if P == 1 { 127.0 } else { 16256.0 };

    /// The scale of values of which `largest` has the largest magnitude, and what these are multiplied with.
    #[inline(always)]
    fn scale(largest: f32) -> Scale {
        let (scale, r) = (largest / Self::MAX, Self::MAX / largest);
        if r == f32::INFINITY { Scale::NONE } else { Scale { scale, r } }
    }

    /// The same for a scale `2^e` with the least `e` such that `largest <= MAX * 2^e`.
    #[inline(always)]
    fn strict_scale(largest: f32) -> Scale {
        // 127 is 1.984375 * 2^6.
        const SIGNIFICAND: u32 = 127 << 17;
        let bits = largest.to_bits();
        let above = u32::from(bits & 0x7f_ffff | 0x80_0000 > SIGNIFICAND);
        let exponent = ((bits >> 23) + above).saturating_sub(if P == 1 { 6 } else { 13 });
        if exponent == 0 {
            return Scale::NONE;
        }
        Scale { scale: f32::from_bits(exponent << 23), r: f32::from_bits((254 - exponent) << 23) }
    }

    /// Quantises `x`, whose scale is `of_row` where a row has one; returns the scale, with which `x = scale * q`, and the
    /// sums of the first half of the codes `q` and of all.
    #[inline(always)]
    fn quantize<S: Simd>(&mut self, s: S, x: &[f32; BLOCK_K], of_row: Option<Scale>) -> (f32, i32, i32) {
        let mut q = load(s, x);
        let Scale { scale, r } = match of_row {
            Some(scale) => scale,
            None => Self::scale(largest(s, q)),
        };
        let mut codes = [[0; LANES]; 2];
        for (q, codes) in q.iter_mut().zip(&mut codes) {
            let rounded = s.round(s.mul(*q, s.splat(r)));
            *q = s.min(s.max(rounded, s.splat(-Self::MAX)), s.splat(Self::MAX));
            s.store_i32(s.f32_to_i32(*q), codes);
        }
        self.encode(codes.as_flattened());
        // Integers below 2^24: exact in any order.
        let [first, second] = [s.reduce_add(q[0]) as i32, s.reduce_add(q[1]) as i32];
        (scale, first, first + second)
    }

    #[inline(always)]
    fn encode(&mut self, q: &[i32]) {
        if P == 1 {
            for (code, &q) in self.0[0].iter_mut().zip(q) {
                *code = q as i8;
            }
        } else {
            for (i, &q) in q.iter().enumerate().take(BLOCK_K) {
                let hi = (q + 64) >> 7;
                self.0[0][i] = hi as i8;
                self.0[P - 1][i] = (q - 128 * hi) as i8;
            }
        }
    }
}

/// A scale, and what values are multiplied with to become codes.
#[derive(Clone, Copy)]
struct Scale {
    scale: f32,
    r: f32,
}

impl Scale {
    /// Of values that have none: their codes are 0.
    const NONE: Self = Self { scale: 1.0, r: 0.0 };
}

/// One block of `R` neighbouring rows.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a, const P: usize, const R: usize> {
    /// The codes `q`.
    pub codes: &'a [RowCodes<P>; R],
    /// `x = scale * q`
    pub scales: &'a [f32; R],
    /// Sums of the codes `q`.
    pub sums: &'a [i32; R],
    /// Sums of the first 16 of them.
    pub first_sums: &'a [i32; R],
}

impl<const P: usize, const R: usize> Block<'_, P, R> {
    /// The sums over the halves of the codes of a row.
    #[inline(always)]
    pub fn sums_of_halves(&self, row: usize) -> [i32; 2] {
        [self.first_sums[row], self.sums[row] - self.first_sums[row]]
    }
}

/// Clamps to the finite floats; a NaN becomes the largest.
#[inline(always)]
fn finite<S: Simd>(s: S, x: S::F32) -> S::F32 {
    s.max(s.min(x, s.splat(f32::MAX)), s.splat(f32::MIN))
}

/// A block, made finite.
#[inline(always)]
fn load<S: Simd>(s: S, x: &[f32; BLOCK_K]) -> [S::F32; 2] {
    let [low, high]: &[[f32; LANES]; 2] = bytemuck::cast_ref(x);
    [finite(s, s.load(low)), finite(s, s.load(high))]
}

/// The largest magnitude.
#[inline(always)]
fn largest<S: Simd>(s: S, x: [S::F32; 2]) -> f32 {
    s.reduce_max(s.max(s.abs(x[0]), s.abs(x[1])))
}

/// A block whose last values are zeros.
#[inline(always)]
fn padded(rest: &[f32]) -> [f32; BLOCK_K] {
    let mut block = [0.0; BLOCK_K];
    block[..rest.len()].copy_from_slice(rest);
    block
}

/// Rows of quantised activations; a buffer that is used again and again.
///
/// They lie in panels of [`PANEL`] rows (the last has what is left), `[panel][block][row]`: what one block of a product
/// reads is contiguous.
#[derive(Clone, Debug)]
pub struct QuantizedRows {
    scaling: Scaling,
    rows: usize,
    k: usize,
    planes: Planes,
}

/// The rows in either precision.
#[derive(Clone, Debug)]
enum Planes {
    A8(Buffers<1>),
    A16(Buffers<2>),
}

/// Per block of a row an item.
#[derive(Clone, Debug, Default)]
struct Buffers<const P: usize> {
    codes: Vec<RowCodes<P>>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    first_sums: Vec<i32>,
}

/// A borrowed view of a [`QuantizedRows`].
#[derive(Clone, Copy, Debug)]
pub enum PanelsRef<'a> {
    /// One plane.
    A8(Panels<'a, 1>),
    /// Planes hi and lo.
    A16(Panels<'a, 2>),
}

/// Rows in panels.
#[derive(Clone, Copy, Debug)]
pub struct Panels<'a, const P: usize> {
    rows: usize,
    blocks: usize,
    buffers: &'a Buffers<P>,
}

/// Neighbouring rows.
#[derive(Clone, Copy, Debug)]
pub struct Panel<'a, const P: usize> {
    /// How many: at most [`PANEL`].
    pub rows: usize,
    /// `[block][row]`
    pub codes: &'a [RowCodes<P>],
    /// `[block][row]`: `x = scale * q`
    pub scales: &'a [f32],
    /// `[block][row]`: the sum of the codes `q`.
    pub sums: &'a [i32],
    /// `[block][row]`: the sum of the first 16 of them.
    pub first_sums: &'a [i32],
}

impl<'a, const P: usize> Panels<'a, P> {
    /// All panels, in order of rows.
    #[inline(always)]
    pub fn iter(self) -> impl Iterator<Item = Panel<'a, P>> {
        (0..self.rows).step_by(PANEL).map(move |first| self.panel(first))
    }

    /// The panel that begins with row `first`.
    #[inline(always)]
    pub fn panel(self, first: usize) -> Panel<'a, P> {
        let Self { rows, blocks, buffers } = self;
        let rows = PANEL.min(rows - first);
        let (start, len) = (first * blocks, rows * blocks);
        Panel {
            rows,
            codes: &buffers.codes[start..][..len],
            scales: &buffers.scales[start..][..len],
            sums: &buffers.sums[start..][..len],
            first_sums: &buffers.first_sums[start..][..len],
        }
    }
}

impl<const P: usize> Buffers<P> {
    fn resize(&mut self, len: usize) -> BuffersMut<'_, P> {
        self.codes.resize(len, RowCodes::ZERO);
        self.scales.resize(len, 1.0);
        self.sums.resize(len, 0);
        self.first_sums.resize(len, 0);
        BuffersMut {
            codes: &mut self.codes,
            scales: &mut self.scales,
            sums: &mut self.sums,
            first_sums: &mut self.first_sums,
        }
    }
}

impl QuantizedRows {
    /// No rows yet, whose blocks will have scales.
    pub fn new(activations: Activations) -> Self {
        Self::with(activations, Scaling::Block)
    }

    /// No rows yet.
    pub fn with(activations: Activations, scaling: Scaling) -> Self {
        let planes = match activations {
            Activations::A8 => Planes::A8(Buffers::default()),
            Activations::A16 => Planes::A16(Buffers::default()),
        };
        Self { scaling, rows: 0, k: 0, planes }
    }

    /// The precision.
    pub fn activations(&self) -> Activations {
        match self.planes {
            Planes::A8(_) => Activations::A8,
            Planes::A16(_) => Activations::A16,
        }
    }

    /// Which values share a scale.
    pub fn scaling(&self) -> Scaling {
        self.scaling
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The rows.
    pub fn panels(&self) -> PanelsRef<'_> {
        let (rows, blocks) = (self.rows, self.k.div_ceil(BLOCK_K));
        match &self.planes {
            Planes::A8(buffers) => PanelsRef::A8(Panels { rows, blocks, buffers }),
            Planes::A16(buffers) => PanelsRef::A16(Panels { rows, blocks, buffers }),
        }
    }

    /// Makes room for `rows` rows of `k` values and returns them for [`RowsMut::quantize`]: whole, or split between
    /// threads. Every row must be written before it is read; until then it holds what the buffer held.
    pub fn resize(&mut self, rows: usize, k: usize) -> RowsMut<'_> {
        (self.rows, self.k) = (rows, k);
        let len = rows * k.div_ceil(BLOCK_K);
        let planes = match &mut self.planes {
            Planes::A8(buffers) => PlanesMut::A8(buffers.resize(len)),
            Planes::A16(buffers) => PlanesMut::A16(buffers.resize(len)),
        };
        RowsMut { scaling: self.scaling, rows, k, planes }
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
    scaling: Scaling,
    rows: usize,
    k: usize,
    planes: PlanesMut<'a>,
}

#[derive(Debug)]
enum PlanesMut<'a> {
    A8(BuffersMut<'a, 1>),
    A16(BuffersMut<'a, 2>),
}

/// As [`Buffers`].
#[derive(Debug)]
struct BuffersMut<'a, const P: usize> {
    codes: &'a mut [RowCodes<P>],
    scales: &'a mut [f32],
    sums: &'a mut [i32],
    first_sums: &'a mut [i32],
}

impl<'a> RowsMut<'a> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The rows of the first `panels` panels (at most all) and the others.
    pub fn split_at(self, panels: usize) -> (RowsMut<'a>, RowsMut<'a>) {
        let first = panels.saturating_mul(PANEL).min(self.rows);
        let blocks = first * self.k.div_ceil(BLOCK_K);
        let (left, right) = match self.planes {
            PlanesMut::A8(all) => {
                let (left, right) = all.split_at(blocks);
                (PlanesMut::A8(left), PlanesMut::A8(right))
            }
            PlanesMut::A16(all) => {
                let (left, right) = all.split_at(blocks);
                (PlanesMut::A16(left), PlanesMut::A16(right))
            }
        };
        let part = |rows, planes| RowsMut { scaling: self.scaling, rows, k: self.k, planes };
        (part(first, left), part(self.rows - first, right))
    }

    /// Writes the codes of `x`, `[rows][k]`.
    #[inline(always)]
    pub fn quantize<S: Simd>(self, s: S, x: &[f32]) -> Result<()> {
        if x.len() != self.rows * self.k {
            let problem = format!("{} values for {} rows of {}", x.len(), self.rows, self.k);
            return Err(Error::Shape { what: "activations".into(), problem });
        }
        match self.planes {
            PlanesMut::A8(buffers) => buffers.quantize(s, x, self.k, self.scaling),
            PlanesMut::A16(buffers) => buffers.quantize(s, x, self.k, self.scaling),
        }
        Ok(())
    }
}

impl<const P: usize> BuffersMut<'_, P> {
    fn split_at(self, items: usize) -> (Self, Self) {
        let (codes, other_codes) = self.codes.split_at_mut(items);
        let (scales, other_scales) = self.scales.split_at_mut(items);
        let (sums, other_sums) = self.sums.split_at_mut(items);
        let (first_sums, other_first_sums) = self.first_sums.split_at_mut(items);
        let others =
            Self { codes: other_codes, scales: other_scales, sums: other_sums, first_sums: other_first_sums };
        (Self { codes, scales, sums, first_sums }, others)
    }

    #[inline(always)]
    fn quantize<S: Simd>(mut self, s: S, x: &[f32], k: usize, scaling: Scaling) {
        if k == 0 {
            return;
        }
        let blocks = k.div_ceil(BLOCK_K);
        for x in x.chunks(PANEL * k) {
            let rows = x.len() / k;
            let (mut panel, rest) = self.split_at(rows * blocks);
            for (r, x) in x.chunks_exact(k).enumerate() {
                let scale = of_row::<S, P>(s, x, scaling);
                panel.quantize_row(s, x, r, rows, scale);
            }
            self = rest;
        }
    }

    /// Writes row `row` of a panel of `rows`, whose scale is `of_row` where it has one.
    #[inline(always)]
    fn quantize_row<S: Simd>(&mut self, s: S, x: &[f32], row: usize, rows: usize, of_row: Option<Scale>) {
        let codes = self.codes[row..].iter_mut().step_by(rows);
        let scales = self.scales[row..].iter_mut().step_by(rows);
        let sums = self.first_sums[row..].iter_mut().zip(&mut self.sums[row..]).step_by(rows);
        let mut places = codes.zip(scales).zip(sums);
        let (whole, rest) = x.as_chunks::<BLOCK_K>();
        for (x, ((codes, scale), (first, sum))) in whole.iter().zip(&mut places) {
            (*scale, *first, *sum) = codes.quantize(s, x, of_row);
        }
        if let (false, Some(((codes, scale), (first, sum)))) = (rest.is_empty(), places.next()) {
            (*scale, *first, *sum) = codes.quantize(s, &padded(rest), of_row);
        }
    }
}

/// The scale of a row, where it has one.
#[inline(always)]
fn of_row<S: Simd, const P: usize>(s: S, x: &[f32], scaling: Scaling) -> Option<Scale> {
    if scaling == Scaling::Block {
        return None;
    }
    let (whole, rest) = x.as_chunks::<BLOCK_K>();
    let mut most = largest(s, load(s, &padded(rest)));
    for x in whole {
        most = most.max(largest(s, load(s, x)));
    }
    Some(if scaling == Scaling::Strict {
        RowCodes::<P>::strict_scale(most)
    } else {
        RowCodes::<P>::scale(most)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::reference;
    use crate::simd::Scalar;

    /// Row `row`, block after block: codes `q`, scale, sums of half of the codes and of all.
    fn blocks(rows: &QuantizedRows, row: usize) -> Vec<(Vec<i32>, f32, [i32; 2])> {
        fn of<const P: usize>(panels: Panels<'_, P>, row: usize) -> Vec<(Vec<i32>, f32, [i32; 2])> {
            let panel = panels.iter().nth(row / PANEL).expect("rows enough");
            let code = |codes: &RowCodes<P>, k: usize| {
                codes.0.iter().fold(0, |q, plane| q * 128 + i32::from(plane[k]))
            };
            let item = |i: usize| {
                let codes = (0..BLOCK_K).map(|k| code(&panel.codes[i], k)).collect();
                (codes, panel.scales[i], [panel.first_sums[i], panel.sums[i]])
            };
            (row % PANEL..panel.codes.len()).step_by(panel.rows).map(item).collect()
        }
        match rows.panels() {
            PanelsRef::A8(panels) => of(panels, row),
            PanelsRef::A16(panels) => of(panels, row),
        }
    }

    #[test]
    fn every_row_is_found_in_its_panel_whole_or_written_in_parts() {
        let shapes = || [1, 15, 16, 17, 40].into_iter().flat_map(|rows| [31, 64, 95].map(|k| (rows, k)));
        let scalings = [Scaling::Block, Scaling::Row, Scaling::Strict];
        for ((activations, scaling), (rows, k)) in Activations::ALL
            .into_iter()
            .flat_map(|act| scalings.map(|scaling| (act, scaling)))
            .flat_map(|modes| shapes().map(move |shape| (modes, shape)))
        {
            let x: Vec<f32> = (0..rows * k).map(|i| (i * 7919 % 1009) as f32 - 500.0).collect();
            let mut whole = QuantizedRows::with(activations, scaling);
            whole.quantize(Scalar, &x, k).expect("sized to fit");
            let mut parts = QuantizedRows::with(activations, scaling);
            let (mut rest, mut values) = (parts.resize(rows, k), x.as_slice());
            while rest.rows() > 0 {
                let (part, others) = rest.split_at(1);
                let (of_part, of_others) = values.split_at(part.rows() * k);
                part.quantize(Scalar, of_part).expect("sized to fit");
                (rest, values) = (others, of_others);
            }
            for (row, x) in x.chunks(k).enumerate() {
                let expected: Vec<_> = reference::quantize(x, activations, scaling)
                    .into_iter()
                    .map(|mut block| {
                        block.codes.resize(BLOCK_K, 0);
                        let sums = [16, BLOCK_K].map(|len| block.codes[..len].iter().sum());
                        (block.codes, block.scale, sums)
                    })
                    .collect();
                assert_eq!(blocks(&whole, row), expected, "{activations:?} {rows} x {k}, row {row}");
                assert_eq!(
                    blocks(&parts, row),
                    expected,
                    "{activations:?} {rows} x {k}, row {row}, in parts"
                );
            }
        }
    }
}
