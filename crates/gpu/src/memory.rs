//! What lies in the GPU's memory.

use crate::executor::Executor;
use crate::kernels::Forms;
use crate::plan::{BufferId, Plan};
use lowbit_core::backend::{AttentionShape, RopeStyle};
use lowbit_core::format::{BLOCK_K, Format, PLANES, PackedMatrix, TILE_N};
use lowbit_core::{Error, Result};

/// An executor, and the buffers that are given back once the plan in the making has run.
pub(crate) struct Device<E> {
    pub executor: E,
    retired: Vec<BufferId>,
}

impl<E: Executor> Device<E> {
    pub(crate) fn new(executor: E) -> Self {
        Self { executor, retired: Vec::new() }
    }

    /// Runs a plan, after which nothing needs the retired buffers.
    pub(crate) fn run(&mut self, plan: &Plan, pos: u32) -> Result<()> {
        let result = self.executor.run(plan, pos);
        for buffer in self.retired.drain(..) {
            self.executor.free(buffer);
        }
        result
    }
}

/// A packed matrix: its planes as they lie in the artifact, cut between tiles where one binding cannot hold them.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// The format of the codes and scales.
    pub format: Format,
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
    pub(crate) parts: Vec<Part>,
}

/// Words of `Matrix` in the parameters of shaders.
pub(crate) const MATRIX_WORDS: usize = 12;

/// Some tiles of a matrix in one buffer: plane after plane.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    pub buffer: BufferId,
    pub first_tile: usize,
    pub tiles: usize,
    /// Where the planes W, X, S, M, D and C begin, in words.
    pub planes: [u32; PLANES],
    pub bytes: u64,
}

impl Matrix {
    /// Copies a matrix to the GPU.
    pub(crate) fn upload(executor: &mut impl Executor, matrix: &PackedMatrix) -> Result<Self> {
        let PackedMatrix { format, n, k, .. } = matrix;
        let planes = matrix.planes();
        let tiles = matrix.tiles();
        let tile_bytes = planes.map(|plane| plane.len() / tiles);
        let max_binding = executor.max_binding();
        let most = max_binding as usize / tile_bytes.iter().sum::<usize>().max(1);
        if most == 0 {
            let problem =
                format!("a tile of a {n} x {k} matrix is larger than a binding of {max_binding} bytes");
            return Err(Error::Shape { what: "GPU".into(), problem });
        }
        let mut parts = Vec::new();
        for first_tile in (0..tiles).step_by(most) {
            let tiles = most.min(tiles - first_tile);
            let bytes = tile_bytes.iter().map(|tile| (tiles * tile) as u64).sum();
            let buffer = executor.buffer("weights", bytes)?;
            let (mut starts, mut at) = ([0; PLANES], 0);
            for ((plane, tile), start) in planes.iter().zip(tile_bytes).zip(&mut starts) {
                let plane = &plane[first_tile * tile..][..tiles * tile];
                *start = (at / 4) as u32;
                executor.write(buffer, at, plane);
                at += plane.len() as u64;
            }
            parts.push(Part { buffer, first_tile, tiles, planes: starts, bytes });
        }
        Ok(Self { format: *format, n: *n, k: *k, parts })
    }

    /// The only part, where there is only one.
    pub(crate) fn whole(&self) -> Option<&Part> {
        if let [part] = self.parts.as_slice() { Some(part) } else { None }
    }

    /// Blocks of a row.
    pub(crate) fn blocks(&self) -> usize {
        self.k.div_ceil(BLOCK_K)
    }

    /// What shaders read of a part whose columns go to column `at` of a row of the output and those after it.
    pub(crate) fn words(&self, part: &Part, at: usize) -> [u32; MATRIX_WORDS] {
        let [w, x, s, m, d, c] = part.planes;
        let [tiles, n, at, first] = [part.tiles, self.n, at, part.first_tile].map(|n| n as u32);
        [w, x, s, m, d, tiles, n, at, first, c, 0, 0]
    }
}

/// A vector of parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Vector {
    pub(crate) buffer: BufferId,
    pub(crate) len: usize,
}

/// A rotary table: cosines `[position][head_dim / 2]`, then sines.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    pub(crate) buffer: BufferId,
    pub(crate) head_dim: usize,
    pub(crate) positions: usize,
    pub(crate) style: RopeStyle,
}

/// The keys and the values of one layer: `[kv_head][position][head_dim]` halves each.
#[derive(Clone, Debug, PartialEq)]
pub struct Kv {
    pub(crate) shape: AttentionShape,
    pub(crate) capacity: usize,
    pub(crate) keys: BufferId,
    pub(crate) values: BufferId,
}

/// A buffer for what lives within a step. It only grows.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    buffer: Option<BufferId>,
    bytes: u64,
}

impl Scratch {
    /// The buffer, with room for `bytes`; what it holds is not defined.
    pub(crate) fn reserve(&mut self, device: &mut Device<impl Executor>, bytes: u64) -> Result<BufferId> {
        match self.buffer {
            Some(buffer) if bytes <= self.bytes => Ok(buffer),
            _ => {
                device.retired.extend(self.buffer.take());
                let buffer = device.executor.buffer("activations", bytes)?;
                *self = Self { buffer: Some(buffer), bytes };
                Ok(buffer)
            }
        }
    }
}

/// Bytes of a block of quantised activations: 32 codes, their scale, their sum, that of the first half, and 4 of nothing.
const CODED_BLOCK: u64 = 48;

/// Activations as a product reads them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub rows: usize,
    pub width: usize,
    pub floats: Option<BufferId>,
    pub codes: Option<BufferId>,
}

impl Rows {
    /// The buffers of the forms that there are.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = BufferId> {
        self.floats.into_iter().chain(self.codes)
    }

    /// The same rows without the forms that are not asked for.
    pub(crate) fn only(self, forms: Forms) -> Self {
        let Self { rows, width, floats, codes } = self;
        let (floats, codes) = (floats.filter(|_| forms.floats), codes.filter(|_| forms.codes));
        Self { rows, width, floats, codes }
    }

    pub(crate) fn bytes(&self) -> u64 {
        let floats = self.floats.map_or(0, |_| self.rows as u64 * padded(self.width) as u64 * 4);
        floats + self.codes.map_or(0, |_| Self::coded_bytes(self.rows, self.width))
    }

    /// Bytes of the codes of so many rows.
    pub(crate) fn coded_bytes(rows: usize, width: usize) -> u64 {
        (rows * width.div_ceil(BLOCK_K)) as u64 * CODED_BLOCK
    }
}

/// Activations `[rows][width]`. A row takes a whole number of blocks; what pads it is zero.
#[derive(Debug, Default)]
pub struct Tensor {
    buffer: Option<BufferId>,
    /// Rows there is room for.
    room: usize,
    pub(crate) rows: usize,
    pub(crate) width: usize,
}

impl Tensor {
    /// Gives it a shape; what it holds is not defined, except for the padding.
    pub(crate) fn resize(
        &mut self,
        device: &mut Device<impl Executor>,
        rows: usize,
        width: usize,
    ) -> Result<BufferId> {
        if self.width == width
            && rows <= self.room
            && let Some(buffer) = self.buffer
        {
            self.rows = rows;
            return Ok(buffer);
        }
        device.retired.extend(self.buffer.take());
        let bytes = rows as u64 * padded(width) as u64 * 4;
        let buffer = device.executor.buffer("activations", bytes)?;
        *self = Self { buffer: Some(buffer), room: rows, rows, width };
        Ok(buffer)
    }

    /// Where it lies, once it has a shape.
    pub(crate) fn buffer(&self) -> Result<BufferId> {
        self.buffer.ok_or_else(|| Error::Shape {
            what: "GPU".into(),
            problem: "a tensor that nothing was written to".into(),
        })
    }

    /// Floats from row to row.
    pub(crate) fn stride(&self) -> usize {
        padded(self.width)
    }

    /// Bytes of its rows.
    pub(crate) fn bytes(&self) -> u64 {
        self.shape().bytes()
    }

    /// How its rows lie.
    pub(crate) fn shape(&self) -> RowShape {
        RowShape { rows: self.rows, width: self.width, stride: self.stride() }
    }
}

/// Rows of floats, each followed by padding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowShape {
    pub rows: usize,
    pub width: usize,
    /// Floats from row to row.
    pub stride: usize,
}

impl RowShape {
    pub(crate) fn bytes(self) -> u64 {
        self.rows as u64 * self.stride as u64 * 4
    }
}

fn padded(width: usize) -> usize {
    width.next_multiple_of(BLOCK_K.max(TILE_N))
}
