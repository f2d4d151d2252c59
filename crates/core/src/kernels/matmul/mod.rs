//! Products of rows of activations with packed matrices, a tile (16 output columns) at a time.
//!
//! Every output is one sum over the blocks of a row in increasing order, each block's integer sum being exact (or, where a
//! whole row shares a scale, one exact integer sum), so that
//! results depend neither on the ISA nor on how rows and tiles are grouped or split between threads
//! (accuracy contract, level B).

mod apart;
mod channel;
mod float;
mod output;
mod packed;
#[cfg(target_arch = "x86_64")]
mod panels;
mod quantized;
#[cfg(target_arch = "aarch64")]
mod sme;
#[cfg(test)]
mod tests;
mod unpacked;

pub use output::{Output, Tiles, Write};

use crate::activation::{PANEL, PanelsRef, QuantizedRows, Scaling};
use crate::backend::Gate;
use crate::format::{BLOCK_K, Codes, Format, PackedMatrix};
use crate::simd::{Dot, Isa, Kernel, Simd, dispatch};
use crate::{Error, Result};

/// The rows on the left of a product, in the form that the matrix's format reads.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// For packed formats.
    Quantized(&'a QuantizedRows),
    /// For raw float formats: `[rows][k]`.
    Float(&'a [f32]),
}

/// Whether products with matrices of `format` read [`Rows::Quantized`].
pub fn takes_quantized(format: Format) -> bool {
    format.spec().codes != Codes::Float
}

/// Which values of [`Rows::Quantized`] share a scale, for matrices of `format`; `strict` where it is to be a power of two if
/// that is in question. `None` where they read [`Rows::Float`].
pub fn scaling(format: Format, strict: bool) -> Option<Scaling> {
    let spec = format.spec();
    match (spec.scale.is_channel(), strict) {
        _ if spec.codes == Codes::Float => None,
        (false, _) => Some(Scaling::Block),
        (true, false) => Some(Scaling::Row),
        (true, true) => Some(Scaling::Strict),
    }
}

/// Computes `tiles` of `x * w` and writes them as `write` says.
///
/// Several threads may compute different tiles of one [`Output`] at the same time.
///
/// # Errors
/// [`Error::Shape`] when `x`, `w` and the output do not fit each other, or `x` has the wrong form for `w`.
pub fn matmul_tiles(
    isa: Isa,
    x: Rows<'_>,
    w: &PackedMatrix,
    write: Write,
    mut tiles: Tiles<'_>,
) -> Result<()> {
    check(x, w, &tiles)?;
    let from = on_engine(isa, x, w, write, tiles.again());
    if from * PANEL < tiles.rows() {
        dispatch(isa, Matmul { x, w, write, tiles, from });
    }
    Ok(())
}

/// Computes the first panels of a checked product on the matrix engine of `isa`; returns how many: none where there is
/// no engine, or nothing for it to do.
fn on_engine(isa: Isa, x: Rows<'_>, w: &PackedMatrix, write: Write, tiles: Tiles<'_>) -> usize {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Amx
        && let Rows::Quantized(x) = x
        && x.rows() >= PANEL
        && let Some(amx) = crate::simd::Amx::new()
    {
        return panels::run(amx.vectors(), amx.configure(), x, w, write, tiles);
    }
    #[cfg(target_arch = "aarch64")]
    if matches!(isa, Isa::Sme | Isa::Sme2)
        && let Rows::Quantized(x) = x
        && let Some(sme) = crate::simd::Sme::new()
        && sme.is_free()
    {
        return sme::run(sme, isa, x, w, write, tiles);
    }
    let _ = (isa, x, w, write, tiles);
    0
}

/// Computes `tiles` of `act(x * gate) .* (x * up)`.
///
/// # Errors
/// As [`matmul_tiles`], for either matrix.
pub fn gated_tiles(
    isa: Isa,
    gate: (Rows<'_>, &PackedMatrix),
    up: (Rows<'_>, &PackedMatrix),
    act: Gate,
    mut tiles: Tiles<'_>,
) -> Result<()> {
    matmul_tiles(isa, gate.0, gate.1, Write::Store, tiles.again())?;
    matmul_tiles(isa, up.0, up.1, Write::Gate(act), tiles)
}

fn check(x: Rows<'_>, w: &PackedMatrix, tiles: &Tiles<'_>) -> Result<()> {
    let shape = |problem| Err(Error::Shape { what: "matmul".into(), problem });
    let rows = tiles.rows();
    match x {
        Rows::Quantized(x) if scaling(w.format, x.scaling() == Scaling::Strict) == Some(x.scaling()) => {
            if (x.rows(), x.k()) != (rows, w.k) {
                return shape(format!("{} x {} activations for {rows} x {}", x.rows(), x.k(), w.k));
            }
        }
        Rows::Float(x) if !takes_quantized(w.format) => {
            if Some(x.len()) != rows.checked_mul(w.k) {
                return shape(format!("{} activations for {rows} x {}", x.len(), w.k));
            }
        }
        _ => return shape(format!("activations of the wrong form for format {}", w.format.spec().name)),
    }
    if tiles.n() != w.n {
        return shape(format!("an output of {} columns for a matrix of {}", tiles.n(), w.n));
    }
    let planes = w.planes().map(|plane| plane.len());
    let aligned = w.planes().iter().all(|plane| plane.as_ptr().addr() % 4 == 0);
    match w.format.plane_sizes(w.n, w.k) {
        Some(size) if planes == size.array() && aligned => Ok(()),
        size => shape(format!("planes of {planes:?} bytes for {size:?}")),
    }
}

/// Panels `from..` of a checked product; all rows where `x` is floats.
struct Matmul<'a> {
    x: Rows<'a>,
    w: &'a PackedMatrix,
    write: Write,
    tiles: Tiles<'a>,
    from: usize,
}

impl Kernel for Matmul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd + Dot>(self, s: S) {
        let Self { x, w, write, tiles, from } = self;
        match x {
            Rows::Float(x) => float::run(s, x, w, write, tiles),
            Rows::Quantized(x) => match x.panels() {
                PanelsRef::A8(x) => quantized::run(s, x, w, write, tiles, from),
                PanelsRef::A16(x) => quantized::run(s, x, w, write, tiles, from),
            },
        }
    }
}

/// Blocks of a row.
fn blocks(w: &PackedMatrix) -> usize {
    w.k.div_ceil(BLOCK_K)
}
