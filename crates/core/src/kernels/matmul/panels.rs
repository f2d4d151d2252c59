//! Products with many rows on a matrix engine: a panel of rows times a tile of columns, a block of 32 at a time.
//!
//! The engine forms the integer sums of a block; vectors scale them and add them up as `quantized` says. The engine is
//! kept some blocks ahead, so that both work at the same time.

use std::cell::Cell;
use std::marker::PhantomData;

use super::packed::{I8, Lookup, Tile, U4, U5, Unpack};
use super::{Tiles, Write};
use crate::activation::{PANEL, Panel, Panels, PanelsRef, QuantizedRows};
use crate::format::{Format, PackedMatrix};
use crate::simd::{Avx512, BlockCodes, Dot, Kernel, LANES, MatrixEngine, PanelSums};

/// Tiles that share one reading of a panel of rows.
const TILES: usize = 4;
/// Blocks by which the engine is ahead of the vectors.
const AHEAD: usize = 2;
/// Blocks whose integer sums are kept: more than [`AHEAD`], a power of two.
const KEPT: usize = 4;

thread_local! {
    /// Room for unpacked tiles, which a thread keeps from product to product.
    static UNPACKED: Cell<Vec<BlockCodes>> = const { Cell::new(Vec::new()) };
}

/// Computes all whole panels; returns how many these are. Formats whose halves of a block have scales of their own are
/// left to the vectors, as the engine sums over whole blocks; and so are those with a scale for all of a column, and those that
/// the vectors take apart.
pub(super) fn run<E: MatrixEngine>(
    vectors: Avx512,
    engine: E,
    x: &QuantizedRows,
    w: &PackedMatrix,
    write: Write,
    tiles: Tiles<'_>,
) -> usize {
    let is_done = match x.panels() {
        PanelsRef::A8(x) => run_planes(vectors, engine, x, w, write, tiles),
        PanelsRef::A16(x) => run_planes(vectors, engine, x, w, write, tiles),
    };
    if is_done { x.rows() / PANEL } else { 0 }
}

/// The panels in one precision; whether the engine takes the format.
fn run_planes<E: MatrixEngine, const P: usize>(
    vectors: Avx512,
    engine: E,
    x: Panels<'_, P>,
    w: &PackedMatrix,
    write: Write,
    tiles: Tiles<'_>,
) -> bool {
    macro_rules! product {
        ($packed:ty) => {{
            vectors.run(Product::<E, $packed, P>::new(engine, x, w, write, tiles));
            true
        }};
    }
    match w.format {
        Format::Q4 => product!(U4<{ Format::Q4 as usize }>),
        Format::Q4m => product!(U4<{ Format::Q4m as usize }>),
        Format::Q4k => product!(U4<{ Format::Q4k as usize }>),
        Format::Q5 => product!(U5<{ Format::Q5 as usize }>),
        Format::Q5m => product!(U5<{ Format::Q5m as usize }>),
        Format::Q5k => product!(U5<{ Format::Q5k as usize }>),
        Format::Q1 => product!(Lookup<{ Format::Q1 as usize }>),
        Format::T2 => product!(Lookup<{ Format::T2 as usize }>),
        Format::Iq4 => product!(Lookup<{ Format::Iq4 as usize }>),
        Format::Iq4k => product!(Lookup<{ Format::Iq4k as usize }>),
        Format::Mxfp4 => product!(Lookup<{ Format::Mxfp4 as usize }>),
        Format::Q8 => product!(I8),
        _ => false,
    }
}

/// The whole panels of one format and precision.
struct Product<'a, E, W, const P: usize> {
    engine: E,
    x: Panels<'a, P>,
    w: &'a PackedMatrix,
    write: Write,
    tiles: Tiles<'a>,
    format: PhantomData<W>,
}

impl<'a, E, W, const P: usize> Product<'a, E, W, P> {
    fn new(engine: E, x: Panels<'a, P>, w: &'a PackedMatrix, write: Write, tiles: Tiles<'a>) -> Self {
        Self { engine, x, w, write, tiles, format: PhantomData }
    }
}

impl<E: MatrixEngine, W: Unpack, const P: usize> Kernel for Product<'_, E, W, P> {
    type Output = ();

    /// Some tiles are unpacked; then every panel of rows, once it is in the cache, meets all of them.
    #[inline(always)]
    fn run<S: Dot>(self, s: S) {
        let Self { mut engine, x, w, write, mut tiles, .. } = self;
        let blocks = super::blocks(w);
        let range = tiles.range();
        let mut unpacked = UNPACKED.take();
        if unpacked.len() < blocks * TILES {
            unpacked.resize(blocks * TILES, BlockCodes::ZERO);
        }
        let mut kept = [[PanelSums::ZERO; P]; KEPT];
        for first in range.clone().step_by(TILES) {
            let group = first..range.end.min(first + TILES);
            for (index, codes) in group.clone().zip(unpacked.chunks_exact_mut(blocks)) {
                let tile = Tile::new(W::SPEC, w, index);
                for (b, codes) in codes.iter_mut().enumerate() {
                    W::unpack(tile, b, codes);
                }
            }
            for (panel, x) in x.iter().enumerate().take_while(|(_, x)| x.rows == PANEL) {
                for (index, codes) in group.clone().zip(unpacked.chunks_exact(blocks)) {
                    let mut values = [[0.0; LANES]; PANEL];
                    multiply::<S, E, W, P>(
                        s,
                        &mut engine,
                        x,
                        Tile::new(W::SPEC, w, index),
                        codes,
                        &mut kept,
                        &mut values,
                    );
                    tiles.write(s, panel * PANEL, index, &values, write);
                }
            }
        }
        UNPACKED.set(unpacked);
    }
}

/// A panel of [`PANEL`] rows times a tile, whose codes are unpacked in `codes`, `[block]`.
#[inline(always)]
fn multiply<S: Dot, E: MatrixEngine, W: Unpack, const P: usize>(
    s: S,
    engine: &mut E,
    x: Panel<'_, P>,
    tile: Tile<'_>,
    codes: &[BlockCodes],
    kept: &mut [[PanelSums; P]; KEPT],
    values: &mut [[f32; LANES]; PANEL],
) {
    // Slices of the loop's length: nothing in it has to be checked.
    let blocks = codes.len();
    let rows = &x.codes.as_chunks().0[..blocks];
    let (row_scales, row_sums) = (&x.scales.as_chunks().0[..blocks], &x.sums.as_chunks().0[..blocks]);
    let mut totals = [s.splat(0.0); PANEL];
    for b in 0..AHEAD.min(blocks) {
        engine.multiply(&rows[b], &codes[b], &mut kept[b % KEPT]);
    }
    for b in 0..blocks {
        if b + AHEAD < blocks {
            engine.multiply(&rows[b + AHEAD], &codes[b + AHEAD], &mut kept[(b + AHEAD) % KEPT]);
        }
        let sums = &kept[b % KEPT];
        let scale = tile.scale(s, W::SPEC, b);
        let row_scales: &[f32; PANEL] = &row_scales[b];
        let (mut min, mut float_sums) = (scale, [0.0; PANEL]);
        if W::SPEC.scale.has_min() {
            min = tile.min(s, W::SPEC, b);
            s.store(s.i32_to_f32(s.load_i32(&row_sums[b])), &mut float_sums);
        }
        // Written out: as a loop it is not unrolled, and the totals are kept in memory.
        macro_rules! rows {
            ($($r:literal)*) => {$({
                let mut term = s.mul(s.i32_to_f32(joined(s, sums, $r)), scale);
                if W::SPEC.scale.has_min() {
                    term = s.add(term, s.mul(s.splat(float_sums[$r]), min));
                }
                totals[$r] = s.add(totals[$r], s.mul(term, s.splat(row_scales[$r])));
            })*};
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    }
    for (total, values) in totals.into_iter().zip(values) {
        s.store(total, values);
    }
}

/// The sums of row `r` over all planes.
#[inline(always)]
fn joined<S: Dot, const P: usize>(s: S, sums: &[PanelSums; P], r: usize) -> S::I32 {
    let low = s.load_i32(&sums[P - 1].0[r]);
    if P == 1 { low } else { s.add_i32(s.shl_i32::<7>(s.load_i32(&sums[0].0[r])), low) }
}
