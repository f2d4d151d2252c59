//! The operators, written once over the Simd trait.
