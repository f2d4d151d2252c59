//! The products that are measured: the shapes of a small model, decode and prefill.

use lowbit_core::activation::{Activations, QuantizedRows, Scaling};
use lowbit_core::kernels::matmul::{Output, Rows, Write, matmul_tiles, scaling};
use lowbit_core::kernels::selftest::sample;
use lowbit_core::simd::{Isa, Scalar};
use lowbit_core::{Format, PackedMatrix};

/// One product: `m` rows of `k` times an `n` x `k` matrix.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Of the matrix.
    pub format: Format,
    /// Columns of the result.
    pub n: usize,
    /// Terms of a sum.
    pub k: usize,
    /// Rows: 1 in decode.
    pub m: usize,
    /// Precision of the rows.
    pub activations: Activations,
}

const fn case(format: Format, n: usize, k: usize, m: usize, activations: Activations) -> Case {
    Case { format, n, k, m, activations }
}

/// All of them.
pub const CASES: &[Case] = &[
    case(Format::Q4, 1536, 576, 1, Activations::A8),
    case(Format::Q4, 576, 1536, 1, Activations::A8),
    case(Format::Q4m, 1536, 576, 1, Activations::A8),
    case(Format::Q4m, 1536, 576, 1, Activations::A16),
    case(Format::Q4m, 49152, 576, 1, Activations::A8),
    case(Format::Q4m, 49152, 576, 1, Activations::A16),
    case(Format::Q5, 1536, 576, 1, Activations::A8),
    case(Format::Q8, 1536, 576, 1, Activations::A8),
    case(Format::Q8, 1536, 576, 1, Activations::A16),
    case(Format::Q8, 49152, 576, 1, Activations::A8),
    case(Format::Q8, 49152, 576, 1, Activations::A16),
    case(Format::Q4, 1536, 576, 128, Activations::A8),
    case(Format::Q4m, 1536, 576, 128, Activations::A8),
    case(Format::Q4, 1536, 576, 128, Activations::A16),
    case(Format::Q4m, 1536, 576, 128, Activations::A16),
    case(Format::Q4, 576, 1536, 128, Activations::A8),
    case(Format::Q5, 1536, 576, 128, Activations::A8),
    case(Format::Q8, 1536, 576, 128, Activations::A8),
    case(Format::Q8, 1536, 576, 128, Activations::A16),
    // Every packed format, in memory that no cache near a core holds.
    case(Format::Q4, 8192, 2048, 1, Activations::A8),
    case(Format::Q4m, 8192, 2048, 1, Activations::A8),
    case(Format::Q5, 8192, 2048, 1, Activations::A8),
    case(Format::Q5m, 8192, 2048, 1, Activations::A8),
    case(Format::Q8, 8192, 2048, 1, Activations::A8),
    case(Format::Q2k, 8192, 2048, 1, Activations::A8),
    case(Format::Q3k, 8192, 2048, 1, Activations::A8),
    case(Format::Q4k, 8192, 2048, 1, Activations::A8),
    case(Format::Q5k, 8192, 2048, 1, Activations::A8),
    case(Format::Q6k, 8192, 2048, 1, Activations::A8),
    case(Format::Q1, 8192, 2048, 1, Activations::A8),
    case(Format::T2, 8192, 2048, 1, Activations::A8),
    case(Format::Iq4, 8192, 2048, 1, Activations::A8),
    case(Format::Iq4k, 8192, 2048, 1, Activations::A8),
    case(Format::Mxfp4, 8192, 2048, 1, Activations::A8),
    case(Format::Nvfp4, 8192, 2048, 1, Activations::A8),
];

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { format, n, k, m, activations } = self;
        write!(f, "{}-{activations:?}-m{m}-n{n}-k{k}", format.spec().name)
    }
}

/// A case with its operands.
pub struct Product {
    case: Case,
    w: PackedMatrix,
    x: QuantizedRows,
    out: Vec<f32>,
}

impl Product {
    /// Deterministic operands.
    pub fn new(case: Case) -> Self {
        let w = sample(case.format, case.n, case.k, 1);
        let scaling = scaling(case.format, false).unwrap_or(Scaling::Block);
        let mut x = QuantizedRows::with(case.activations, scaling);
        let values: Vec<f32> = (0..case.m * case.k).map(|i| (i * 7919 % 255) as f32 - 127.0).collect();
        x.quantize(Scalar, &values, case.k).expect("sized to fit");
        Self { out: vec![0.0; case.m * case.n], case, w, x }
    }

    /// Computes the product on this thread.
    pub fn run(&mut self, isa: Isa) -> &[f32] {
        let output = Output::new(&mut self.out, self.case.m, self.case.n, 1).expect("sized to fit");
        while let Some(tiles) = output.claim(usize::MAX) {
            matmul_tiles(isa, Rows::Quantized(&self.x), &self.w, Write::Store, tiles).expect("sized to fit");
        }
        &self.out
    }

    /// Multiplications of codes.
    pub fn macs(&self) -> usize {
        self.case.m * self.case.n * self.case.k
    }

    /// Bytes of weights.
    #[allow(dead_code, reason = "for the harnesses that report bandwidth")]
    pub fn bytes(&self) -> usize {
        self.w.byte_len()
    }
}
