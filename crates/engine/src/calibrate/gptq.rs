//! Rounding whose errors are made good by the weights that come after (GPTQ, Frantar et al. 2022), in the form of LDLQ
//! (Chee et al. 2023), which needs no inverse.
//!
//! With `H = U D U^T`, `U` unit upper triangular, an error `e` of a row of weights costs
//! `e H e^T = sum over k of D[k] * (e[k] + sum over i < k of e[i] * U[i][k])^2`. The weights are rounded one after the other,
//! each to what is nearest to `w[k] - sum over i < k of e[i] * U[i][k]`. The inputs of largest second moment come first, when
//! most weights are left to make good what they miss. Scales are chosen before, from the weights as they are.

use super::Hessian;
use lowbit_core::format::{ChooseCodes, Grid, Levels};
use lowbit_core::simd::{Dot, Isa, Kernel, LANES, Simd, dispatch};

/// The factor of a [`Hessian`].
pub struct Gptq {
    k: usize,
    /// The input feature that is rounded `i`th.
    order: Vec<usize>,
    /// `[k][k]`: right of the diagonal `U`, zero elsewhere.
    upper: Vec<f32>,
}

impl Gptq {
    /// Factors `H + damping * mean(diagonal) * I`, with more damping where rounding errors ask for it; `None` when that is of
    /// no use, as the inputs were not finite.
    pub fn new(hessian: &Hessian, damping: f64) -> Option<Self> {
        let k = hessian.k();
        let mut order: Vec<usize> = (0..k).collect();
        order.sort_by(|&a, &b| hessian.at(b, b).total_cmp(&hessian.at(a, a)));
        let lower = (0..4).find_map(|attempt| {
            let damping = hessian.damping(damping * 10f64.powi(attempt));
            // From the last feature to the first, Cholesky's lower factor is the upper one that is wanted.
            let at = |i: usize, j: usize| {
                let h = hessian.at(order[k - 1 - i], order[k - 1 - j]);
                if i == j { h + damping } else { h }
            };
            let mut lower: Vec<f32> = (0..k * k).map(|n| at(n / k, n % k)).collect();
            dispatch(Isa::best(), Cholesky { k, lower: &mut lower }).then_some(lower)
        })?;
        let mut upper = vec![0.0; k * k];
        for i in 0..k {
            for j in i + 1..k {
                let (row, column) = (k - 1 - i, k - 1 - j);
                upper[i * k + j] = lower[row * k + column] / lower[column * k + column];
            }
        }
        Some(Self { k, order, upper })
    }
}

impl ChooseCodes for Gptq {
    fn choose(&self, grid: Grid, group: usize, weights: &[f32], levels: &[Levels], codes: &mut [i8]) {
        let Self { k, order, upper } = self;
        assert!(weights.len() == *k && codes.len() == *k, "a row of {} weights for {k}", weights.len());
        let wanted: Vec<f32> = order.iter().map(|&p| weights[p]).collect();
        dispatch(Isa::best(), Round { grid, group, order, upper, weights, levels, wanted, codes });
    }
}

/// The lower factor in place of a positive definite matrix; whether it was one.
struct Cholesky<'a> {
    k: usize,
    lower: &'a mut [f32],
}

impl Kernel for Cholesky<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd + Dot>(self, s: S) -> bool {
        let Self { k, lower } = self;
        for i in 0..k {
            let (above, row) = lower.split_at_mut(i * k);
            for j in 0..i {
                let of_j = &above[j * k..(j + 1) * k];
                row[j] = (row[j] - dot(s, &row[..j], &of_j[..j])) / of_j[j];
            }
            let pivot = row[i] - dot(s, &row[..i], &row[..i]);
            if !(pivot > 0.0 && pivot.is_finite()) {
                return false;
            }
            row[i] = pivot.sqrt();
        }
        true
    }
}

#[inline(always)]
fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sum = s.splat(0.0);
    for i in 0..a.len().min(b.len()) {
        sum = s.add(sum, s.mul(s.load(&a[i]), s.load(&b[i])));
    }
    let mut tail = 0.0;
    for i in 0..a_tail.len().min(b_tail.len()) {
        tail += a_tail[i] * b_tail[i];
    }
    s.reduce_add(sum) + tail
}

/// A row.
struct Round<'a> {
    grid: Grid,
    group: usize,
    order: &'a [usize],
    upper: &'a [f32],
    weights: &'a [f32],
    levels: &'a [Levels],
    /// What each weight is rounded from, in the order of rounding.
    wanted: Vec<f32>,
    codes: &'a mut [i8],
}

impl Kernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd + Dot>(self, s: S) {
        let Self { grid, group, order, upper, weights, levels, mut wanted, codes } = self;
        let k = order.len();
        for i in 0..k {
            let p = order[i];
            let levels = levels[p / group];
            let code = grid.nearest(wanted[i], levels);
            codes[p] = code as i8;
            let error = s.splat(levels.value(code) - weights[p]);
            // What stands left of the diagonal is zero.
            let first = (i + 1) / LANES;
            let row = &upper[i * k..(i + 1) * k].as_chunks::<LANES>().0[first..];
            let wanted = &mut wanted.as_chunks_mut::<LANES>().0[first..];
            for j in 0..row.len() {
                let next = s.sub(s.load(&wanted[j]), s.mul(error, s.load(&row[j])));
                s.store(next, &mut wanted[j]);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use lowbit_core::format::{FORMATS, RowScales, ScaleSearch};
    use lowbit_testing::Rng;

    const K: usize = 256;

    /// The second moments of inputs that have much in common.
    fn correlated(rng: &mut Rng) -> Hessian {
        let mut hessian = Hessian::new(K);
        let mixing = rng.floats(24 * K, 1.0);
        for _ in 0..300 {
            let sources = rng.floats(24, 1.0);
            let own = rng.floats(K, 0.1);
            let x: Vec<f32> = (0..K)
                .map(|i| own[i] + sources.iter().zip(mixing.chunks(K)).map(|(s, m)| s * m[i]).sum::<f32>())
                .collect();
            hessian.add(&x);
        }
        hessian
    }

    /// The weighted error of rows with nearest codes, and with those that `gptq` chooses.
    fn errors(format: &str, hessian: &Hessian, gptq: &Gptq, rng: &mut Rng) -> [f64; 2] {
        let spec = FORMATS.iter().find(|spec| spec.name == format).unwrap();
        let mut sums = [0.0; 2];
        for _ in 0..8 {
            let weights = rng.floats(K, 0.1);
            let scales = RowScales::choose(spec, &weights, ScaleSearch::Clips, &[]).unwrap();
            let mut codes = [[0i8; K]; 2];
            scales.nearest(spec, &weights, &mut codes[0]);
            gptq.choose(Grid::of(spec).unwrap(), spec.group, &weights, &scales.levels, &mut codes[1]);
            for (codes, sum) in codes.iter().zip(&mut sums) {
                let value = |i: usize| scales.levels[i / spec.group].value(f32::from(codes[i]));
                let error: Vec<f32> = (0..K).map(|i| value(i) - weights[i]).collect();
                *sum += hessian.energy(&error);
            }
        }
        sums
    }

    #[test]
    fn errors_of_correlated_inputs_are_made_good() {
        let mut rng = Rng::new(11);
        let hessian = correlated(&mut rng);
        let gptq = Gptq::new(&hessian, 0.01).unwrap();
        for format in ["q2", "q2m", "q3", "q4", "q5", "q6", "q8", "q2k", "q3k", "q6k"] {
            let [nearest, made_good] = errors(format, &hessian, &gptq, &mut rng);
            assert!(made_good < 0.5 * nearest, "{format}: {made_good}, nearest {nearest}");
        }
    }

    #[test]
    fn without_correlations_codes_are_the_nearest() {
        let mut rng = Rng::new(12);
        let hessian = Hessian::identity(K);
        let gptq = Gptq::new(&hessian, 0.01).unwrap();
        let [nearest, chosen] = errors("q4", &hessian, &gptq, &mut rng);
        assert_eq!(nearest, chosen);
    }

    #[test]
    fn inputs_that_are_not_finite_have_no_factor() {
        let mut hessian = Hessian::new(32);
        hessian.add(&[f32::NAN; 32]);
        assert!(Gptq::new(&hessian, 0.01).is_none());
        assert!(Gptq::new(&Hessian::new(32), 0.01).is_some(), "inputs that are all zero");
    }
}
