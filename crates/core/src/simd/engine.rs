//! Matrix engines: units that multiply a panel of rows by a block of weights in registers of their own.

use super::LANES;
use crate::activation::{PANEL, RowCodes};

/// The weights of a block, `[k/4][column][k%4]`, signed bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct BlockCodes(pub [[u8; 4 * LANES]; 8]);

impl BlockCodes {
    /// Zero weights.
    pub const ZERO: Self = Self([[0; 4 * LANES]; 8]);
}

/// Integer sums of a panel, `[row][column]`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct PanelSums(pub [[i32; LANES]; PANEL]);

impl PanelSums {
    /// No sums yet.
    pub const ZERO: Self = Self([[0; LANES]; PANEL]);
}

/// A matrix engine that is set up on this thread. Dropping it releases the engine.
pub trait MatrixEngine {
    /// For every plane `p` of the activations: `sums[p][row][column] = sum over k of x[row][p][k] * w[k][column]`.
    fn multiply<const P: usize>(
        &mut self,
        x: &[RowCodes<P>; PANEL],
        w: &BlockCodes,
        sums: &mut [PanelSums; P],
    );
}
