//! GGML blocks and floats to planes, and planes to GGML blocks.
//!
//! A matrix is packed in slices of whole tiles: rows `[r0, r0 + rows)` with `r0` a multiple of 16. Planes are
//! tile-major, so a slice is one contiguous range of each plane ([`Planes::offsets`]) and a matrix never needs to be in
//! memory as a whole.

mod ggml;
mod superblock;
mod ternary;
mod unpack;

pub use ggml::{GGML_TYPES, GgmlType, TypeSpec};

use self::superblock::Superblock;
use crate::buffer::Bytes;
use crate::format::{
    BLOCK_K, Codes, PLANES, PlaneSizes, Rounding, RowScales, SUPER_K, ScaleForm, TILE_N, quantize_channel,
};
use crate::{Error, Format, PackedMatrix, Result};

/// The tensor that is being packed, for messages.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// File name.
    pub file: &'a str,
    /// Tensor name.
    pub tensor: &'a str,
}

impl Origin<'_> {
    fn malformed(&self, problem: String) -> Error {
        Error::malformed(self.file, format!("tensor {}", self.tensor), problem)
    }
}

/// The planes of a slice of a matrix.
#[derive(Clone, Debug)]
pub struct Planes {
    format: Format,
    k: usize,
    /// Codes.
    pub w: Vec<u8>,
    /// High bits of codes.
    pub x: Vec<u8>,
    /// Scales.
    pub s: Vec<u8>,
    /// Mins.
    pub m: Vec<u8>,
    /// What scales and mins of two levels are multiplied with.
    pub d: Vec<u8>,
    /// Scales of output features.
    pub c: Vec<u8>,
}

impl Planes {
    /// Planes of `rows` x `k` weights, all padding. `None` when a size overflows.
    pub fn new(format: Format, rows: usize, k: usize) -> Option<Self> {
        let [w, x, s, m, d, c] = [const { Vec::new() }; PLANES];
        let mut planes = Self { format, k, w, x, s, m, d, c };
        planes.reset(rows)?;
        Some(planes)
    }

    /// Makes the planes those of `rows` rows, all padding; their memory is reused.
    pub fn reset(&mut self, rows: usize) -> Option<()> {
        let sizes = self.format.plane_sizes(rows, self.k)?;
        let [w_padding, x_padding] = self.format.padding();
        for (plane, size, padding) in [
            (&mut self.w, sizes.w, w_padding),
            (&mut self.x, sizes.x, x_padding),
            (&mut self.s, sizes.s, 0),
            (&mut self.m, sizes.m, 0),
            (&mut self.d, sizes.d, 0),
            (&mut self.c, sizes.c, 0),
        ] {
            plane.clear();
            plane.resize(size, padding);
        }
        Some(())
    }

    /// The planes in order: W, X, S, M, D, C.
    pub fn all(&self) -> [&[u8]; PLANES] {
        [&self.w, &self.x, &self.s, &self.m, &self.d, &self.c]
    }

    /// Where the planes of a slice that starts at row `first_row` (a multiple of 16) begin in the whole planes.
    pub fn offsets(&self, first_row: usize) -> Option<PlaneSizes> {
        self.format.plane_sizes(first_row, self.k)
    }

    /// Packs rows of GGML blocks without loss: `bytes` holds `rows` rows of `k` weights of type `ty`, whose format
    /// ([`GgmlType::format`]) must be this one.
    ///
    /// # Errors
    /// When the sizes do not agree, or a scale, min or weight is not finite.
    pub fn pack_ggml(&mut self, ty: GgmlType, rows: usize, bytes: &[u8], origin: Origin<'_>) -> Result<()> {
        let row_bytes = self.row_bytes(ty).ok_or_else(|| {
            origin.malformed(format!("rows of {} are not whole {} blocks", self.k, ty.name()))
        })?;
        if ty.format() != Some(self.format) || rows.checked_mul(row_bytes) != Some(bytes.len()) {
            return Err(origin.malformed(format!(
                "{} bytes of {} given for {rows} rows of {} as {}",
                bytes.len(),
                ty.name(),
                self.k,
                self.format.spec().name
            )));
        }
        self.reset(rows)
            .ok_or_else(|| origin.malformed(format!("{rows} rows overflow the address space")))?;
        for (row, bytes) in bytes.chunks_exact(row_bytes).enumerate() {
            ggml::pack_row(self, ty, row, bytes)
                .map_err(|problem| origin.malformed(format!("slice row {row}: {problem}")))?;
        }
        Ok(())
    }

    /// Bytes of a row of blocks of type `ty`; `None` when it is not of whole blocks, or of none.
    fn row_bytes(&self, ty: GgmlType) -> Option<usize> {
        ty.bytes_of(self.k).filter(|bytes| *bytes > 0)
    }

    /// Packs `values.len() / k` rows of floats: quantised with the default [`Rounding`], or stored as [`Format::F32`].
    ///
    /// # Errors
    /// When the sizes do not agree, a weight is not finite or too large for a f16 scale, or the format is another one.
    pub fn pack_f32(&mut self, values: &[f32], origin: Origin<'_>) -> Result<()> {
        self.pack_rounded(values, &Rounding::default(), origin)
    }

    /// As [`Planes::pack_f32`], rounded as `rounding` says.
    ///
    /// # Errors
    /// As [`Planes::pack_f32`], and when there is an importance for another number of input features.
    pub fn pack_rounded(
        &mut self,
        values: &[f32],
        rounding: &Rounding<'_>,
        origin: Origin<'_>,
    ) -> Result<()> {
        let k = self.k;
        if k == 0 || !values.len().is_multiple_of(k) {
            return Err(origin.malformed(format!("{} values given for rows of {k}", values.len())));
        }
        let rows = values.len() / k;
        self.reset(rows)
            .ok_or_else(|| origin.malformed(format!("{rows} rows overflow the address space")))?;
        let padded = k.next_multiple_of(BLOCK_K);
        // Padding has codes and scales like the rest: what it is multiplied with is zero.
        let mut importance = rounding.importance.to_vec();
        importance.resize(if importance.is_empty() { 0 } else { padded }, f32::MIN_POSITIVE);
        let rounding = Rounding { importance: &importance, ..*rounding };
        let mut weights = vec![0.0; padded];
        for (row, values) in values.chunks_exact(k).enumerate() {
            if self.format.spec().scale.is_channel() {
                self.pack_channel(row, values).ok_or_else(|| {
                    let name = self.format.spec().name;
                    origin.malformed(format!("slice row {row} has weights too large to be stored as {name}"))
                })?;
                continue;
            }
            weights[..k].copy_from_slice(values);
            self.pack_row(row, &weights, &rounding).ok_or_else(|| {
                let largest =
                    values.iter().fold(0f32, |most, x| if x.abs() <= most { most } else { x.abs() });
                origin.malformed(format!(
                    "slice row {row}, whose largest weight is {largest:e}, cannot be stored as {}",
                    self.format.spec().name
                ))
            })?;
        }
        Ok(())
    }

    fn pack_channel(&mut self, row: usize, values: &[f32]) -> Option<()> {
        // The page, whose module's size counts, only reads such matrices.
        if cfg!(target_family = "wasm") {
            return None;
        }
        let quantized = quantize_channel(self.format, values)?;
        let spec = self.format.spec();
        put(&mut self.c, row, quantized.scale.to_le_bytes());
        for (b, (codes, step)) in quantized.codes.chunks(BLOCK_K).zip(quantized.steps).enumerate() {
            let mut block = [0; BLOCK_K];
            block[..codes.len()].copy_from_slice(codes);
            let block = block.map(|code| (i32::from(code) + spec.offset) as u8);
            match spec.codes {
                Codes::I8 => self.put_bytes(row, b, &block),
                _ => self.put_codes(row, b, &block),
            }
            if spec.scale == ScaleForm::Progressive {
                let i = (row / TILE_N * self.blocks() + b) * TILE_N + row % TILE_N;
                put(&mut self.s, i, [step]);
            }
        }
        Some(())
    }

    /// Packs a padded row.
    fn pack_row(&mut self, row: usize, weights: &[f32], rounding: &Rounding<'_>) -> Option<()> {
        let spec = self.format.spec();
        if self.format == Format::F32 {
            for (k, value) in weights.iter().enumerate() {
                self.put_float(row, k, value.to_bits().to_le_bytes());
            }
            return weights.iter().all(|x| x.is_finite()).then_some(());
        }
        let scales = RowScales::choose(spec, weights, rounding.search, rounding.importance)?;
        let mut codes = vec![0i8; weights.len()];
        match (rounding.codes, crate::format::Grid::of(spec)) {
            (Some(choose), Some(grid)) => {
                choose.choose(grid, spec.group, weights, &scales.levels, &mut codes)
            }
            _ => scales.nearest(spec, weights, &mut codes),
        }
        for (b, codes) in codes.as_chunks().0.iter().enumerate() {
            self.put_signed(row, b, codes);
        }
        if spec.scale.is_super() {
            for (b, stored) in scales.supers.iter().enumerate() {
                self.put_super(row, b, &Superblock::of_scales(stored));
            }
        } else {
            for (b, levels) in scales.levels.iter().enumerate() {
                let [scale, min] = [levels.scale, levels.min].map(|x| half::f16::from_f32(x).to_bits());
                self.put_scale(row, b, scale, min);
            }
        }
        Some(())
    }

    /// Codes of block `b`, less the offset.
    fn put_signed(&mut self, row: usize, b: usize, codes: &[i8; BLOCK_K]) {
        let spec = self.format.spec();
        match spec.codes {
            Codes::I8 => self.put_bytes(row, b, bytemuck::cast_ref(codes)),
            _ => self.put_codes(row, b, &codes.map(|code| (i32::from(code) + spec.offset) as u8)),
        }
    }

    fn blocks(&self) -> usize {
        self.k.div_ceil(BLOCK_K)
    }

    /// Unsigned codes of block `b`, cut into the fields of the format.
    fn put_codes(&mut self, row: usize, b: usize, codes: &[u8; BLOCK_K]) {
        let [low, high] = self.format.spec().codes.fields();
        self.put_words(row, b, &words(codes, low, 0)[..low]);
        if high > 0 {
            self.put_high(row, b, &words(codes, high, low)[..high]);
        }
    }

    /// The words of block `b` in `W`.
    fn put_words(&mut self, row: usize, b: usize, words: &[u32]) {
        let start = (row / TILE_N * self.blocks() + b) * words.len() * TILE_N + row % TILE_N;
        for (i, word) in words.iter().enumerate() {
            put(&mut self.w, start + i * TILE_N, word.to_le_bytes());
        }
    }

    /// The words of block `b` in `X`.
    fn put_high(&mut self, row: usize, b: usize, words: &[u32]) {
        let start = (row / TILE_N * self.blocks() + b) * words.len() * TILE_N + row % TILE_N;
        for (i, word) in words.iter().enumerate() {
            put(&mut self.x, start + i * TILE_N, word.to_le_bytes());
        }
    }

    /// The 32 signed bytes of block `b`.
    fn put_bytes(&mut self, row: usize, b: usize, codes: &[u8; BLOCK_K]) {
        let start = (row / TILE_N * self.blocks() + b) * 8 * TILE_N + row % TILE_N;
        for (i, word) in codes.as_chunks().0.iter().enumerate() {
            put::<4>(&mut self.w, start + i * TILE_N, *word);
        }
    }

    /// Where the scale of group `g` of a row is.
    fn scale_at(&self, row: usize, g: usize) -> usize {
        let groups = self.blocks() * BLOCK_K / self.format.spec().group;
        (row / TILE_N * groups + g) * TILE_N + row % TILE_N
    }

    fn put_byte_scale(&mut self, row: usize, g: usize, scale: u8) {
        let i = self.scale_at(row, g);
        put(&mut self.s, i, [scale]);
    }

    fn put_scale(&mut self, row: usize, g: usize, scale: u16, min: u16) {
        let i = self.scale_at(row, g);
        put(&mut self.s, i, scale.to_le_bytes());
        if !self.m.is_empty() {
            put(&mut self.m, i, min.to_le_bytes());
        }
    }

    /// The scales of superblock `b`, the mins, where the format has them, and what these are multiplied with.
    fn put_super(&mut self, row: usize, b: usize, superblock: &Superblock) {
        let spec = self.format.spec();
        let (groups, parts) = (SUPER_K / spec.group, spec.scale.parts());
        let supers = row / TILE_N * (self.k / SUPER_K) + b;
        let at = |of_super: usize, i: usize| (supers * of_super + i) * TILE_N + row % TILE_N;
        for (i, (scale, min)) in superblock.scales.iter().zip(superblock.mins).enumerate().take(groups) {
            put(&mut self.s, at(groups, i), scale.to_le_bytes());
            if spec.scale.has_min() {
                put(&mut self.m, at(groups, i), min.to_le_bytes());
            }
        }
        for (i, d) in superblock.d.iter().enumerate().take(parts) {
            put(&mut self.d, at(parts, i), d.to_le_bytes());
        }
    }

    fn put_float<const N: usize>(&mut self, row: usize, k: usize, value: [u8; N]) {
        let i = (row / TILE_N * self.blocks() * BLOCK_K + k) * TILE_N + row % TILE_N;
        put(&mut self.w, i, value);
    }

    /// A whole matrix of `n` rows from planes that hold all of them.
    pub fn into_matrix(self, name: &str, n: usize) -> Result<PackedMatrix> {
        let planes = self.all().map(Bytes::copy_of);
        PackedMatrix::new(name, self.format, n, self.k, planes)
    }
}

/// Packs a whole tensor of GGML blocks, `n` rows of `k` weights.
pub fn matrix_from_ggml(
    ty: GgmlType,
    n: usize,
    k: usize,
    bytes: &[u8],
    origin: Origin<'_>,
) -> Result<PackedMatrix> {
    let format = ty.format().ok_or_else(|| ty.unsupported(origin))?;
    let mut planes =
        Planes::new(format, 0, k).ok_or_else(|| origin.malformed(format!("{n} x {k} overflows")))?;
    planes.pack_ggml(ty, n, bytes, origin)?;
    planes.into_matrix(origin.tensor, n)
}

/// Appends the values of whole rows of `k` elements, floats or blocks, to `out`.
///
/// # Errors
/// When the sizes do not agree, or a scale, min or weight is not finite.
pub fn floats_of(ty: GgmlType, k: usize, bytes: &[u8], out: &mut Vec<f32>, origin: Origin<'_>) -> Result<()> {
    if ty.is_float() {
        return ty.floats(bytes, out, origin);
    }
    let rows = bytes.len() / ty.bytes_of(k).unwrap_or_default().max(1);
    let matrix = matrix_from_ggml(ty, rows, k, bytes, origin)?;
    let start = out.len();
    out.resize(start + rows * k, 0.0);
    out[start..].chunks_exact_mut(k).enumerate().for_each(|(row, out)| matrix.dequantize_row(row, out));
    Ok(())
}

/// Quantises (or stores) a whole matrix of floats, rows of `k`, as `format`: a packed one or f32.
pub fn matrix_from_f32(format: Format, k: usize, values: &[f32], origin: Origin<'_>) -> Result<PackedMatrix> {
    let mut planes =
        Planes::new(format, 0, k).ok_or_else(|| origin.malformed(format!("rows of {k} overflow")))?;
    planes.pack_f32(values, origin)?;
    planes.into_matrix(origin.tensor, values.len() / k)
}

/// Element `i` of a plane of `N`-byte elements.
fn put<const N: usize>(plane: &mut [u8], i: usize, value: [u8; N]) {
    plane[i * N..][..N].copy_from_slice(&value);
}

/// The words of one column of a plane: bits `shift..shift + bits` of the codes of a block, in the first `bits` words.
fn words(codes: &[u8; BLOCK_K], bits: usize, shift: usize) -> [u32; 4] {
    let mut words = [0; 4];
    let of_word = BLOCK_K / bits;
    for (word, codes) in words.iter_mut().zip(codes.chunks(of_word)) {
        *word = codes.iter().enumerate().fold(0, |word, (k, code)| {
            let field = u32::from(*code >> shift) & ((1 << bits) - 1);
            word | field << (8 * (k % 4) + bits * (k / 4))
        });
    }
    words
}

#[cfg(test)]
mod tests;
