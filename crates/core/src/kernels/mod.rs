//! The operators, written once over the Simd trait.

pub mod attention;
#[cfg(test)]
mod counted;
pub mod gate;
pub mod math;
pub mod matmul;
pub mod norm;
pub(crate) mod reference;
pub mod rope;
pub mod selftest;
