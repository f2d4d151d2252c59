//! The operators, written once over the Simd trait.

pub mod matmul;
#[cfg(test)]
mod reference;
