//! Which precision each matrix gets when all may take so many bits.

use super::{Calibrator, SAMPLED_ROWS};
use crate::Result;
use lowbit_core::Format;
use lowbit_core::container::{Artifact, MatrixEntry};
use lowbit_core::format::{PlaneSizes, RowScales, ScaleSearch};
use std::collections::BTreeMap;

/// The formats that matrices may get, from the smallest on.
const CANDIDATES: [Format; 6] = [Format::Q2m, Format::Q3, Format::Q4, Format::Q5, Format::Q6, Format::Q8];

/// What [`mixed`] has chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mixed {
    /// The formats of the matrices that are quantised.
    pub formats: BTreeMap<String, Format>,
    /// Bits a weight over all matrices, scales and all.
    pub bits: f64,
}

/// A matrix, and what each candidate costs.
struct Choice {
    name: String,
    /// Bytes of the candidates.
    bytes: Vec<f64>,
    /// The squared error of the outputs with each, as a share of their squares.
    errors: Vec<f64>,
    chosen: usize,
}

impl Choice {
    /// The candidate beyond the chosen one that saves the most error for a byte, and what it saves.
    fn next(&self) -> Option<(usize, f64)> {
        let saved = |next: usize| {
            (self.errors[self.chosen] - self.errors[next]) / (self.bytes[next] - self.bytes[self.chosen])
        };
        let better = (self.chosen + 1..CANDIDATES.len()).map(|next| (next, saved(next)));
        better.max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Chooses the format of every matrix of an artifact with floats or finely quantised weights, such that all take at most
/// `target` bits a weight: all begin with 2 bits, and the one whose output gains the most for a byte is given more, again and
/// again. Gains are shares of the squares of a matrix's outputs, from the errors of some rows with nearest codes. What one
/// layer adds is a part of what all of them sum up; the table's and the output matrix's errors are not, and count as many
/// times as there are layers.
///
/// What is quantised already keeps its format and what it takes, unless `requantize` says otherwise.
///
/// # Errors
/// When a tensor is missing, or the device fails.
pub fn mixed(
    artifact: &Artifact,
    mut calibrator: Option<&mut Calibrator>,
    target: f64,
    requantize: bool,
) -> Result<Mixed> {
    let matrices = &artifact.header().manifest.matrices;
    let config = crate::arch::ModelConfig::of(&artifact.header().manifest)?;
    let order = config.tensors();
    let mut choices = Vec::new();
    let (mut weights, mut bytes) = (0.0, 0.0);
    // The table is the output matrix of many models, whose input is found last.
    let (tables, layers): (Vec<_>, Vec<_>) = (order.iter().filter(|spec| matrices.contains_key(&spec.name)))
        .partition(|spec| spec.name == "token_embd.weight");
    for spec in layers.into_iter().chain(tables) {
        let &MatrixEntry { format, n, k } = &matrices[&spec.name];
        weights += (n * k) as f64;
        if requantize || format.is_float() {
            let mut choice = measure(artifact, &spec.name, calibrator.as_deref_mut())?;
            if !spec.name.starts_with("blk.") {
                choice.errors.iter_mut().for_each(|error| *error *= config.n_layers as f64);
            }
            choices.push(choice);
        } else {
            bytes += format.plane_sizes(n, k).map_or(0, PlaneSizes::total) as f64;
        }
    }
    let budget = target / 8.0 * weights;
    bytes += choices.iter().map(|choice| choice.bytes[0]).sum::<f64>();
    // A matrix that no longer fits is left as it is; smaller ones may still fit.
    loop {
        let fits = |choice: &Choice| {
            let (next, gain) = choice.next()?;
            let cost = choice.bytes[next] - choice.bytes[choice.chosen];
            (bytes + cost <= budget && gain > 0.0).then_some((next, gain, cost))
        };
        let best = (choices.iter_mut())
            .filter_map(|choice| fits(choice).map(|fit| (choice, fit)))
            .max_by(|a, b| a.1.1.total_cmp(&b.1.1));
        let Some((choice, (next, _, cost))) = best else { break };
        choice.chosen = next;
        bytes += cost;
    }
    let formats = choices.into_iter().map(|choice| (choice.name, CANDIDATES[choice.chosen])).collect();
    Ok(Mixed { formats, bits: bytes * 8.0 / weights })
}

fn measure(artifact: &Artifact, name: &str, calibrator: Option<&mut Calibrator>) -> Result<Choice> {
    let matrix = artifact.matrix(name)?;
    let input = calibrator.map(|calibrator| calibrator.input(name)).transpose()?;
    let energy = |e: &[f32]| match &input {
        Some(input) => input.hessian.energy(e),
        None => e.iter().map(|e| f64::from(e * e)).sum(),
    };
    let importance = input.as_ref().map_or(&[][..], |input| &input.importance);
    let mut errors = vec![0.0; CANDIDATES.len()];
    let mut all = f64::MIN_POSITIVE;
    let (mut row, mut codes) = (vec![0.0; matrix.k], vec![0; matrix.k]);
    for i in (0..matrix.n).step_by(matrix.n.div_ceil(SAMPLED_ROWS)) {
        matrix.dequantize_row(i, &mut row);
        all += energy(&row);
        for (format, error) in CANDIDATES.iter().zip(&mut errors) {
            let spec = format.spec();
            // Weights that a format cannot hold are an error when they are packed.
            let Some(scales) = RowScales::choose(spec, &row, ScaleSearch::Clips, importance) else {
                continue;
            };
            scales.nearest(spec, &row, &mut codes);
            let value = |j: usize| scales.levels[j / spec.group].value(f32::from(codes[j]));
            let difference: Vec<f32> = (0..matrix.k).map(|j| value(j) - row[j]).collect();
            *error += energy(&difference);
        }
    }
    errors.iter_mut().for_each(|error| *error /= all);
    let size =
        |format: &Format| format.plane_sizes(matrix.n, matrix.k).map_or(0, |sizes| sizes.total()) as f64;
    Ok(Choice { name: name.to_owned(), bytes: CANDIDATES.iter().map(size).collect(), errors, chosen: 0 })
}
