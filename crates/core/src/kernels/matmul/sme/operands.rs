//! What the kernels read, laid out as they load it, and what they write.

use std::cell::Cell;

use crate::activation::{PANEL, Panel, RowCodes};
use crate::format::BLOCK_K;
use crate::simd::{Dot, Kernel, LANES};

/// 4 `k` of the rows of a panel, or of the columns of a tile: `[row][k % 4]`.
pub(super) type Granule = [u8; 4 * LANES];

/// The operands of [`super::outer::blocks`]. The order is the kernel's.
#[repr(C)]
pub(super) struct Blocks {
    /// `[block][plane][8]` granules of a panel.
    pub rows: *const Granule,
    /// `[block][8]` granules of a tile, or `[block][4]` of nibbles, low ones first.
    pub codes: *const u8,
    /// `[block][group][column]`
    pub scales: *const f32,
    /// The same, where there are mins.
    pub mins: *const f32,
    /// `[block][row]`
    pub row_scales: *const f32,
    /// `[block][group][row]`: sums of the codes of rows.
    pub row_sums: *const f32,
    /// `[row][column]`
    pub values: *mut [[f32; LANES]; PANEL],
    /// At least one.
    pub blocks: usize,
}

/// Squares of 32-bit sums of `ZA`, however long its vectors are.
pub(super) const SQUARES: usize = 4;

/// The operands of [`super::outer::integers`].
#[repr(C)]
pub(super) struct Integers {
    /// As in [`Blocks`].
    pub rows: *const Granule,
    /// As in [`Blocks`], of tiles: 4 for one plane, 2 for two.
    pub codes: [*const u8; SQUARES],
    /// `[tile][plane][row][column]`
    pub sums: *mut [[[i32; LANES]; PANEL]; SQUARES],
    /// At least one.
    pub blocks: usize,
}

/// A panel of rows, transposed for outer products; rows that it lacks hold anything.
#[derive(Default)]
pub(super) struct PreparedPanel {
    /// `[block][plane][8]`
    pub codes: Vec<Granule>,
    /// `[block][row]`
    pub scales: Vec<[f32; PANEL]>,
    /// `[block][group][row]`
    pub sums: Vec<[f32; PANEL]>,
}

/// Prepares a panel of so many blocks and groups in a block.
pub(super) struct PreparePanel<'a, const P: usize> {
    pub x: Panel<'a, P>,
    pub blocks: usize,
    pub groups: usize,
    pub panel: &'a mut PreparedPanel,
}

impl<const P: usize> Kernel for PreparePanel<'_, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Dot>(self, _: S) {
        let Self { x, blocks, groups, panel } = self;
        panel.codes.resize(blocks * P * BLOCK_K / 4, [0; 4 * LANES]);
        panel.scales.resize(blocks, [0.0; PANEL]);
        panel.sums.resize(blocks * groups, [0.0; PANEL]);
        let codes = panel.codes.as_chunks_mut::<8>().0.as_chunks_mut::<P>().0;
        for (b, (codes, scales)) in codes.iter_mut().zip(&mut panel.scales).enumerate() {
            let items = b * x.rows..(b + 1) * x.rows;
            transpose(&x.codes[items.clone()], codes);
            scales[..x.rows].copy_from_slice(&x.scales[items.clone()]);
            let sums = &mut panel.sums[b * groups..][..groups];
            for (r, i) in items.enumerate() {
                let (first, all) = (x.first_sums[i], x.sums[i]);
                match sums {
                    [sum] => sum[r] = all as f32,
                    [of_first, of_second] => {
                        (of_first[r], of_second[r]) = (first as f32, (all - first) as f32)
                    }
                    _ => {}
                }
            }
        }
    }
}

/// The codes of a block of some rows, `[row][plane][k]`, as granules, `[plane][k / 4][row][k % 4]`.
#[inline(always)]
fn transpose<const P: usize>(rows: &[RowCodes<P>], granules: &mut [[Granule; 8]; P]) {
    for (r, row) in rows.iter().enumerate().take(PANEL) {
        for (plane, granules) in row.0.iter().zip(granules.iter_mut()) {
            let words: &[[i8; 4]; 8] = bytemuck::cast_ref(plane);
            for (word, granule) in words.iter().zip(granules) {
                granule.as_chunks_mut::<4>().0[r] = word.map(i8::cast_unsigned);
            }
        }
    }
}

/// Buffers that a thread keeps from product to product.
#[derive(Default)]
pub(super) struct Scratch {
    pub panels: Vec<PreparedPanel>,
    pub tiles: [PreparedTile; SQUARES],
}

/// A tile, taken apart.
#[derive(Default)]
pub(super) struct PreparedTile {
    /// `[block]`, signed bytes, where the kernels do not take the codes as they lie.
    pub codes: Vec<[u8; 512]>,
    /// `[block][group][column]`
    pub scales: Vec<[f32; LANES]>,
    /// The same.
    pub mins: Vec<[f32; LANES]>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// Lends `work` this thread's buffers.
pub(super) fn with_scratch<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    let mut scratch = SCRATCH.take();
    let result = work(&mut scratch);
    SCRATCH.set(scratch);
    result
}
