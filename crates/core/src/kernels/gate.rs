//! Non-linearities of gated feed-forward networks.

use super::math::times_sigmoid;
use crate::backend::Gate;
use crate::simd::Simd;

/// `act(gate) * up`
#[inline(always)]
pub fn gated<S: Simd>(s: S, act: Gate, gate: S::F32, up: S::F32) -> S::F32 {
    s.mul(activation(s, act, gate), up)
}

#[inline(always)]
fn activation<S: Simd>(s: S, act: Gate, x: S::F32) -> S::F32 {
    match act {
        Gate::Silu => times_sigmoid(s, x, x),
        Gate::GeluTanh => {
            // 0.5 x (1 + tanh(u)) = x / (1 + e^-2u): no cancellation, and no tanh.
            const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769_2;
            let cube = s.mul(s.mul(x, x), s.mul(x, s.splat(0.044_715)));
            times_sigmoid(s, x, s.mul(s.add(x, cube), s.splat(TWICE_SQRT_2_OVER_PI)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Dot, Isa, Kernel, LANES, dispatch};

    struct Apply<'a>(Gate, &'a mut [f32]);

    impl Kernel for Apply<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd + Dot>(self, s: S) {
            for x in self.1.as_chunks_mut::<LANES>().0 {
                let y = gated(s, self.0, s.load(x), s.splat(0.75));
                s.store(y, x);
            }
        }
    }

    fn exact(act: Gate, x: f64) -> f64 {
        match act {
            Gate::Silu => x / (1.0 + (-x).exp()),
            Gate::GeluTanh => {
                let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                0.5 * x * (1.0 + u.tanh())
            }
        }
    }

    #[test]
    fn gates_meet_their_budget_with_the_same_bits_on_every_isa() {
        let x: Vec<f32> = (0..16_000).map(|i| (i as f32 - 8000.0) * 2.3e-3).chain([1e30; LANES]).collect();
        for act in [Gate::Silu, Gate::GeluTanh] {
            let mut expected = x.clone();
            dispatch(Isa::Scalar, Apply(act, &mut expected));
            for (&x, &y) in x.iter().zip(&expected).filter(|(x, _)| **x < 100.0) {
                let exact = 0.75 * exact(act, x.into());
                assert!((f64::from(y) - exact).abs() <= 4e-6 * exact.abs() + 1e-7, "{act:?} {x} {y} {exact}");
            }
            assert_eq!(expected.last(), Some(&(0.75 * 1e30f32)), "a large input passes unchanged");
            for isa in Isa::available() {
                let mut y = x.clone();
                dispatch(isa, Apply(act, &mut y));
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert!(bits(&y) == bits(&expected), "{act:?} {isa}");
            }
        }
    }
}
