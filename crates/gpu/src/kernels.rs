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
    /// [`A8`](lowbit_core::activation::Activations::A8) has them; the sums over 32 are integers. So are, of formats with one
    /// scale a row, those over all, and the codes have one scale a row.
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
    /// What shaders use of what not every device has.
    pub extensions: Extensions,
}

/// Extensions of WGSL. They change how values are read and sums are made, not what is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "u8", from = "u8")]
pub struct Extensions {
    /// `subgroups`: lanes add what others hold without going through memory.
    pub subgroups: bool,
    /// `f16`: the cache and float weights are read as halves; sums are single floats all the same.
    pub f16: bool,
}

/// What a device can do beyond what every one can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Multiplies signed bytes, four at a time.
    pub dot4: bool,
    /// The extensions that it takes.
    pub extensions: Extensions,
}

impl Extensions {
    /// None of them.
    pub const NONE: Self = Self { subgroups: false, f16: false };

    /// Those of them that `used` names.
    pub fn only(self, used: Self) -> Self {
        Self { subgroups: self.subgroups && used.subgroups, f16: self.f16 && used.f16 }
    }

    /// All combinations.
    pub(crate) fn combinations() -> impl Iterator<Item = Self> {
        [false, true].into_iter().flat_map(|subgroups| [false, true].map(|f16| Self { subgroups, f16 }))
    }

    /// The directives that a shader begins with.
    pub(crate) fn directives(self) -> String {
        [(self.subgroups, "enable subgroups;\n"), (self.f16, "enable f16;\n")]
            .into_iter()
            .filter_map(|(used, directive)| used.then_some(directive))
            .collect()
    }
}

impl From<Extensions> for u8 {
    /// A bit each, in the order of the fields.
    fn from(Extensions { subgroups, f16 }: Extensions) -> Self {
        Self::from(subgroups) | Self::from(f16) << 1
    }
}

impl From<u8> for Extensions {
    fn from(bits: u8) -> Self {
        Self { subgroups: bits & 1 != 0, f16: bits & 2 != 0 }
    }
}

impl fmt::Display for Extensions {
    /// What the names of things that use them end with.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.subgroups, self.f16) {
            (false, false) => "",
            (true, false) => " +subgroups",
            (false, true) => " +f16",
            (true, true) => " +subgroups +f16",
        })
    }
}

impl Features {
    /// Whether a device that has them takes shaders with these extensions.
    pub fn has(self, extensions: Extensions) -> bool {
        extensions == extensions.only(self.extensions)
    }

    /// Whether it can do what `kernels` ask for.
    pub(crate) fn allow(self, Kernels { products, extensions, .. }: Kernels) -> bool {
        (self.dot4 || products == Products::Float) && self.has(extensions)
    }
}

impl Default for Kernels {
    fn default() -> Self {
        Self { products: Products::Float, gemm_rows: 32, split: 128, extensions: Extensions::NONE }
    }
}

impl Kernels {
    /// What products with these formats read.
    pub(crate) fn forms(self, formats: &[Format]) -> Forms {
        self.products.forms(formats)
    }

    /// The variants of an op with matrices of these formats.
    pub(crate) fn of(self, formats: &[Format]) -> Self {
        Self { products: self.products.of(formats), ..self }
    }

    /// Whether the codes that products with these formats read, if they do, have one scale a row.
    pub(crate) fn scales_rows(self, formats: &[Format]) -> bool {
        self.forms(formats).codes && formats.iter().any(|format| format.spec().scale.is_channel())
    }
}

impl Products {
    /// How an op with matrices of these formats is computed: on floats where codes would be needed of two kinds, with a scale
    /// a block and with one a row.
    pub(crate) fn of(self, formats: &[Format]) -> Self {
        let coded = || formats.iter().map(|format| format.spec()).filter(|spec| spec.codes != Codes::Float);
        let (any, all) =
            (coded().any(|spec| spec.scale.is_channel()), coded().all(|spec| spec.scale.is_channel()));
        if any && !all { Self::Float } else { self }
    }

    /// What products with these formats read.
    pub(crate) fn forms(self, formats: &[Format]) -> Forms {
        let products = self.of(formats);
        let codes = |format: &Format| products == Self::Dot4 && format.spec().codes != Codes::Float;
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
        let Self { products, gemm_rows, split, extensions } = self;
        write!(
            f,
            "{products} products, GEMM from {gemm_rows} rows, attention in splits of {split}{extensions}"
        )
    }
}

/// The forms in which a shader reads or writes activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Forms {
    /// Floats.
    pub floats: bool,
    /// Signed bytes with a scale every 32, or one a row.
    pub codes: bool,
}

impl Forms {
    pub(crate) const ALL: [Self; 3] = [
        Self { floats: true, codes: false },
        Self { floats: false, codes: true },
        Self { floats: true, codes: true },
    ];
    pub(crate) const FLOATS: Self = Self { floats: true, codes: false };
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
