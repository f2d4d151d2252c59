//! The shaders: an op of `shaders/ops` with the pieces of `shaders/lib` that its weight formats and options ask for.
//!
//! In a piece about weights, `$` stands for the binding that holds them: `a`, `b` or `c`.

use std::fmt::{self, Write as _};

use lowbit_core::format::{Codes, FORMATS, Format, FormatSpec, ScaleForm};

/// One shader: an op and what it is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shader {
    /// Rows of an embedding table.
    Embed(Format),
    /// RMSNorm.
    RmsNorm,
    /// A product with one matrix.
    Linear {
        /// The matrix's format.
        format: Format,
        /// Rows of a workgroup.
        rows: u32,
        /// Whether the product is added to what is there.
        add: bool,
    },
    /// The products with the query, key and value matrices.
    Qkv {
        /// The matrices' formats.
        formats: [Format; 3],
        /// Rows of a workgroup.
        rows: u32,
    },
    /// The gated products of a feed-forward network.
    Gated {
        /// The formats of gate and up.
        formats: [Format; 2],
        /// Rows of a workgroup.
        rows: u32,
        /// GELU instead of SiLU.
        gelu: bool,
    },
    /// Rotary embedding, and keys and values into the cache.
    RopeAppend,
    /// Attention over the cache.
    Attention,
}

macro_rules! wgsl {
    ($path:literal) => {
        include_str!(concat!("../../../shaders/", $path, ".wgsl"))
    };
}

/// Rows of a workgroup where a step has several.
pub(crate) const ROWS: u32 = 4;

impl Shader {
    /// Every shader, with one mixture of formats for those that take several matrices.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::RmsNorm, Self::RopeAppend, Self::Attention];
        let mixed = [Format::Q4m, Format::Q5, Format::F16];
        for rows in [1, ROWS] {
            let of_format = |spec: &FormatSpec| {
                let format = spec.format;
                let gated = |gelu| Self::Gated { formats: [format; 2], rows, gelu };
                let linear = |add| Self::Linear { format, rows, add };
                let qkv = Self::Qkv { formats: [format; 3], rows };
                [Self::Embed(format), linear(false), linear(true), gated(false), gated(true), qkv]
            };
            all.extend(FORMATS.iter().flat_map(of_format));
            all.push(Self::Qkv { formats: mixed, rows });
        }
        all
    }

    /// The whole WGSL text; its entry point is `main`.
    pub fn source(self) -> String {
        let mut text = String::from(wgsl!("lib/params"));
        match self {
            Self::Embed(format) => {
                text.push_str(wgsl!("ops/embed"));
                weights(&mut text, "a", format, 3);
            }
            Self::RmsNorm => text.push_str(wgsl!("ops/rms_norm")),
            Self::Linear { format, rows, add } => {
                linear(&mut text, wgsl!("ops/linear"), &[format], rows, add);
            }
            Self::Qkv { formats, rows } => linear(&mut text, wgsl!("ops/qkv"), &formats, rows, false),
            Self::Gated { formats, rows, gelu } => {
                let _ = writeln!(text, "const GELU: bool = {gelu};");
                linear(&mut text, wgsl!("ops/gated"), &formats, rows, false);
            }
            Self::RopeAppend => text.push_str(wgsl!("ops/rope_append")),
            Self::Attention => text.push_str(wgsl!("ops/attention")),
        }
        text
    }

    /// Whether its second binding is what changes from step to step.
    pub fn reads_step(self) -> bool {
        matches!(self, Self::RopeAppend | Self::Attention)
    }
}

impl fmt::Display for Shader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |format: &Format| format.spec().name;
        match self {
            Self::Embed(format) => write!(f, "embed {}", name(format)),
            Self::RmsNorm => f.write_str("rms_norm"),
            Self::Linear { format, add: true, .. } => write!(f, "linear_add {}", name(format)),
            Self::Linear { format, .. } => write!(f, "linear {}", name(format)),
            Self::Qkv { formats: [q, k, v], .. } => write!(f, "qkv {} {} {}", name(q), name(k), name(v)),
            Self::Gated { formats: [gate, up], .. } => write!(f, "gated {} {}", name(gate), name(up)),
            Self::RopeAppend => f.write_str("rope_append"),
            Self::Attention => f.write_str("attention"),
        }
    }
}

/// An op that multiplies rows with the matrices `a`, `b`, ... and writes the products, or adds them to what is there.
fn linear(text: &mut String, op: &str, formats: &[Format], rows: u32, add: bool) {
    let _ = writeln!(text, "const ADD: bool = {add};");
    let _ = writeln!(text, "const ROWS: u32 = {rows}u;");
    text.push_str(wgsl!("lib/linear_params"));
    text.push_str(op);
    for (binding, (name, format)) in (3..).zip(["a", "b", "c"].into_iter().zip(formats)) {
        weights(text, name, *format, binding);
        text.push_str(&wgsl!("lib/product").replace('$', name));
    }
}

/// The binding `name` with weights of `format`, and how they are read.
fn weights(text: &mut String, name: &str, format: Format, binding: u32) {
    let spec = format.spec();
    let codes = match (spec.codes, format) {
        (Codes::U4, _) => wgsl!("lib/u4"),
        (Codes::U5, _) => wgsl!("lib/u5"),
        (Codes::I8, _) => wgsl!("lib/i8"),
        (Codes::Float, Format::F16) => wgsl!("lib/f16"),
        (Codes::Float, Format::Bf16) => wgsl!("lib/bf16"),
        (Codes::Float, _) => wgsl!("lib/f32"),
    };
    let scales = if spec.scale == ScaleForm::None { wgsl!("lib/scale_none") } else { wgsl!("lib/scale_f16") };
    let mins = if spec.scale == ScaleForm::F16Min { wgsl!("lib/min_f16") } else { wgsl!("lib/min_none") };
    let _ = writeln!(text, "@group(0) @binding({binding}) var<storage, read> {name}: array<u32>;");
    let _ = writeln!(text, "const {name}_OFFSET: f32 = {}.0;", spec.offset);
    for piece in [wgsl!("lib/offset"), codes, scales, mins] {
        text.push_str(&piece.replace('$', name));
    }
}

#[cfg(test)]
mod tests {
    use super::Shader;

    /// Chromium 156 sets a variable that is declared in a loop to zero only once, not in every round, unless it is told to.
    #[test]
    fn every_variable_of_a_function_is_given_a_value() {
        let all = Shader::all();
        assert!(all.len() > 100);
        for shader in all {
            let source = shader.source();
            let is_bare = |line: &&str| line.trim_start().starts_with("var ") && !line.contains('=');
            assert_eq!(source.lines().find(is_bare), None, "{shader}");
        }
    }
}
