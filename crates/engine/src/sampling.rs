//! What is said about the choice of tokens, by a caller or by a model.

use crate::sampler::Sampling;
use crate::{Error, Result};
use serde_json::Value;

/// Parameters of the choice of tokens, any of them left out. What a caller leaves out is as the model's makers recommend
/// ([`crate::Codec::sampling`]), and what they leave out as in [`Sampling::default`]: greedy.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct SamplingOptions {
    /// See [`Sampling::temperature`].
    pub temperature: Option<f32>,
    /// See [`Sampling::top_k`].
    pub top_k: Option<usize>,
    /// See [`Sampling::top_p`].
    pub top_p: Option<f32>,
    /// See [`Sampling::min_p`].
    pub min_p: Option<f32>,
    /// See [`Sampling::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// See [`Sampling::presence_penalty`].
    pub presence_penalty: Option<f32>,
    /// See [`Sampling::frequency_penalty`].
    pub frequency_penalty: Option<f32>,
    /// See [`Sampling::penalty_window`].
    pub penalty_window: Option<usize>,
    /// See [`Sampling::seed`].
    pub seed: Option<u64>,
}

impl SamplingOptions {
    /// Always the most probable token, whatever the model's makers recommend.
    pub fn greedy() -> Self {
        Self { temperature: Some(0.0), ..Self::default() }
    }

    /// What is said here, and the rest from `defaults`.
    pub fn or(&self, defaults: &Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            penalty_window: self.penalty_window.unwrap_or(defaults.penalty_window),
            seed: self.seed.unwrap_or(defaults.seed),
        }
    }

    /// The defaults of a model whose artifact says `manifest`; null says nothing.
    ///
    /// # Errors
    /// When it holds something else than these parameters, or a value without a meaning.
    pub fn of_manifest(manifest: &Value) -> Result<Sampling> {
        let error = |problem: String| Error::Config { field: "sampling", problem };
        let said: Option<Self> = serde_json::from_value(manifest.clone())
            .map_err(|e| error(format!("{e}; pack the model again")))?;
        let sampling = said.unwrap_or_default().or(&Sampling::default());
        sampling.validate().map_err(|e| error(e.to_string().trim_start_matches("sampling: ").to_owned()))?;
        Ok(sampling)
    }

    /// What an artifact's manifest says; null where there is nothing to say.
    pub(crate) fn to_manifest(&self) -> Value {
        let mut value = serde_json::json!(self);
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|_, field| !field.is_null());
        }
        if *self == Self::default() { Value::Null } else { value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_says_nothing_gets_greedy() {
        assert_eq!(SamplingOptions::of_manifest(&Value::Null).unwrap(), Sampling::greedy());
        assert_eq!(SamplingOptions::default().to_manifest(), Value::Null);
    }

    #[test]
    fn the_caller_goes_before_the_model_and_the_model_before_greedy() {
        let recommended = SamplingOptions { temperature: Some(0.5), top_p: Some(0.75), ..Default::default() };
        let manifest = recommended.to_manifest();
        assert_eq!(manifest, json!({"temperature": 0.5, "topP": 0.75}));
        let model = SamplingOptions::of_manifest(&manifest).unwrap();
        assert_eq!(model, Sampling { temperature: 0.5, top_p: 0.75, ..Sampling::greedy() });
        let asked = SamplingOptions { temperature: Some(0.25), seed: Some(3), ..Default::default() };
        assert_eq!(asked.or(&model), Sampling { temperature: 0.25, seed: 3, ..model.clone() });
        assert_eq!(SamplingOptions::greedy().or(&model), Sampling { temperature: 0.0, ..model });
    }

    #[test]
    fn bad_manifests_are_refused() {
        for (manifest, word) in [
            (json!({"temperature": -1}), "temperature is -1"),
            (json!({"topp": 1}), "topp"),
            (json!({"topK": -5}), "-5"),
            (json!("greedy"), "greedy"),
        ] {
            let message = SamplingOptions::of_manifest(&manifest).unwrap_err().to_string();
            assert!(message.starts_with("configuration: sampling: ") && message.contains(word), "{message}");
        }
    }
}
