//! Reading planes back, for what puts blocks together.

use super::{GgmlType, Origin, Planes, Superblock, ggml};
use crate::Result;
use crate::format::{BLOCK_K, Codes, PLANES, SUPER_K, TILE_N, field_at};

impl Planes {
    /// The planes in order, to be filled: W, X, S, M, D, C.
    pub fn all_mut(&mut self) -> [&mut [u8]; PLANES] {
        [&mut self.w, &mut self.x, &mut self.s, &mut self.m, &mut self.d, &mut self.c]
    }

    /// Makes `out` the `rows` rows of blocks of type `ty`, whose format ([`GgmlType::format`]) must be this one: the bytes
    /// from which [`Planes::pack_ggml`] makes these planes.
    ///
    /// # Errors
    /// When the sizes do not agree, a scale, min or weight is not finite, or a scale or min does not fit into `ty`.
    pub fn unpack_ggml(
        &self,
        ty: GgmlType,
        rows: usize,
        out: &mut Vec<u8>,
        origin: Origin<'_>,
    ) -> Result<()> {
        let sizes = self.format.plane_sizes(rows, self.k).map(|sizes| sizes.array());
        let fits = sizes == Some(self.all().map(<[u8]>::len)) && ty.format() == Some(self.format);
        let Some(row_bytes) = self.row_bytes(ty).filter(|_| fits) else {
            return Err(origin.malformed(format!(
                "its planes of {} are not those of {rows} rows of {} as {}",
                self.format.spec().name,
                self.k,
                ty.name()
            )));
        };
        out.clear();
        // No more than the planes have, which are in memory.
        out.resize(rows * row_bytes, 0);
        for (row, bytes) in out.chunks_exact_mut(row_bytes).enumerate() {
            ggml::unpack_row(self, ty, row, bytes)
                .map_err(|problem| origin.malformed(format!("slice row {row}: {problem}")))?;
        }
        Ok(())
    }

    /// The codes of block `b`, as they are stored.
    pub(super) fn codes(&self, row: usize, b: usize) -> [u8; BLOCK_K] {
        let (block, lane) = (row / TILE_N * self.blocks() + b, row % TILE_N);
        let codes = self.format.spec().codes;
        let [low, high] = codes.fields();
        std::array::from_fn(|k| match codes {
            Codes::I8 => self.w[((block * 8 + k / 4) * TILE_N + lane) * 4 + k % 4],
            _ => {
                let field = |plane: &[u8], bits| field_at(plane, bits, block, lane, k);
                (field(&self.w, low) | field(&self.x, high) << low) as u8
            }
        })
    }

    /// The bits of scale and min of group `b`.
    pub(super) fn scales(&self, row: usize, b: usize) -> [u16; 2] {
        let i = self.scale_at(row, b);
        let min = if self.m.is_empty() { 0 } else { u16::from_le_bytes(get(&self.m, i)) };
        [u16::from_le_bytes(get(&self.s, i)), min]
    }

    /// The byte that is the scale of group `b`.
    pub(super) fn byte_scale(&self, row: usize, b: usize) -> u8 {
        self.s[self.scale_at(row, b)]
    }

    /// Superblock `b`.
    pub(super) fn superblock(&self, row: usize, b: usize) -> Superblock {
        let spec = self.format.spec();
        let (groups, parts) = (SUPER_K / spec.group, spec.scale.parts());
        let supers = row / TILE_N * (self.k / SUPER_K) + b;
        let at = |of_super: usize, i: usize| (supers * of_super + i) * TILE_N + row % TILE_N;
        let mut out = Superblock::ZERO;
        for i in 0..groups {
            out.scales[i] = self.s[at(groups, i)] as i8;
            if spec.scale.has_min() {
                out.mins[i] = self.m[at(groups, i)] as i8;
            }
        }
        for (i, d) in out.d.iter_mut().enumerate().take(parts) {
            *d = u16::from_le_bytes(get(&self.d, at(parts, i)));
        }
        for (i, codes) in out.codes.as_chunks_mut().0.iter_mut().enumerate() {
            *codes = self.codes(row, b * (SUPER_K / BLOCK_K) + i);
        }
        out
    }

    /// The bytes of a float.
    pub(super) fn float<const N: usize>(&self, row: usize, k: usize) -> [u8; N] {
        get(&self.w, (row / TILE_N * self.blocks() * BLOCK_K + k) * TILE_N + row % TILE_N)
    }
}

/// Element `i` of a plane of `N`-byte elements.
fn get<const N: usize>(plane: &[u8], i: usize) -> [u8; N] {
    std::array::from_fn(|byte| plane[i * N + byte])
}
