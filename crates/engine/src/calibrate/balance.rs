//! Input features that are large are multiplied before their matrices are rounded, and the weights of the norm that makes them
//! are divided by the same (AWQ, Lin et al. 2023): the products stay, and what matters most is rounded on a finer grid.
//!
//! Two groups of a layer share an input that is normalised: queries, keys and values, and gate and up. The factors of a feature
//! are its root mean square to the power `alpha`, over the geometric mean of all; of the alphas that are tried the one is taken
//! whose codes, as they will be chosen, leave the smallest error of the group's outputs. The inputs of the two other matrices
//! could be divided as well, in the rows of values and up, but no model has gained by both at 4 bits and at 3
//! (docs/quantization.md).

use super::{Calibrator, Input};
use crate::Result;
use crate::arch::ModelConfig;
use crate::convert::Options;
use lowbit_core::Format;
use lowbit_core::container::Artifact;
use lowbit_core::format::{ChooseCodes, Grid, RowScales, ScaleSearch};
use std::collections::BTreeMap;

/// What the weights of a tensor are multiplied with, by its name: a factor for every element of a vector, and for every input
/// feature of a matrix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Factors(BTreeMap<String, Vec<f32>>);

impl Factors {
    /// Multiplies a vector, or some rows of a matrix.
    pub fn apply(&self, tensor: &str, weights: &mut [f32]) {
        let Some(factors) = self.0.get(tensor) else { return };
        for row in weights.chunks_exact_mut(factors.len().max(1)) {
            row.iter_mut().zip(factors).for_each(|(weight, factor)| *weight *= factor);
        }
    }

    /// Notes that the input of a group is divided by `factors` and its matrices are multiplied with them.
    pub fn add(&mut self, group: &Group, factors: &[f32]) {
        let divided = factors.iter().map(|factor| 1.0 / factor).collect();
        self.0.insert(group.norm.clone(), divided);
        self.0.extend(group.members.iter().map(|member| (member.clone(), factors.to_vec())));
    }

    /// How many tensors have some.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none has any.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Matrices that share an input, and the norm that makes it.
#[derive(Clone, Debug)]
pub struct Group {
    /// The matrices.
    pub members: Vec<String>,
    norm: String,
}

impl Group {
    /// The groups of a layer, in the order of execution.
    pub fn all(layer: usize) -> [Self; 2] {
        let name = |name: &str| format!("blk.{layer}.{name}.weight");
        let group = |members: &[&str], norm: &str| Self {
            members: members.iter().map(|member| name(member)).collect(),
            norm: name(norm),
        };
        [group(&["attn_q", "attn_k", "attn_v"], "attn_norm"), group(&["ffn_gate", "ffn_up"], "ffn_norm")]
    }
}

/// Powers that are tried.
const ALPHAS: [f32; 4] = [0.1, 0.2, 0.3, 0.4];
/// The largest factor, and one over the smallest.
const LARGEST: f32 = 64.0;
/// Errors are those of some rows: what gains less than this is no gain.
const LEAST_GAIN: f64 = 0.01;
/// Rows of a matrix that errors are measured on.
const ROWS: usize = 32;

/// Finds factors for the matrices of an artifact that `options` rounds. From then on `calibrator` tells of inputs as they will
/// be: divided.
///
/// # Errors
/// When a tensor is missing, or the device fails.
pub fn balance(
    artifact: &Artifact,
    calibrator: &mut Calibrator,
    options: &Options,
    search: ScaleSearch,
) -> Result<Factors> {
    let config = ModelConfig::of(&artifact.header().manifest)?;
    let (mut all, mut divisors) = (Factors::default(), BTreeMap::new());
    for group in (0..config.n_layers).flat_map(Group::all) {
        // Where one matrix is kept as it is, its input must stay.
        let Some(members) = members(artifact, &group, options)? else { continue };
        let input = calibrator.input(&group.members[0])?;
        if let Some(factors) = choose(&input, &members, search) {
            all.add(&group, &factors);
            divisors.insert(group.members[0].clone(), factors);
        }
    }
    calibrator.divide_inputs(divisors);
    Ok(all)
}

/// Some rows of a matrix, and what they are rounded to.
struct Member {
    format: Format,
    /// How many rows each stands for.
    of_each: f64,
    rows: Vec<Vec<f32>>,
}

/// The matrices of a group; `None` where not all of them are rounded.
fn members(artifact: &Artifact, group: &Group, options: &Options) -> Result<Option<Vec<Member>>> {
    let member = |name: &String| {
        let matrix = artifact.matrix(name)?;
        let Some(format) = options.rounds_to(name, matrix.format) else { return Ok(None) };
        let step = matrix.n.div_ceil(ROWS);
        let row = |i: usize| {
            let mut row = vec![0.0; matrix.k];
            matrix.dequantize_row(i, &mut row);
            row
        };
        let rows = (0..matrix.n).step_by(step).map(row).collect();
        Ok(Some(Member { format, of_each: step as f64, rows }))
    };
    group.members.iter().map(member).collect()
}

/// The factors that leave the smallest error; `None` where they gain nothing.
fn choose(input: &Input, members: &[Member], search: ScaleSearch) -> Option<Vec<f32>> {
    let squares = input.importance.iter();
    let logs: Vec<f32> = squares.map(|square| 0.5 * square.max(f32::MIN_POSITIVE).ln()).collect();
    let mean = logs.iter().sum::<f32>() / logs.len().max(1) as f32;
    let of_alpha = |alpha: f32| -> Vec<f32> {
        logs.iter().map(|log| (alpha * (log - mean)).exp().clamp(1.0 / LARGEST, LARGEST)).collect()
    };
    let as_they_are = error(input, None, members, search)?;
    let candidates = ALPHAS.into_iter().filter_map(|alpha| {
        let factors = of_alpha(alpha);
        let divided = Input::new(input.hessian.divided(&factors));
        Some((error(&divided, Some(&factors), members, search)?, factors))
    });
    let (error, factors) = candidates.min_by(|a, b| a.0.total_cmp(&b.0))?;
    (error < (1.0 - LEAST_GAIN) * as_they_are).then_some(factors)
}

/// The squared error of the outputs when rows are multiplied with `factors` and rounded; `None` where they cannot be.
fn error(input: &Input, factors: Option<&[f32]>, members: &[Member], search: ScaleSearch) -> Option<f64> {
    let gptq = input.gptq.as_ref()?;
    let mut sum = 0.0;
    for Member { format, of_each, rows } in members {
        let spec = format.spec();
        let grid = Grid::of(spec)?;
        for row in rows {
            let mut row = row.clone();
            row.iter_mut().zip(factors.unwrap_or_default()).for_each(|(weight, factor)| *weight *= factor);
            let scales = RowScales::choose(spec, &row, search, &input.importance)?;
            let mut codes = vec![0; row.len()];
            gptq.choose(grid, spec.group, &row, &scales.levels, &mut codes);
            let value = |j: usize| scales.levels[j / spec.group].value(f32::from(codes[j]));
            let missed: Vec<f32> = row.iter().enumerate().map(|(j, weight)| value(j) - weight).collect();
            sum += of_each * input.hessian.energy(&missed);
        }
    }
    Some(sum)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::calibrate::Hessian;
    use lowbit_testing::Rng;

    const K: usize = 64;

    fn input(loud: f32, rng: &mut Rng) -> Input {
        let mut hessian = Hessian::new(K);
        for _ in 0..256 {
            let mut x = rng.floats(K, 1.0);
            x.iter_mut().step_by(9).for_each(|x| *x *= loud);
            hessian.add(&x);
        }
        Input::new(hessian)
    }

    #[test]
    fn loud_inputs_get_a_finer_grid_and_others_are_left_alone() {
        let mut rng = Rng::new(5);
        let rows = (0..32).map(|_| rng.floats(K, 0.1)).collect();
        let members = [Member { format: Format::Q3, of_each: 1.0, rows }];
        let search = ScaleSearch::Clips;
        let loud = input(30.0, &mut rng);
        let factors = choose(&loud, &members, search).unwrap();
        assert!(factors[9] > 1.5 * factors[10], "{factors:?}");
        let divided = Input::new(loud.hessian.divided(&factors));
        let before = error(&loud, None, &members, search).unwrap();
        let after = error(&divided, Some(&factors), &members, search).unwrap();
        assert!(after < 0.95 * before, "{after} after {before}");
        assert_eq!(choose(&input(1.0, &mut rng), &members, search), None);
    }

    #[test]
    fn matrices_are_multiplied_and_their_norm_is_divided() {
        let [group, _] = Group::all(3);
        let mut factors = Factors::default();
        factors.add(&group, &[1.0, 2.0]);
        let applied = |tensor: &str| {
            let mut weights = [1.0; 4];
            factors.apply(tensor, &mut weights);
            weights
        };
        for matrix in ["attn_q", "attn_k", "attn_v"] {
            assert_eq!(applied(&format!("blk.3.{matrix}.weight")), [1.0, 2.0, 1.0, 2.0]);
        }
        assert_eq!(applied("blk.3.attn_norm.weight"), [1.0, 0.5, 1.0, 0.5]);
        assert_eq!(applied("blk.3.attn_output.weight"), [1.0; 4]);
        assert_eq!(factors.len(), 4);
    }
}
