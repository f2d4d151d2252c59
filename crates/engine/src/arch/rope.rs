//! Rotary position embedding (Su et al. 2021): its configuration and its tables.

use super::{check, positive};
use crate::Result;
use lowbit_core::backend::{RopeStyle, RopeTable};

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RopeConfig {
    /// Base of the frequencies (theta).
    pub base: f64,
    /// Which coordinates are paired.
    pub style: RopeStyle,
    /// How the frequencies are changed for long contexts.
    #[serde(default)]
    pub scaling: RopeScaling,
}

/// A change of the rotary frequencies.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// None.
    #[default]
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3's smooth interpolation between kept high and divided low frequencies.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_context_length / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_context_length / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context of the first training.
        original_context_length: usize,
    },
    /// One divisor a frequency: GGUF's `rope_freqs.weight`.
    Factors {
        /// `[head_dim / 2]`
        factors: Vec<f32>,
    },
}

impl RopeConfig {
    /// Checks every value.
    pub fn validate(&self, head_dim: usize) -> Result<()> {
        positive("rope.base", self.base)?;
        match &self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => positive("rope.scaling.factor", *factor),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_length } => {
                positive("rope.scaling.factor", *factor)?;
                positive("rope.scaling.low_freq_factor", *low_freq_factor)?;
                positive("rope.scaling.high_freq_factor", *high_freq_factor)?;
                check("rope.scaling.high_freq_factor", high_freq_factor > low_freq_factor, || {
                    format!("is {high_freq_factor}, not above low_freq_factor = {low_freq_factor}")
                })?;
                check("rope.scaling.original_context_length", *original_context_length > 0, || {
                    "is 0".to_owned()
                })
            }
            RopeScaling::Factors { factors } => {
                check("rope.scaling.factors", factors.len() == head_dim / 2, || {
                    format!("there are {}, expected head_dim / 2 = {}", factors.len(), head_dim / 2)
                })?;
                factors.iter().try_for_each(|&f| positive("rope.scaling.factors", f.into()))
            }
        }
    }

    /// Radians per position of every pair of coordinates: `[head_dim / 2]`.
    fn frequencies(&self, head_dim: usize) -> Vec<f64> {
        let exponent = |i: usize| (2 * i) as f64 / head_dim as f64;
        let plain = (0..head_dim / 2).map(|i| 1.0 / libm::pow(self.base, exponent(i)));
        match &self.scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
            RopeScaling::Factors { factors } => {
                plain.zip(factors).map(|(f, &by)| f / f64::from(by)).collect()
            }
            &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_length } => {
                let smooth = |f: f64| {
                    let turns = original_context_length as f64 * f / std::f64::consts::TAU;
                    let keep =
                        ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                    (1.0 - keep) * f / factor + keep * f
                };
                plain.map(smooth).collect()
            }
        }
    }

    /// What every frequency is divided by, as GGUF's `rope_freqs.weight` has it; `None` where a number says it, or none
    /// does.
    pub fn divisors(&self, head_dim: usize) -> Option<Vec<f32>> {
        match &self.scaling {
            RopeScaling::None | RopeScaling::Linear { .. } => None,
            RopeScaling::Factors { factors } => Some(factors.clone()),
            RopeScaling::Llama3 { .. } => {
                let plain = Self { scaling: RopeScaling::None, ..self.clone() }.frequencies(head_dim);
                Some(plain.iter().zip(self.frequencies(head_dim)).map(|(f, by)| (f / by) as f32).collect())
            }
        }
    }

    /// The cosines and sines of positions `0..context`, computed in f64 by `libm`, so that they are the same everywhere.
    pub fn table(&self, head_dim: usize, context: usize) -> RopeTable {
        let frequencies = self.frequencies(head_dim);
        let angles = (0..context).flat_map(|pos| frequencies.iter().map(move |f| pos as f64 * f));
        let (sin, cos) = angles.map(libm::sincos).map(|(s, c)| (s as f32, c as f32)).unzip();
        RopeTable { style: self.style, head_dim, cos, sin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> RopeConfig {
        RopeConfig { base: 500_000.0, style: RopeStyle::Interleaved, scaling }
    }

    #[test]
    fn the_first_pair_turns_one_radian_a_position() {
        let table = rope(RopeScaling::None).table(4, 3);
        assert_eq!(table.cos.len(), 6);
        assert_eq!(table.cos[0], 1.0);
        assert_eq!(table.cos[2], 1f64.cos() as f32);
        assert_eq!(table.sin[4], 2f64.sin() as f32);
        assert_eq!(table.sin[3], (500_000f64.powf(-0.5)).sin() as f32);
    }

    #[test]
    fn linear_scaling_divides_every_frequency() {
        let plain = rope(RopeScaling::None).frequencies(64);
        let scaled = rope(RopeScaling::Linear { factor: 4.0 }).frequencies(64);
        assert!(plain.iter().zip(&scaled).all(|(a, b)| *a == b * 4.0));
    }

    #[test]
    fn llama3_keeps_high_and_divides_low_frequencies() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context_length: 8192,
        };
        let plain = rope(RopeScaling::None).frequencies(128);
        let scaled = rope(scaling).frequencies(128);
        let ratio: Vec<f64> = plain.iter().zip(&scaled).map(|(a, b)| a / b).collect();
        assert_eq!(ratio[0], 1.0);
        assert!((ratio[63] - 8.0).abs() < 1e-12);
        assert!(ratio.iter().any(|r| (1.5..7.5).contains(r)), "some lie between");
        assert!(ratio.is_sorted());
    }

    #[test]
    fn bad_values_are_refused_by_name() {
        let bad = [
            RopeScaling::Linear { factor: f64::NAN },
            RopeScaling::Factors { factors: vec![1.0; 3] },
            RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 4.0,
                high_freq_factor: 4.0,
                original_context_length: 8192,
            },
        ];
        for scaling in bad {
            let message = rope(scaling).validate(64).unwrap_err().to_string();
            assert!(message.contains("rope.scaling."), "{message}");
        }
    }
}
