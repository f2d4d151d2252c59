//! Rotary position embedding (Su et al. 2021). The table is made by whoever loads the model.

use crate::backend::{RopeStyle, RopeTable};
use crate::{Error, Result};

impl RopeTable {
    /// Checks that the table is one: `[positions][head_dim / 2]` cosines and sines.
    pub fn check(&self) -> Result<()> {
        let pairs = self.head_dim / 2;
        let whole = pairs > 0 && self.head_dim.is_multiple_of(2) && self.cos.len().is_multiple_of(pairs);
        if whole && self.cos.len() == self.sin.len() {
            return Ok(());
        }
        let (cos, sin) = (self.cos.len(), self.sin.len());
        let problem = format!("{cos} cosines and {sin} sines for heads of {}", self.head_dim);
        Err(Error::Shape { what: "rotary table".into(), problem })
    }

    /// Positions in the table.
    pub fn positions(&self) -> usize {
        self.cos.len() / (self.head_dim / 2)
    }
}

/// Rotates the heads `[head][head_dim]` of one row that is at position `pos`, a position of the table.
///
/// Plain loops: each coordinate is two products and a sum, the same on every ISA however it is vectorised.
#[inline(always)]
pub fn rope(table: &RopeTable, pos: usize, heads: &mut [f32]) {
    let pairs = table.head_dim / 2;
    let cos = &table.cos[pos * pairs..][..pairs];
    let sin = &table.sin[pos * pairs..][..pairs];
    for head in heads.chunks_exact_mut(table.head_dim) {
        match table.style {
            RopeStyle::Half => {
                let (first, second) = head.split_at_mut(pairs);
                for i in 0..pairs {
                    (first[i], second[i]) = rotate(first[i], second[i], cos[i], sin[i]);
                }
            }
            RopeStyle::Interleaved => {
                for ((pair, &cos), &sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                    (pair[0], pair[1]) = rotate(pair[0], pair[1], cos, sin);
                }
            }
        }
    }
}

#[inline(always)]
fn rotate(x: f32, y: f32, cos: f32, sin: f32) -> (f32, f32) {
    (x * cos - y * sin, x * sin + y * cos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Dot, Isa, Kernel, Simd, dispatch};

    fn table(style: RopeStyle, head_dim: usize) -> RopeTable {
        let angles =
            (0..40).flat_map(|p| (0..head_dim / 2).map(move |i| f64::from(p) * 0.7f64.powi(i as i32)));
        let (cos, sin) = angles.map(|a| (a.cos() as f32, a.sin() as f32)).unzip();
        RopeTable { style, head_dim, cos, sin }
    }

    struct Rope<'a>(&'a RopeTable, usize, &'a mut [f32]);

    impl Kernel for Rope<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd + Dot>(self, _: S) {
            rope(self.0, self.1, self.2);
        }
    }

    #[test]
    fn pairs_are_rotated_alike_on_every_isa() {
        for style in [RopeStyle::Half, RopeStyle::Interleaved] {
            for head_dim in [2, 6, 16, 64, 80, 128] {
                let table = table(style, head_dim);
                let x: Vec<f32> = (0..3 * head_dim).map(|i| (i * 29 % 53) as f32 * 0.1 - 2.0).collect();
                let pairs = head_dim / 2;
                for isa in Isa::available() {
                    let mut y = x.clone();
                    dispatch(isa, Rope(&table, 33, &mut y));
                    for i in 0..3 * pairs {
                        let (head, pair) = (i / pairs, i % pairs);
                        let (a, b) = match style {
                            RopeStyle::Half => (head * head_dim + pair, head * head_dim + pair + pairs),
                            RopeStyle::Interleaved => {
                                (head * head_dim + 2 * pair, head * head_dim + 2 * pair + 1)
                            }
                        };
                        let (cos, sin) = (table.cos[33 * pairs + pair], table.sin[33 * pairs + pair]);
                        assert_eq!(y[a], x[a] * cos - x[b] * sin, "{isa} {style:?} {head_dim} {i}");
                        assert_eq!(y[b], x[a] * sin + x[b] * cos, "{isa} {style:?} {head_dim} {i}");
                    }
                }
            }
        }
    }

    #[test]
    fn position_zero_changes_nothing() {
        let mut y = [1.0, 2.0, 3.0, 4.0];
        rope(&table(RopeStyle::Half, 4), 0, &mut y);
        assert_eq!(y, [1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn a_table_of_the_wrong_size_is_refused() {
        let mut bad = table(RopeStyle::Half, 6);
        assert!(bad.check().is_ok());
        bad.sin.pop();
        assert!(bad.check().is_err());
        bad.cos.pop();
        assert!(bad.check().is_err());
    }
}
