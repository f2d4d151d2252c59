//! Second moments of a matrix's inputs.

use lowbit_core::simd::{Dot, Isa, Kernel, LANES, Simd, dispatch};

/// The sum of `x^T x` over the inputs `x` of a matrix: up to a factor, the Hessian of the squared error of its outputs with
/// respect to the weights of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Hessian {
    k: usize,
    /// `[k][k]`, of which the diagonal and what is right of it are kept.
    sums: Vec<f32>,
}

impl Hessian {
    /// Of no inputs. `k` is a multiple of 16.
    pub fn new(k: usize) -> Self {
        Self { k, sums: vec![0.0; k * k] }
    }

    /// That of inputs of which nothing is known: the identity.
    pub fn identity(k: usize) -> Self {
        let mut hessian = Self::new(k);
        hessian.sums.iter_mut().step_by(k + 1).for_each(|x| *x = 1.0);
        hessian
    }

    /// Bytes that one of `k` inputs takes.
    pub fn bytes(k: usize) -> usize {
        k * k * size_of::<f32>()
    }

    /// Input features.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Adds rows of inputs, `[rows][k]`.
    pub fn add(&mut self, x: &[f32]) {
        dispatch(Isa::best(), Gram { k: self.k, x, sums: &mut self.sums });
    }

    /// The element of two input features.
    #[inline]
    pub fn at(&self, i: usize, j: usize) -> f32 {
        self.sums[i.min(j) * self.k + i.max(j)]
    }

    /// That of the inputs divided by `factors`, one for every feature.
    pub fn divided(&self, factors: &[f32]) -> Self {
        let rows = self.sums.chunks_exact(self.k.max(1)).zip(factors);
        let sums = rows.flat_map(|(row, factor)| {
            row.iter().zip(factors).map(move |(sum, other)| sum / (factor * other))
        });
        Self { k: self.k, sums: sums.collect() }
    }

    /// The second moment of every input feature, and a hundredth of their mean more, so that none is 0.
    pub fn importance(&self) -> Vec<f32> {
        let damping = self.damping(0.01);
        (0..self.k).map(|i| self.at(i, i) + damping).collect()
    }

    /// `factor` times the mean of the diagonal; 1 where that is zero.
    pub(super) fn damping(&self, factor: f64) -> f32 {
        let sum: f64 = (0..self.k).map(|i| f64::from(self.at(i, i))).sum();
        let damping = (factor * sum / self.k.max(1) as f64) as f32;
        if damping > 0.0 { damping } else { 1.0 }
    }

    /// `e H e^T`: the squared outputs of weights `e`, summed over the inputs.
    pub fn energy(&self, e: &[f32]) -> f64 {
        let row = |i: usize| {
            let right = e[i + 1..].iter().zip(&self.sums[i * self.k + i + 1..(i + 1) * self.k]);
            let mut sums = [0f32; 8];
            for (j, (e, h)) in right.enumerate() {
                sums[j % 8] += e * h;
            }
            let right: f32 = sums.iter().sum();
            f64::from(e[i]) * f64::from(self.at(i, i) * e[i] + 2.0 * right)
        };
        (0..self.k).map(row).sum::<f64>().max(0.0)
    }
}

/// Rows that are added together.
const ROWS: usize = 4;

struct Gram<'a> {
    k: usize,
    x: &'a [f32],
    sums: &'a mut [f32],
}

impl Kernel for Gram<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd + Dot>(self, s: S) {
        let Self { k, x, sums } = self;
        let mut tail = vec![0.0; ROWS * k];
        for rows in x.chunks(ROWS * k) {
            tail[..rows.len()].copy_from_slice(rows);
            tail[rows.len()..].fill(0.0);
            for i in 0..k {
                let first = i / LANES;
                let sums = &mut sums[i * k..(i + 1) * k].as_chunks_mut::<LANES>().0[first..];
                let factors = [0, 1, 2, 3].map(|r: usize| s.splat(tail[r * k + i]));
                let [a, b] = [0, 1].map(|r: usize| &tail[r * k..(r + 1) * k].as_chunks::<LANES>().0[first..]);
                let [c, d] = [2, 3].map(|r: usize| &tail[r * k..(r + 1) * k].as_chunks::<LANES>().0[first..]);
                for j in 0..sums.len() {
                    let ab = s.add(s.mul(factors[0], s.load(&a[j])), s.mul(factors[1], s.load(&b[j])));
                    let cd = s.add(s.mul(factors[2], s.load(&c[j])), s.mul(factors[3], s.load(&d[j])));
                    let sum = s.add(s.load(&sums[j]), s.add(ab, cd));
                    s.store(sum, &mut sums[j]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowbit_testing::Rng;

    #[test]
    fn sums_equal_a_direct_computation() {
        let (k, rows) = (48, 11);
        let x = Rng::new(3).floats(rows * k, 1.0);
        let mut hessian = Hessian::new(k);
        hessian.add(&x[..5 * k]);
        hessian.add(&x[5 * k..]);
        for i in 0..k {
            for j in 0..k {
                let expected: f64 = x.chunks(k).map(|x| f64::from(x[i]) * f64::from(x[j])).sum();
                let found = f64::from(hessian.at(i, j));
                assert!((found - expected).abs() < 1e-5 * rows as f64, "{i} {j}: {found} {expected}");
            }
        }
        let e = Rng::new(4).floats(k, 1.0);
        let outputs =
            x.chunks(k).map(|x| x.iter().zip(&e).map(|(x, e)| f64::from(x * e)).sum::<f64>().powi(2));
        let (expected, found) = (outputs.sum::<f64>(), hessian.energy(&e));
        assert!((found - expected).abs() < 1e-4 * expected, "{found} {expected}");
        assert!(hessian.importance().iter().all(|x| *x > 0.0));

        let factors: Vec<f32> = (0..k).map(|i| 0.5 + i as f32).collect();
        let scaled: Vec<f32> = e.iter().zip(&factors).map(|(e, factor)| e * factor).collect();
        let found = hessian.divided(&factors).energy(&scaled);
        assert!((found - expected).abs() < 1e-4 * expected, "{found} {expected}");
    }
}
