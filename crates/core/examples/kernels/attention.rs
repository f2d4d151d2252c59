//! The attention that is measured: the heads of a small model, decode and prefill.

use lowbit_core::backend::AttentionShape;
use lowbit_core::kernels::attention::{Attention, Kv, Scratch};
use lowbit_core::simd::{Isa, Scalar};

const SHAPE: AttentionShape = AttentionShape { n_heads: 9, n_kv_heads: 3, head_dim: 64, window: None };

/// Rows at a position.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pos: usize,
    rows: usize,
}

/// All of them.
pub const CASES: &[Case] =
    &[Case { pos: 127, rows: 1 }, Case { pos: 511, rows: 1 }, Case { pos: 384, rows: 128 }];

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "attention-m{}-pos{}", self.rows, self.pos)
    }
}

/// A case with its operands.
pub struct Attend {
    case: Case,
    kv: Kv,
    queries: Vec<f32>,
    out: Vec<f32>,
    scratch: Scratch,
}

impl Attend {
    /// Deterministic operands.
    pub fn new(case: Case) -> Self {
        let mut state = 1_u32;
        let mut random = |len: usize| -> Vec<f32> {
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            (0..len).map(|_| next()).collect()
        };
        let mut kv = Kv::new(SHAPE, case.pos + case.rows).expect("small");
        let writer = kv.writer();
        while let Some(mut head) = writer.take() {
            for pos in 0..case.pos + case.rows {
                let row = random(2 * SHAPE.head_dim);
                head.write(Scalar, pos, &row[..SHAPE.head_dim], &row[SHAPE.head_dim..]);
            }
        }
        let queries = random(case.rows * SHAPE.n_heads * SHAPE.head_dim);
        Self { case, kv, out: vec![0.0; queries.len()], queries, scratch: Scratch::default() }
    }

    /// Computes it on this thread.
    pub fn run(&mut self, isa: Isa) -> &[f32] {
        let attention = Attention::new(&self.queries, &self.kv, self.case.pos).expect("shapes fit");
        let cells = attention.cells(&mut self.out).expect("sized to fit");
        while let Some(cell) = cells.take() {
            cell.compute(isa, &mut self.scratch);
        }
        &self.out
    }

    /// Multiplications.
    pub fn macs(&self) -> usize {
        let seen: usize = (self.case.pos..self.case.pos + self.case.rows).map(|pos| pos + 1).sum();
        2 * SHAPE.n_heads * SHAPE.head_dim * seen
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        4 * SHAPE.n_kv_heads * SHAPE.head_dim * (self.case.pos + self.case.rows)
    }
}
