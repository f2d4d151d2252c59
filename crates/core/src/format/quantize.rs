//! Float weights to codes and scales (scheme S1): one quantiser for every packed format.
//!
//! First every group of weights gets [`Levels`], a scale and perhaps a min, among those that the format can store. Then
//! every weight gets a code: the nearest, or what a [`ChooseCodes`] chooses.

use super::{BLOCK_K, Codebook, Codes, FormatSpec, SUPER_K};
use crate::simd::{Dot, Isa, Kernel, Simd, dispatch};
use half::f16;

/// How scales are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaleSearch {
    /// The weight of largest magnitude gets a code at the end of the range.
    AbsMax,
    /// Of a fixed list of clips, each refined by least squares, the one that leaves the smallest squared error: never a
    /// larger one than [`Self::AbsMax`].
    #[default]
    Clips,
}

/// How a matrix is rounded. The default looks at nothing but the weights.
#[derive(Clone, Copy, Default)]
pub struct Rounding<'a> {
    /// How scales are chosen.
    pub search: ScaleSearch,
    /// What the squared errors are multiplied with, one for each input feature, positive; empty: all alike.
    pub importance: &'a [f32],
    /// What chooses the codes; `None`: each is the nearest.
    pub codes: Option<&'a dyn ChooseCodes>,
}

/// Chooses the codes of a row whose scales are known.
pub trait ChooseCodes {
    /// Makes `codes` those of `weights`, all of `grid`; `levels[i]` are those of weights `group * i..`.
    fn choose(&self, grid: Grid, group: usize, weights: &[f32], levels: &[Levels], codes: &mut [i8]);
}

/// The codes of a format, less its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The smallest code.
    pub lowest: i8,
    /// The largest code.
    pub highest: i8,
    /// Whether groups have a min.
    pub has_min: bool,
}

impl Grid {
    /// The grid of a format; `None` for raw floats, tables of values, and groups of more than a block. Signed bytes are
    /// symmetric.
    pub fn of(spec: &FormatSpec) -> Option<Self> {
        let has_min = spec.scale.has_min();
        let is_other = spec.codebook != Codebook::Linear || spec.scale.is_channel() || spec.group > BLOCK_K;
        match spec.codes {
            Codes::Float => None,
            _ if is_other => None,
            Codes::I8 => Some(Self { lowest: -127, highest: 127, has_min }),
            _ => {
                let highest = (1 << spec.bits) - 1 - spec.offset;
                Some(Self { lowest: -spec.offset as i8, highest: highest as i8, has_min })
            }
        }
    }

    /// The nearest code; ties to even.
    #[inline]
    pub fn nearest(self, weight: f32, levels: Levels) -> f32 {
        self.code(weight - levels.min, inverse(levels.scale))
    }

    /// The nearest code to `weight * inverse`.
    #[inline(always)]
    fn code(self, weight: f32, inverse: f32) -> f32 {
        /// Adding this leaves no fraction, of what is less than 2^22.
        const ROUND: f32 = 12_582_912.0;
        let code = (weight * inverse).max(f32::from(self.lowest)).min(f32::from(self.highest));
        (code + ROUND) - ROUND
    }
}

/// Scale and min of a group: `weight = scale * code + min`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Levels {
    /// The step between codes, of either sign.
    pub scale: f32,
    /// The value of code 0; 0 where the format has none.
    pub min: f32,
}

impl Levels {
    /// The value of a code.
    #[inline]
    pub fn value(self, code: f32) -> f32 {
        self.scale * code + self.min
    }

    /// Both as halves.
    fn halves(self) -> Self {
        let half = |x: f32| f16::from_f32(x).to_f32();
        Self { scale: half(self.scale), min: half(self.min) }
    }
}

/// The scales of a superblock as they are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SuperScales {
    /// Scales of the groups; those of 32 are 8.
    pub scales: [i8; 16],
    /// Mins of the groups.
    pub mins: [i8; 16],
    /// What scales and mins are multiplied with.
    pub d: [f16; 2],
}

/// The scales of a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowScales {
    /// Those of every group of the padded row, as they are after being stored.
    pub levels: Vec<Levels>,
    /// How those of formats with two levels are stored.
    pub supers: Vec<SuperScales>,
}

impl RowScales {
    /// The scales of a row whose length is a multiple of 32; `None` when a weight is not finite or too large for them, or
    /// `importance`, where there is any, is not as long.
    pub fn choose(
        spec: &FormatSpec,
        weights: &[f32],
        search: ScaleSearch,
        importance: &[f32],
    ) -> Option<Self> {
        let grid = Grid::of(spec)?;
        if !weights.len().is_multiple_of(BLOCK_K) || !weights.iter().all(|weight| weight.is_finite()) {
            return None;
        }
        let alike = vec![1.0; if importance.is_empty() { weights.len() } else { 0 }];
        let importance = if importance.is_empty() { &alike } else { importance };
        if importance.len() != weights.len() {
            return None;
        }
        let mut levels = Vec::with_capacity(weights.len() / spec.group);
        let fit = Fit { spec, grid, weights, importance, search, levels: &mut levels };
        // The same bits whatever the ISA: nothing but what the compiler makes of plain loops.
        dispatch(Isa::best(), fit).then_some(())?;
        let mut scales = Self { levels, supers: Vec::new() };
        if spec.scale.is_super() {
            for levels in scales.levels.chunks_exact_mut(SUPER_K / spec.group) {
                scales.supers.push(two_levels(levels)?);
            }
        }
        Some(scales)
    }

    /// The nearest codes.
    pub fn nearest(&self, spec: &FormatSpec, weights: &[f32], codes: &mut [i8]) {
        let Some(grid) = Grid::of(spec) else { return };
        for ((weights, codes), &levels) in
            weights.chunks(spec.group).zip(codes.chunks_mut(spec.group)).zip(&self.levels)
        {
            for (weight, code) in weights.iter().zip(codes) {
                *code = grid.nearest(*weight, levels) as i8;
            }
        }
    }
}

/// Makes the levels of a superblock such as it can store, and says how; `None` when they are too large.
fn two_levels(levels: &mut [Levels]) -> Option<SuperScales> {
    let largest = |of: fn(&Levels) -> f32| levels.iter().map(of).fold(0.0, |most: f32, x| most.max(x.abs()));
    let d = [largest(|l| l.scale), largest(|l| l.min)].map(|x| f16::from_f32(x / 127.0));
    if !d.iter().all(|d| d.is_finite()) {
        return None;
    }
    let mut stored = SuperScales { d, ..SuperScales::default() };
    let [d, e] = d.map(f16::to_f32);
    for ((levels, scale), min) in levels.iter_mut().zip(&mut stored.scales).zip(&mut stored.mins) {
        let byte = |x: f32, d: f32| (x * inverse(d)).round_ties_even().clamp(-127.0, 127.0);
        let (s, m) = (byte(levels.scale, d), byte(levels.min, e));
        (*scale, *min) = (s as i8, m as i8);
        *levels = Levels { scale: d * s, min: e * m };
    }
    Some(stored)
}

/// The levels of the groups of a row; whether all have some.
struct Fit<'a> {
    spec: &'a FormatSpec,
    grid: Grid,
    weights: &'a [f32],
    importance: &'a [f32],
    search: ScaleSearch,
    levels: &'a mut Vec<Levels>,
}

impl Kernel for Fit<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd + Dot>(self, _: S) -> bool {
        let Self { spec, grid, weights, importance, search, levels } = self;
        let stores_halves = !spec.scale.is_super();
        let mut candidates = Vec::new();
        for (weights, importance) in weights.chunks_exact(spec.group).zip(importance.chunks_exact(spec.group))
        {
            candidates.clear();
            grid.offer(weights, search, &mut candidates);
            match (Group { grid, weights, importance, stores_halves }).best(&candidates, search) {
                Some(best) => levels.push(best),
                None => return false,
            }
        }
        true
    }
}

impl Grid {
    /// Appends levels to choose from for a group.
    fn offer(self, weights: &[f32], search: ScaleSearch, candidates: &mut Vec<Levels>) {
        let [lowest, highest] = [self.lowest, self.highest].map(f32::from);
        let smallest = weights.iter().copied().fold(f32::INFINITY, f32::min);
        let largest = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if self.has_min {
            // All of the range, or with some of its ends cut off.
            let step = 0.25 * (largest - smallest) / highest;
            let cuts = if search == ScaleSearch::AbsMax { 1 } else { 5 };
            for (low, high) in (0..cuts).flat_map(|low| (0..cuts).map(move |high| (low, high))) {
                let (min, max) = (smallest + low as f32 * step, largest - high as f32 * step);
                candidates.push(Levels { scale: (max - min) / highest, min });
            }
            return;
        }
        // The weight of largest magnitude gets some code at the end of the range, or would get one beyond it.
        let extreme = if -smallest > largest { smallest } else { largest };
        candidates.push(Levels { scale: extreme / lowest, min: 0.0 });
        if search == ScaleSearch::Clips {
            let step = if highest < 8.0 { 0.25 } else { 0.5 };
            let mut clip = highest;
            while clip < 1.75 - lowest {
                candidates.extend([-clip, clip].map(|code| Levels { scale: extreme / code, min: 0.0 }));
                clip += step;
            }
        }
    }
}

/// Weights that share their levels.
struct Group<'a> {
    grid: Grid,
    weights: &'a [f32],
    importance: &'a [f32],
    /// Whether levels are stored as halves; otherwise they are yet to be made such as can be stored.
    stores_halves: bool,
}

impl Group<'_> {
    /// The best of `candidates`, refined while that makes the error smaller; `None` when the weights are too large for all.
    #[inline(always)]
    fn best(&self, candidates: &[Levels], search: ScaleSearch) -> Option<Levels> {
        const REFINEMENTS: usize = 5;
        let refinements = if search == ScaleSearch::Clips { REFINEMENTS } else { 0 };
        let (mut error, mut best) = (f32::INFINITY, Levels::default());
        for i in 0..candidates.len() + refinements {
            let levels = match candidates.get(i) {
                Some(levels) => *levels,
                None => self.refined(best),
            };
            let levels = if self.stores_halves { levels.halves() } else { levels };
            let of_levels = self.error(levels);
            if of_levels < error {
                (error, best) = (of_levels, levels);
            } else if i >= candidates.len() {
                break;
            }
        }
        error.is_finite().then_some(best)
    }

    /// The weighted sum of squared errors; infinite for levels that are not finite.
    #[inline(always)]
    fn error(&self, levels: Levels) -> f32 {
        if !(levels.scale.is_finite() && levels.min.is_finite()) {
            return f32::INFINITY;
        }
        let inverse = inverse(levels.scale);
        let mut sums = [0.0f32; 8];
        for (weights, importance) in self.weights.chunks_exact(8).zip(self.importance.chunks_exact(8)) {
            for i in 0..8 {
                let code = self.grid.code(weights[i] - levels.min, inverse);
                let error = weights[i] - levels.value(code);
                sums[i] += importance[i] * error * error;
            }
        }
        sums.iter().sum()
    }

    /// The levels that leave the smallest error for the codes that `levels` gives: weighted least squares.
    #[inline(always)]
    fn refined(&self, levels: Levels) -> Levels {
        let inverse = inverse(levels.scale);
        // Sums of the importance times: 1, code, code^2, weight, weight * code.
        let mut sums = [[0.0f32; 8]; 5];
        for (weights, importance) in self.weights.chunks_exact(8).zip(self.importance.chunks_exact(8)) {
            for i in 0..8 {
                let (w, h) = (weights[i], importance[i]);
                let code = self.grid.code(w - levels.min, inverse);
                sums[0][i] += h;
                sums[1][i] += h * code;
                sums[2][i] += h * code * code;
                sums[3][i] += h * w;
                sums[4][i] += h * w * code;
            }
        }
        let [one, q, qq, w, wq] = sums.map(|sums| sums.iter().sum::<f32>());
        if !self.grid.has_min {
            return if qq > 0.0 { Levels { scale: wq / qq, min: 0.0 } } else { levels };
        }
        let determinant = one * qq - q * q;
        if determinant > 1e-6 * one * qq {
            Levels { scale: (one * wq - q * w) / determinant, min: (qq * w - q * wq) / determinant }
        } else {
            levels
        }
    }
}

/// `1 / scale`; 0 of 0, for which all codes are 0, and where it would be infinite.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

#[cfg(test)]
#[path = "quantize_tests.rs"]
mod tests;
