//! Which variants of the shaders a backend uses.

use std::fmt;

use lowbit_core::format::{Codes, Format};
use serde::{Deserialize, Serialize};

/// How products with weights in codes of at most 8 bits are computed. Products with float weights are always
/// [`Products::Float`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Products {
    /// Weights become floats, activations stay floats.
    #[default]
    Float,
    /// Activations become signed bytes with a scale every 32, as the CPU's
    /// [`A8`](lowbit_core::activation::Activations::A8) has them; the sums over 32 are integers.
    Dot4,
}

/// The variants that a backend uses. The default asks for nothing that a WebGPU device may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Kernels {
    /// How products are computed.
    pub products: Products,
    /// Steps of at least so many rows unpack weights once for 64 rows (GEMM), others for at most 4 (GEMV).
    pub gemm_rows: usize,
    /// Positions that a workgroup of attention takes, at least, where the cache is split; a multiple of 64.
    pub split: usize,
}

impl Default for Kernels {
    fn default() -> Self {
        Self { products: Products::Float, gemm_rows: 32, split: 128 }
    }
}

impl Kernels {
    /// What products with these formats read.
    pub(crate) fn forms(self, formats: &[Format]) -> Forms {
        self.products.forms(formats)
    }
}

impl Products {
    /// What products with these formats read.
    pub(crate) fn forms(self, formats: &[Format]) -> Forms {
        let codes = |format: &Format| self == Self::Dot4 && format.spec().codes != Codes::Float;
        Forms { floats: !formats.iter().all(codes), codes: formats.iter().any(codes) }
    }
}

impl fmt::Display for Products {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Float => "float",
            Self::Dot4 => "dot4",
        })
    }
}

impl fmt::Display for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { products, gemm_rows, split } = self;
        write!(f, "{products} products, GEMM from {gemm_rows} rows, attention in splits of {split}")
    }
}

/// The forms in which a shader reads or writes activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Forms {
    /// Floats.
    pub floats: bool,
    /// Signed bytes with a scale every 32.
    pub codes: bool,
}

impl Forms {
    pub(crate) const ALL: [Self; 3] = [
        Self { floats: true, codes: false },
        Self { floats: false, codes: true },
        Self { floats: true, codes: true },
    ];
    pub(crate) const CODES: Self = Self { floats: false, codes: true };

    /// What names of shaders that write these forms end with.
    pub(crate) fn suffix(self) -> &'static str {
        match (self.floats, self.codes) {
            (true, true) => " to both",
            (_, true) => " to codes",
            _ => "",
        }
    }

    pub(crate) fn is_both(self) -> bool {
        self.floats && self.codes
    }
}
