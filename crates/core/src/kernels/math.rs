//! Transcendental functions as portable polynomials: the same bits on every ISA.

use crate::simd::Simd;

/// Below this the result is zero: `2^-127` has no normal float.
const LOWEST: f32 = -88.0;
/// Above this the result stays what it is here: `round(x / ln 2)` must not exceed 127.
const HIGHEST: f32 = 88.37;
/// ln 2 in two parts; products of the first with small integers are exact.
const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
/// `(e^r - 1 - r) / r^2` on `|r| <= ln 2 / 2`, lowest power first: minimax in the relative error of `e^r`, 3.1e-9.
const POLYNOMIAL: [f32; 5] = [0.499_999_94, 0.166_665_2, 0.041_668_4, 0.008_368_852, 0.001_381_431_8];

/// `e^x` within 1e-7 relative; `x` is clamped to -88 (where the result is exactly 0) and 88.37; NaN counts as -88.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let x = s.min(s.max(x, s.splat(LOWEST)), s.splat(HIGHEST));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let r = s.sub(s.sub(x, s.mul(n, s.splat(LN2[0]))), s.mul(n, s.splat(LN2[1])));
    let mut q = s.splat(POLYNOMIAL[4]);
    q = s.add(s.mul(q, r), s.splat(POLYNOMIAL[3]));
    q = s.add(s.mul(q, r), s.splat(POLYNOMIAL[2]));
    q = s.add(s.mul(q, r), s.splat(POLYNOMIAL[1]));
    q = s.add(s.mul(q, r), s.splat(POLYNOMIAL[0]));
    let p = s.add(s.add(s.mul(q, s.mul(r, r)), r), s.splat(1.0));
    let power = s.shl_i32::<23>(s.add_i32(s.f32_to_i32(n), s.splat_i32(127)));
    s.mul(p, s.bits_to_f32(power))
}

/// [`exp`] of one float: the same bits as every lane there.
#[inline(always)]
pub fn exp_one(x: f32) -> f32 {
    let x = if x > LOWEST { x } else { LOWEST };
    let x = if x < HIGHEST { x } else { HIGHEST };
    let n = (x * std::f32::consts::LOG2_E).round_ties_even();
    let r = (x - n * LN2[0]) - n * LN2[1];
    let mut q = POLYNOMIAL[4];
    for c in [POLYNOMIAL[3], POLYNOMIAL[2], POLYNOMIAL[1], POLYNOMIAL[0]] {
        q = q * r + c;
    }
    let p = q * (r * r) + r + 1.0;
    p * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// `x / (1 + e^-y)`: `x` times the logistic function of `y`.
#[inline(always)]
pub fn times_sigmoid<S: Simd>(s: S, x: S::F32, y: S::F32) -> S::F32 {
    let e = exp(s, s.sub(s.splat(0.0), y));
    s.div(x, s.add(s.splat(1.0), e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Dot, Isa, Kernel, LANES, Scalar, dispatch};

    struct Exp<'a>(&'a mut [f32]);

    impl Kernel for Exp<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd + Dot>(self, s: S) {
            for x in self.0.as_chunks_mut::<LANES>().0 {
                let y = exp(s, s.load(x));
                s.store(y, x);
            }
        }
    }

    /// All magnitudes and signs, and a dense sweep.
    fn inputs() -> Vec<f32> {
        let sweep = (0..400_000).map(|i| -100.0 + i as f32 * 5e-4);
        let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, 88.37, -88.0, f32::MAX, 1e-40, -1e-40];
        let magnitudes =
            (0..255u32).flat_map(|e| [e << 23, 1 << 31 | e << 23 | 0x12_3456]).map(f32::from_bits);
        let mut all: Vec<f32> = sweep.chain(special).chain(magnitudes).collect();
        all.resize(all.len().next_multiple_of(LANES), f32::NAN);
        all
    }

    #[test]
    fn exp_is_within_two_units_of_f64() {
        let mut worst = 0.0f64;
        for x in inputs().into_iter().filter(|x| (-87.3..=88.37).contains(x)) {
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp_one(x)) - exact).abs() / exact);
        }
        assert!(worst < 1.01e-7, "{worst:e}");
        assert_eq!(exp_one(0.0), 1.0);
        assert_eq!(exp_one(-0.0), 1.0);
        for tiny in [-88.0, -1e30, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(exp_one(tiny).to_bits(), 0, "{tiny}");
        }
        assert!(exp_one(f32::INFINITY).is_finite());
    }

    #[test]
    fn exp_has_the_same_bits_on_every_isa() {
        let x = inputs();
        for isa in Isa::available() {
            let mut y = x.clone();
            dispatch(isa, Exp(&mut y));
            for (x, y) in x.iter().zip(&y) {
                assert_eq!(y.to_bits(), exp_one(*x).to_bits(), "{isa} {x:e}");
            }
        }
    }

    #[test]
    fn sigmoid_meets_its_budget_and_saturates() {
        for x in inputs().into_iter().filter(|x| x.is_finite()) {
            let y = times_sigmoid(Scalar, [1.0; LANES], [x; LANES])[0];
            let exact = 1.0 / (1.0 + (-f64::from(x)).exp());
            assert!((f64::from(y) - exact).abs() <= 4e-6 * exact + 1e-7, "{x} {y} {exact}");
        }
    }
}
