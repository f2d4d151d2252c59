//! Matrix products of every format against the naive oracle, bit for bit: in tests, and wherever a build runs (a module
//! in a page, a machine that nobody has tried).

use super::matmul::{Output, Rows, Write, matmul_tiles, scaling, takes_quantized};
use super::reference;
use crate::activation::{Activations, QuantizedRows, Scaling};
use crate::buffer::Bytes;
use crate::format::{BLOCK_K, FORMATS, Format, MAX_STEP, PackedMatrix, SUPER_K, ScaleForm, TILE_N};
use crate::simd::{Dot, Isa, Kernel, Simd, dispatch};
use crate::{Error, Result};
use std::ops::RangeInclusive;

/// One product to be checked.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Format of the matrix.
    pub format: Format,
    /// Columns.
    pub n: usize,
    /// Terms of a sum.
    pub k: usize,
    /// Rows.
    pub m: usize,
    /// Contents of the planes.
    pub fill: Fill,
    /// Precision of the rows.
    pub activations: Activations,
    /// Whether the scales of rows are powers of two, where a row has one.
    pub strict: bool,
}

/// What the planes of a matrix hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Any codes, ordinary scales.
    Random,
    /// One byte everywhere: all codes at an extreme.
    Codes(u8),
    /// Any codes, subnormal scales.
    Tiny,
}

/// The shapes and contents that every format and precision is tried with: some seconds in plain Rust.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for spec in FORMATS {
        let widths: &[_] = match spec.format.k_multiple() {
            1 => &[32, 64, 96, 576, 40],
            128 => &[128, 256, 384],
            _ => &[256, 512, 768],
        };
        for activations in [Activations::A8, Activations::A16] {
            let mut case = |n, k, m, fill| {
                cases.push(Case { format: spec.format, n, k, m, fill, activations, strict: m % 4 == 2 });
            };
            for n in [1, 15, 16, 17, 48] {
                for &k in widths {
                    for m in [1, 2, 9] {
                        case(n, k, m, Fill::Random);
                    }
                }
            }
            for m in 1..=33 {
                case(17, widths[0], m, Fill::Random);
            }
            let [.., last] = *widths else { continue };
            case(16, last, 3, Fill::Random);
            case(83, last, 33, Fill::Random);
            for fill in [0x00, 0xff, 0x80, 0x7f, 0xf0, 0x0f].map(Fill::Codes).into_iter().chain([Fill::Tiny])
            {
                case(16, widths[1], 17, fill);
            }
        }
    }
    cases
}

/// Computes `case` with every one of `isas` and compares it with the oracle.
///
/// # Errors
/// [`Error::Isa`] with the case and the first differing value.
pub fn check(isas: &[Isa], case: Case) -> Result<()> {
    let mut rng = Rng(0x9e37_79b9 + (case.n * 31 + case.k * 7 + case.m) as u64);
    let w = matrix(case.format, case.n, case.k, case.fill, &mut rng);
    let x = rows(case.m, case.k, &mut rng);
    let expected: Vec<f32> = (x.chunks(case.k))
        .flat_map(|row| reference::matmul_row(row, &w, case.activations, case.strict))
        .collect();
    let scaling = scaling(case.format, case.strict).unwrap_or(Scaling::Block);
    let mut q = QuantizedRows::with(case.activations, scaling);
    for isa in isas {
        let found = product(*isa, &x, &w, &mut q, 1 + case.n % 7)?;
        let mut pairs = found.iter().zip(&expected).enumerate();
        if let Some((i, (a, b))) = pairs.find(|(_, (a, b))| a.to_bits() != b.to_bits()) {
            return Err(Error::Isa(format!("{isa}: {case:?}: value {i} is {a:e}, expected {b:e}")));
        }
    }
    Ok(())
}

/// A small deterministic generator (xorshift64*).
pub(crate) struct Rng(pub u64);

impl Rng {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32
    }

    fn float(&mut self) -> f32 {
        self.next() as f32 / 2f32.powi(31) - 1.0
    }
}

/// A matrix of deterministic weights, as [`check`] uses them: its padded columns have NaN scales.
pub fn sample(format: Format, n: usize, k: usize, seed: u64) -> PackedMatrix {
    matrix(format, n, k, Fill::Random, &mut Rng(seed | 1))
}

/// A matrix whose padded columns have NaN scales: no result may depend on them.
pub(crate) fn matrix(format: Format, n: usize, k: usize, fill: Fill, rng: &mut Rng) -> PackedMatrix {
    let blocks = k.div_ceil(BLOCK_K);
    let codes = |len: usize, rng: &mut Rng| -> Vec<u8> {
        let code = |rng: &mut Rng| match fill {
            Fill::Codes(code) => code,
            _ => (rng.next() >> 8) as u8,
        };
        (0..len).map(|_| code(rng)).collect()
    };
    // `of_tile` vectors of halves a tile, of magnitudes up to `largest`.
    let scales = |len: usize, of_tile: usize, largest: f32, rng: &mut Rng| -> Vec<u8> {
        let scale = |i: usize| {
            let padding = i / TILE_N / of_tile * TILE_N + i % TILE_N >= n;
            match fill {
                _ if padding => 0x7e00,
                Fill::Tiny => rng.next() as u16 & 0x83ff,
                _ => half::f16::from_f32(rng.float() * largest).to_bits(),
            }
        };
        (0..len / 2).map(scale).flat_map(u16::to_le_bytes).collect()
    };
    // Vectors of bytes of an ordinary range, or of one of tiny scales.
    let bytes = |len: usize, of_tile: usize, ordinary: RangeInclusive<u8>, tiny, rng: &mut Rng| -> Vec<u8> {
        let range = if fill == Fill::Tiny { tiny } else { ordinary };
        let scale = |i: usize| {
            let padding = i / TILE_N / of_tile * TILE_N + i % TILE_N >= n;
            let drawn = range.start() + (rng.next() >> 8) as u8 % (range.end() - range.start() + 1);
            if padding { u8::MAX } else { drawn }
        };
        (0..len).map(scale).collect()
    };
    let floats = |len: usize, rng: &mut Rng| -> Vec<u8> {
        let mut value = || rng.float();
        match format {
            Format::F16 => (0..len / 2).flat_map(|_| half::f16::from_f32(value()).to_le_bytes()).collect(),
            Format::Bf16 => (0..len / 2).flat_map(|_| half::bf16::from_f32(value()).to_le_bytes()).collect(),
            _ => (0..len / 4).flat_map(|_| value().to_le_bytes()).collect(),
        }
    };
    let size = format.plane_sizes(n, k).unwrap_or_default();
    let spec = format.spec();
    let w = if takes_quantized(format) { codes(size.w, rng) } else { floats(size.w, rng) };
    let x = codes(size.x, rng);
    let groups = blocks * BLOCK_K / spec.group;
    let (s, m) = match spec.scale {
        ScaleForm::Super | ScaleForm::SuperMin => (codes(size.s, rng), codes(size.m, rng)),
        ScaleForm::Progressive => {
            (codes(size.s, rng).into_iter().map(|step| step & MAX_STEP).collect(), Vec::new())
        }
        ScaleForm::E8m0 => (bytes(size.s, groups, 112..=127, 0..=16, rng), vec![]),
        ScaleForm::E4m3 => (bytes(size.s, groups, 0..=0x38, 0..=7, rng), vec![]),
        _ => (scales(size.s, groups, 1.0, rng), scales(size.m, groups, 1.0, rng)),
    };
    let channel = |i: usize, rng: &mut Rng| match fill {
        _ if i >= n => f32::NAN,
        Fill::Tiny => rng.float() * 1e-39,
        _ => rng.float() / 64.0,
    };
    let c: Vec<u8> = (0..size.c / 4).flat_map(|i| channel(i, rng).to_le_bytes()).collect();
    let d = scales(size.d, blocks * BLOCK_K / SUPER_K * spec.scale.parts(), 1.0 / 64.0, rng);
    let [w, x, s, m, d, c] = [w, x, s, m, d, c].map(|plane| Bytes::copy_of(&plane));
    PackedMatrix { format, n, k, w, x, s, m, d, c }
}

/// Rows with everything that quantisation treats specially: ties, zeros, one-sided extremes, tiny and huge values.
pub(crate) fn rows(m: usize, k: usize, rng: &mut Rng) -> Vec<f32> {
    let value = |i: usize| match i / k % 9 {
        1 => 0.0,
        2 => [1.0, -1.0][i % 2],
        3 => 1.0,
        4 => (i % 255) as f32 - 127.0 + 0.5,
        5 => rng.float() * 1e-39,
        6 => rng.float() * 1e30,
        7 => -3.0,
        _ => rng.float(),
    };
    (0..m * k).map(value).collect()
}

/// `x` times `w`, claimed `claim` tiles at a time.
fn product(isa: Isa, x: &[f32], w: &PackedMatrix, q: &mut QuantizedRows, claim: usize) -> Result<Vec<f32>> {
    let m = x.len() / w.k;
    dispatch(isa, Quantize(q, x, w.k))?;
    let input = if takes_quantized(w.format) { Rows::Quantized(q) } else { Rows::Float(x) };
    let mut out = vec![f32::NAN; m * w.n];
    let output = Output::new(&mut out, m, w.n, 1)?;
    while let Some(tiles) = output.claim(claim) {
        matmul_tiles(isa, input, w, Write::Store, tiles)?;
    }
    Ok(out)
}

struct Quantize<'a>(&'a mut QuantizedRows, &'a [f32], usize);

impl Kernel for Quantize<'_> {
    type Output = Result<()>;

    #[inline(always)]
    fn run<S: Simd + Dot>(self, s: S) -> Result<()> {
        self.0.quantize(s, self.1, self.2)
    }
}
