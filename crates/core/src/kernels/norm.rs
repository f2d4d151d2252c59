//! Root-mean-square normalisation (Zhang and Sennrich 2019).

use crate::simd::{LANES, Simd};

/// `out = x / sqrt(mean(x^2) + eps) * weight` for one row; the three slices are of the same length.
#[inline(always)]
pub fn rms_norm<S: Simd>(s: S, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    write(s, x, weight, eps, false, out);
}

/// `out = out + x / sqrt(mean(x^2) + eps) * weight`, else as [`rms_norm`].
#[inline(always)]
pub fn add_rms_norm<S: Simd>(s: S, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    write(s, x, weight, eps, true, out);
}

#[inline(always)]
fn write<S: Simd>(s: S, x: &[f32], weight: &[f32], eps: f32, add: bool, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len(), "rows of different width");
    let factor = s.splat(1.0 / (sum_of_squares(s, x) / x.len() as f32 + eps).sqrt());
    let (x, x_tail) = x.as_chunks::<LANES>();
    let (weight, weight_tail) = weight.as_chunks::<LANES>();
    let (out, out_tail) = out.as_chunks_mut::<LANES>();
    for ((x, w), out) in x.iter().zip(weight).zip(out) {
        let scaled = s.mul(s.mul(s.load(x), factor), s.load(w));
        let v = if add { s.add(s.load(out), scaled) } else { scaled };
        s.store(v, out);
    }
    if !x_tail.is_empty() {
        let mut padded = pad(out_tail);
        let scaled = s.mul(s.mul(s.load(&pad(x_tail)), factor), s.load(&pad(weight_tail)));
        let v = if add { s.add(s.load(&padded), scaled) } else { scaled };
        s.store(v, &mut padded);
        out_tail.copy_from_slice(&padded[..x_tail.len()]);
    }
}

/// Four sums over every fourth vector, so that additions need not wait for each other, then one tree.
#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    let (quads, rest) = x.as_chunks::<{ 4 * LANES }>();
    for quad in quads {
        let quad = quad.as_chunks::<LANES>().0;
        for i in 0..4 {
            sums[i] = s.add(sums[i], square(s, &quad[i]));
        }
    }
    let (whole, tail) = rest.as_chunks::<LANES>();
    for (i, x) in whole.iter().enumerate() {
        sums[i] = s.add(sums[i], square(s, x));
    }
    if !tail.is_empty() {
        sums[3] = s.add(sums[3], square(s, &pad(tail)));
    }
    s.reduce_add(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

#[inline(always)]
fn square<S: Simd>(s: S, x: &[f32; LANES]) -> S::F32 {
    let x = s.load(x);
    s.mul(x, x)
}

/// Up to 16 values and zeros.
#[inline(always)]
fn pad(tail: &[f32]) -> [f32; LANES] {
    let mut padded = [0.0; LANES];
    padded[..tail.len()].copy_from_slice(tail);
    padded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Dot, Isa, Kernel, dispatch};

    struct Norm<'a>(&'a [f32], &'a [f32], &'a mut [f32]);

    struct AddNorm<'a>(&'a [f32], &'a [f32], &'a mut [f32]);

    impl Kernel for AddNorm<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd + Dot>(self, s: S) {
            add_rms_norm(s, self.0, self.1, 1e-5, self.2);
        }
    }

    impl Kernel for Norm<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd + Dot>(self, s: S) {
            rms_norm(s, self.0, self.1, 1e-5, self.2);
        }
    }

    fn norm(isa: Isa, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mut out = vec![f32::NAN; x.len()];
        dispatch(isa, Norm(x, weight, &mut out));
        out
    }

    #[test]
    fn every_width_meets_its_budget_with_the_same_bits_on_every_isa() {
        for width in (1..=70).chain([576, 1000, 4096]) {
            let x: Vec<f32> = (0..width).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.03).collect();
            let weight: Vec<f32> = (0..width).map(|i| 0.5 + (i * 13 % 29) as f32 * 0.1).collect();
            let expected = norm(Isa::Scalar, &x, &weight);
            let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
            let rms = (squares / width as f64 + 1e-5).sqrt();
            for i in 0..width {
                let exact = f64::from(x[i]) / rms * f64::from(weight[i]);
                let budget = (width + 8) as f64 * 2f64.powi(-24) * exact.abs();
                assert!((f64::from(expected[i]) - exact).abs() <= budget, "{width} {i}");
            }
            for isa in Isa::available() {
                assert_eq!(norm(isa, &x, &weight), expected, "{isa} {width}");
                let mut sum = weight.clone();
                dispatch(isa, AddNorm(&x, &weight, &mut sum));
                let added: Vec<f32> = weight.iter().zip(&expected).map(|(w, y)| w + y).collect();
                assert_eq!(sum, added, "{isa} {width}");
            }
        }
    }

    #[test]
    fn a_row_of_zeros_stays_zero() {
        assert_eq!(norm(Isa::best(), &[0.0; 20], &[3.0; 20]), [0.0; 20]);
    }
}
