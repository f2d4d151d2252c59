//! The definition of the block products, in plain Rust.

use super::Dot;
use crate::activation::Block;
use crate::format::{BLOCK_K, TILE_N};
use crate::simd::Scalar;

/// `[k][column]`
type Codes = [[i32; TILE_N]; BLOCK_K];

pub(super) fn codes_u4(w: &[u8; 256]) -> Codes {
    let mut codes = [[0; TILE_N]; BLOCK_K];
    for (k, row) in codes.iter_mut().enumerate() {
        for (column, code) in row.iter_mut().enumerate() {
            let byte = w[(k / 8 * TILE_N + column) * 4 + k % 4];
            *code = i32::from(if k / 4 % 2 == 0 { byte & 15 } else { byte >> 4 });
        }
    }
    codes
}

pub(super) fn codes_u5(w: &[u8; 256], high: &[u8; 64]) -> Codes {
    let mut codes = codes_u4(w);
    for (k, row) in codes.iter_mut().enumerate() {
        for (column, code) in row.iter_mut().enumerate() {
            *code |= i32::from(high[column * 4 + k % 4] >> (k / 4) & 1) << 4;
        }
    }
    codes
}

pub(super) fn codes_i8(w: &[u8; 512]) -> Codes {
    let mut codes = [[0; TILE_N]; BLOCK_K];
    for (k, row) in codes.iter_mut().enumerate() {
        for (column, code) in row.iter_mut().enumerate() {
            *code = i32::from(w[(k / 4 * TILE_N + column) * 4 + k % 4].cast_signed());
        }
    }
    codes
}

impl Dot for Scalar {
    type Bytes = [u8; 64];
    const PARTS: usize = 1;

    fn load_bytes(self, granule: &[u8; 64], _: usize) -> [u8; 64] {
        *granule
    }
    fn store_bytes(self, x: [u8; 64], granule: &mut [u8; 64], _: usize) {
        *granule = x;
    }
    fn field(self, x: [u8; 64], bits: usize, from: usize) -> [u8; 64] {
        x.map(|byte| byte >> from & ((1 << bits) - 1))
    }
    fn join(self, mut low: [u8; 64], high: [u8; 64], at: usize) -> [u8; 64] {
        for (low, high) in low.iter_mut().zip(high) {
            *low |= high << at;
        }
        low
    }
    fn dot_halves<C: super::Codes, const P: usize, const R: usize>(
        self,
        w: C,
        x: Block<'_, P, R>,
        offset: i32,
    ) -> [[Self::I32; R]; 2] {
        halves(self, &codes(self, w), x, super::half_sums(x), offset)
    }
    fn lookup(self, table: &[i8; 16], x: [u8; 64]) -> [u8; 64] {
        x.map(|code| table[usize::from(code & 15)].cast_unsigned())
    }
}

fn codes(s: Scalar, w: impl super::Codes) -> Codes {
    let mut codes = [[0; TILE_N]; BLOCK_K];
    for (word, codes) in codes.chunks_exact_mut(4).enumerate() {
        for (column, bytes) in w.word(s, word, 0).chunks_exact(4).enumerate() {
            for (codes, byte) in codes.iter_mut().zip(bytes) {
                codes[column] = i32::from(*byte);
            }
        }
    }
    codes
}

/// The sums over both halves.
pub(super) fn halves<S: Dot, const P: usize, const R: usize>(
    s: S,
    codes: &Codes,
    x: Block<'_, P, R>,
    sums: [[i32; R]; 2],
    offset: i32,
) -> [[S::I32; R]; 2] {
    let (first, second) = codes.split_at(BLOCK_K / 2);
    let half = |codes, at, sums| super::join(s, dot_planes(s, codes, x, at), sums, offset);
    [half(first, 0, sums[0]), half(second, BLOCK_K / 2, sums[1])]
}

pub(super) fn dot<S: Dot, const P: usize, const R: usize>(
    s: S,
    codes: &Codes,
    x: Block<'_, P, R>,
    offset: i32,
) -> [S::I32; R] {
    super::join(s, dot_planes(s, codes, x, 0), *x.sums, offset)
}

/// The sums over some `k`, from `first` on.
fn dot_planes<S: Dot, const P: usize, const R: usize>(
    s: S,
    codes: &[[i32; TILE_N]],
    x: Block<'_, P, R>,
    first: usize,
) -> [[S::I32; P]; R] {
    let mut planes = [[s.splat_i32(0); P]; R];
    for (row, x) in planes.iter_mut().zip(x.codes) {
        for (sum, plane) in row.iter_mut().zip(&x.0) {
            let mut lanes = [0; TILE_N];
            for (codes, &a) in codes.iter().zip(&plane[first..]) {
                for (lane, &code) in lanes.iter_mut().zip(codes) {
                    *lane += i32::from(a) * code;
                }
            }
            *sum = s.load_i32(&lanes);
        }
    }
    planes
}
