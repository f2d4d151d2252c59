//! How matrices are rounded while they are packed.

use crate::Result;
use lowbit_core::Format;
use lowbit_core::format::Rounding;
use lowbit_core::pack::Planes;

/// Says how the matrices that are quantised are rounded, and sees what becomes of them.
pub trait Rounder {
    /// How matrix `tensor` (its name in the artifact) is rounded. Asked for every slice of it.
    ///
    /// # Errors
    /// When that cannot be found out; the conversion ends.
    fn rounding(&mut self, tensor: &str) -> Result<Rounding<'_>> {
        let _ = tensor;
        Ok(Rounding::default())
    }

    /// Scales `weights` of `tensor` in place before they are rounded: whole rows of a matrix that is quantised anew, or a vector.
    fn scale(&mut self, tensor: &str, weights: &mut [f32]) {
        let _ = (tensor, weights);
    }

    /// Sees a slice that has been quantised.
    ///
    /// # Errors
    /// As the implementation says; the conversion ends.
    fn packed(&mut self, packed: Packed<'_>) -> Result<()> {
        let _ = packed;
        Ok(())
    }
}

/// A slice of a matrix, before and after.
#[derive(Clone, Copy)]
pub struct Packed<'a> {
    /// The matrix's name in the artifact.
    pub tensor: &'a str,
    /// Its format.
    pub format: Format,
    /// Its input features.
    pub k: usize,
    /// The weights of some rows, `[rows][k]`.
    pub weights: &'a [f32],
    /// What has become of them.
    pub planes: &'a Planes,
}

/// Rounds as [`Rounding::default`] says.
pub(super) struct ByWeights;

impl Rounder for ByWeights {}
