//! Vector instruction sets: the `Simd` trait and one file per ISA.

/// An instruction set that kernels can be run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust, no vector instructions: the definition of every result.
    Scalar,
    /// AVX2 with F16C.
    Avx2,
    /// AVX-512 with VNNI.
    Avx512,
    /// WebAssembly simd128.
    Wasm,
    /// WebAssembly relaxed-simd.
    WasmRelaxed,
}
