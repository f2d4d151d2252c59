//! The definition of the block products, in plain Rust.

use super::Dot;
use crate::activation::Block;
use crate::format::{BLOCK_K, TILE_N};

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

pub(super) fn dot<S: Dot, const P: usize, const R: usize>(
    s: S,
    codes: &Codes,
    x: Block<'_, P, R>,
    offset: i32,
) -> [S::I32; R] {
    let mut planes = [[s.splat_i32(0); P]; R];
    for (row, x) in planes.iter_mut().zip(x.codes) {
        for (sum, plane) in row.iter_mut().zip(&x.0) {
            let mut lanes = [0; TILE_N];
            for (codes, &a) in codes.iter().zip(plane) {
                for (lane, &code) in lanes.iter_mut().zip(codes) {
                    *lane += i32::from(a) * code;
                }
            }
            *sum = s.load_i32(&lanes);
        }
    }
    super::join(s, planes, *x.sums, offset)
}
