//! Codecs and oracles: what small number formats and quantised operators mean, in plain scalar code.
//!
//! * [`minifloat`]: floats of up to 8 bits, to the bit: FP8 of both kinds, FP6, FP4, and any other.
//! * [`scale`]: scales of one byte.
//!
//! Nothing here is quick and no model runs on it: it is what kernels, importers and tests are compared with.

pub mod minifloat;
pub mod scale;

pub use minifloat::Minifloat;
