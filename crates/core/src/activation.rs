//! Dynamic quantisation of activations (accuracy contract, level A').

/// The precision of activations in matrix products: a property of the model, the same on every device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activations {
    /// One signed byte per value, one scale per 32.
    A8,
    /// Two signed bytes per value (`128 * hi + lo`), one scale per 32: as exact as f32.
    A16,
}
