//! What the kernels read, laid out as they load it, and what they write.

use core::arch::aarch64::{
    vld1q_u32, vreinterpretq_u32_u64, vreinterpretq_u64_u32, vst1q_u32, vtrn1q_u32, vtrn1q_u64, vtrn2q_u32,
    vtrn2q_u64,
};
use std::cell::Cell;

use crate::activation::{PANEL, Panel, RowCodes};
use crate::format::BLOCK_K;
use crate::simd::{Dot, Kernel, LANES};

/// 4 `k` of the rows of a panel, or of the columns of a tile: `[row][k % 4]`.
pub(super) type Granule = [u32; LANES];

/// The operands of [`super::blocks::blocks`]. The order is the kernel's.
#[repr(C)]
pub(super) struct Blocks {
    /// `[block][plane][8]` granules of a panel.
    pub rows: *const Granule,
    /// `[block][8]` granules of a tile, or `[block][4]` of nibbles, low ones first.
    pub codes: *const u8,
    /// `[block][group][column]`, halves or floats.
    pub scales: *const u8,
    /// The same, where there are mins.
    pub mins: *const u8,
    /// `[block][row]`
    pub row_scales: *const f32,
    /// `[block][group][row]`: sums of the codes of rows.
    pub row_sums: *const f32,
    /// `[row][column]`, rows `stride` bytes apart.
    pub values: *mut f32,
    /// At least one.
    pub blocks: usize,
    pub stride: usize,
}

/// Squares of 32-bit sums of `ZA`, however long its vectors are.
pub(super) const SQUARES: usize = 4;

/// The operands of [`super::integers::integers`], of 4 tiles for one plane, of 2 for two. The order is the kernel's.
#[repr(C)]
pub(super) struct Integers {
    /// As in [`Blocks`].
    pub rows: *const Granule,
    /// As in [`Blocks`], of tiles.
    pub codes: [*const u8; SQUARES],
    /// At least one.
    pub blocks: usize,
    /// `[column]`, of tiles.
    pub scales: [*const f32; SQUARES],
    /// `[row]`
    pub row_scales: *const f32,
    /// What is subtracted from the sums of rows: as one integer in the second array, or as `4096 * first + second`.
    pub above: *const [[i32; PANEL]; 2],
    /// `[row][column]`, of tiles, rows `stride` floats apart.
    pub values: [*mut f32; SQUARES],
    pub stride: usize,
}

/// The operands of [`super::dots::dots`], of four vectors of columns. The order is the kernel's.
#[repr(C)]
pub(super) struct Dots {
    /// `[block][plane][k]`
    pub row: *const i8,
    /// `[block][8][16][k % 4]` bytes, or `[block][4][16][k % 4]` nibbles, of which the vectors are a part.
    pub codes: [*const u8; 4],
    /// `[block][16]` scales of blocks, or steps.
    pub scales: [*const u8; 4],
    /// `[block][16]` mins, or `[16]` floats: the scales of columns.
    pub mins: [*const u8; 4],
    /// `[block]`
    pub row_scales: *const f32,
    /// `[block]`: sums of the codes of the row.
    pub row_sums: *const i32,
    /// At least one.
    pub blocks: usize,
    /// The columns of all four vectors.
    pub values: *mut f32,
}

/// A panel of rows, transposed for outer products; in the place of rows that it lacks, its last one.
#[derive(Default)]
pub(super) struct PreparedPanel {
    /// `[block][plane][8]`
    pub codes: Vec<Granule>,
    /// `[block][row]`
    pub scales: Vec<[f32; PANEL]>,
    /// `[block][group][row]`
    pub sums: Vec<[f32; PANEL]>,
    /// Sums over all blocks, where there are no groups.
    pub totals: [i64; PANEL],
}

/// Prepares a panel of so many blocks and groups in a block; of no groups where a scale is for all of a row.
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
        panel.codes.resize(blocks * P * BLOCK_K / 4, [0; LANES]);
        panel.scales.resize(blocks, [0.0; PANEL]);
        panel.sums.resize(blocks * groups, [0.0; PANEL]);
        panel.totals = [0; PANEL];
        let codes = panel.codes.as_chunks_mut::<8>().0.as_chunks_mut::<P>().0;
        for (b, (codes, scales)) in codes.iter_mut().zip(&mut panel.scales).enumerate() {
            let items = b * x.rows..(b + 1) * x.rows;
            transpose(&x.codes[items.clone()], codes);
            scales[..x.rows].copy_from_slice(&x.scales[items.clone()]);
            let (firsts, sums) = (&x.first_sums[items.clone()], &x.sums[items]);
            match &mut panel.sums[b * groups..][..groups] {
                [of_block] => {
                    for (of_row, sum) in of_block.iter_mut().zip(sums) {
                        *of_row = *sum as f32;
                    }
                }
                [of_first, of_second] => {
                    for (r, (first, sum)) in firsts.iter().zip(sums).enumerate() {
                        (of_first[r], of_second[r]) = (*first as f32, (sum - first) as f32);
                    }
                }
                _ => {
                    for (total, sum) in panel.totals.iter_mut().zip(sums) {
                        *total += i64::from(*sum);
                    }
                }
            }
        }
    }
}

/// The codes of a block of some rows, `[row][plane][k]`, as granules, `[plane][k / 4][row][k % 4]`.
#[inline(always)]
fn transpose<const P: usize>(rows: &[RowCodes<P>], granules: &mut [[Granule; 8]; P]) {
    let last = rows.len() - 1;
    for quad in 0..PANEL / 4 {
        let rows: [_; 4] = std::array::from_fn(|i| &rows[last.min(4 * quad + i)].0);
        for (plane, granules) in granules.iter_mut().enumerate() {
            for (half, granules) in granules.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let words = rows.map(|row| bytemuck::cast_ref::<_, [[u32; 4]; 2]>(&row[plane])[half]);
                for (granule, words) in granules.iter_mut().zip(transposed(words)) {
                    granule.as_chunks_mut::<4>().0[quad] = words;
                }
            }
        }
    }
}

/// Columns as rows.
#[inline(always)]
fn transposed(rows: [[u32; 4]; 4]) -> [[u32; 4]; 4] {
    let mut columns = [[0; 4]; 4];
    // SAFETY: every 64-bit Arm core has NEON; loads and stores are of 4 words.
    unsafe {
        let [a, b, c, d] = rows.map(|row| vld1q_u32(row.as_ptr()));
        let (ab, cd) = ([vtrn1q_u32(a, b), vtrn2q_u32(a, b)], [vtrn1q_u32(c, d), vtrn2q_u32(c, d)]);
        for i in 0..2 {
            let (ab, cd) = (vreinterpretq_u64_u32(ab[i]), vreinterpretq_u64_u32(cd[i]));
            vst1q_u32(columns[i].as_mut_ptr(), vreinterpretq_u32_u64(vtrn1q_u64(ab, cd)));
            vst1q_u32(columns[i + 2].as_mut_ptr(), vreinterpretq_u32_u64(vtrn2q_u64(ab, cd)));
        }
    }
    columns
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

/// Buffers that a thread keeps from product to product.
#[derive(Default)]
pub(super) struct Scratch {
    pub panels: Vec<PreparedPanel>,
    pub tiles: [PreparedTile; SQUARES],
    /// Where values go that have to be added, or cut.
    pub values: [[[f32; LANES]; PANEL]; SQUARES],
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Lends `work` this thread's buffers.
pub(super) fn with_scratch<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    let mut scratch = SCRATCH.take().unwrap_or_default();
    let result = work(&mut scratch);
    SCRATCH.set(Some(scratch));
    result
}
