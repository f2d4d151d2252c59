//! The shaders: an op of `shaders/ops` with the pieces of `shaders/lib` that its weight formats and options ask for.
//!
//! In a piece about weights, `$` stands for the binding that holds them: `a`, `b` or `c`.

use std::fmt::{self, Write as _};

use crate::attention::AttentionTile;
use crate::kernels::{Forms, Kernels, Products};
use crate::top_k::TopKRound;
use lowbit_core::format::{BLOCK_K, Codes, FORMATS, Format, FormatSpec, ScaleForm};

/// One shader: an op and what it is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shader {
    /// Rows of an embedding table.
    Embed(Format),
    /// RMSNorm, in the forms that what follows reads.
    RmsNorm(Forms),
    /// Rows as signed bytes.
    Quantize,
    /// A product with one matrix.
    Linear {
        /// The matrix's format.
        format: Format,
        /// How it is computed.
        tile: Tile,
        /// Whether the product is added to what is there.
        add: bool,
    },
    /// The products with the query, key and value matrices.
    Qkv {
        /// The matrices' formats.
        formats: [Format; 3],
        /// How they are computed.
        tile: Tile,
    },
    /// The gated products of a feed-forward network.
    Gated {
        /// The formats of gate and up.
        formats: [Format; 2],
        /// How they are computed.
        tile: Tile,
        /// GELU instead of SiLU.
        gelu: bool,
    },
    /// Rotary embedding, and keys and values into the cache.
    RopeAppend,
    /// Attention over the cache, or over splits of it.
    Attention(AttentionTile),
    /// What attention over splits gave, merged, in the forms that what follows reads.
    AttentionMerge(Forms),
    /// The largest logits.
    TopK(TopKRound),
}

/// How products are computed, and how many rows a workgroup makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// How blocks are multiplied.
    pub products: Products,
    /// Rows of a workgroup: 1 or 4 of 16 columns, or 64 of 64 columns.
    pub rows: u32,
}

impl Tile {
    const ROWS: [u32; 3] = [1, 4, 64];

    /// The tile for steps of `rows` rows and matrices of these formats.
    pub(crate) fn new(kernels: Kernels, formats: &[Format], rows: usize) -> Self {
        let [one, few, many] = Self::ROWS;
        // A workgroup's memory holds a block in one form.
        let unpacks_once = rows >= kernels.gemm_rows && !kernels.forms(formats).is_both();
        let rows = if rows == 1 {
            one
        } else if unpacks_once {
            many
        } else {
            few
        };
        Self { products: kernels.products, rows }
    }

    /// Whether blocks of the weights are unpacked for all rows at once.
    fn is_gemm(self) -> bool {
        self.rows == Self::ROWS[2]
    }

    /// Workgroups for matrices of so many tiles of 16 columns, side by side, and so many rows.
    pub(crate) fn workgroups(self, tiles: &[usize], rows: usize) -> [usize; 2] {
        let of_workgroup = if self.is_gemm() { 4 } else { 1 };
        let columns = tiles.iter().map(|tiles| tiles.div_ceil(of_workgroup)).sum();
        [columns, rows.div_ceil(self.rows as usize)]
    }
}

macro_rules! wgsl {
    ($path:literal) => {
        include_str!(concat!("../../../shaders/", $path, ".wgsl"))
    };
}

impl Shader {
    /// Every shader, with one mixture of formats for those that take several matrices.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Quantize, Self::RopeAppend];
        all.extend(AttentionTile::all().map(Self::Attention));
        all.extend(Forms::ALL.map(Self::AttentionMerge));
        all.extend(Forms::ALL.map(Self::RmsNorm));
        all.extend(TopKRound::all().map(Self::TopK));
        all.extend(FORMATS.iter().map(|spec| Self::Embed(spec.format)));
        let mixed = [Format::Q4m, Format::Q5, Format::F16];
        for (products, rows) in
            [Products::Float, Products::Dot4].into_iter().flat_map(|p| Tile::ROWS.map(|rows| (p, rows)))
        {
            let tile = Tile { products, rows };
            for FormatSpec { format, codes, .. } in FORMATS {
                if products == Products::Dot4 && *codes == Codes::Float {
                    continue;
                }
                let gated = |gelu| Self::Gated { formats: [*format; 2], tile, gelu };
                let linear = |add| Self::Linear { format: *format, tile, add };
                let qkv = Self::Qkv { formats: [*format; 3], tile };
                all.extend([linear(false), linear(true), gated(false), gated(true), qkv]);
            }
            if !(tile.is_gemm() && tile.products.forms(&mixed).is_both()) {
                all.push(Self::Qkv { formats: mixed, tile });
            }
        }
        all
    }

    /// A number that is another one when any shader is.
    pub fn fingerprint() -> u64 {
        fingerprint(Self::all().into_iter().flat_map(|shader| shader.source().into_bytes()))
    }

    /// The whole WGSL text; its entry point is `main`.
    pub fn source(self) -> String {
        let mut text = String::from(wgsl!("lib/params"));
        match self {
            Self::Embed(format) => {
                text.push_str(wgsl!("ops/embed"));
                weights(&mut text, "a", format, 3);
            }
            Self::RmsNorm(forms) => {
                text.push_str(wgsl!("ops/rms_norm"));
                store(&mut text, forms, 3);
            }
            Self::Quantize => {
                text.push_str(wgsl!("ops/quantize"));
                store(&mut text, Forms::CODES, 2);
            }
            Self::Linear { format, tile, add } => {
                products(&mut text, &[format], tile, add);
                text.push_str(wgsl!("ops/linear"));
            }
            Self::Qkv { formats, tile } => {
                products(&mut text, &formats, tile, false);
                text.push_str(wgsl!("ops/qkv"));
            }
            Self::Gated { formats, tile, gelu } => {
                let _ = writeln!(text, "const GELU: bool = {gelu};");
                products(&mut text, &formats, tile, false);
                text.push_str(wgsl!("ops/gated"));
            }
            Self::RopeAppend => text.push_str(wgsl!("ops/rope_append")),
            Self::Attention(AttentionTile { heads, rows, pairs, partial }) => {
                let groups = (heads * rows).next_power_of_two();
                let _ = writeln!(text, "const HEADS: u32 = {heads}u;\nconst TILE_ROWS: u32 = {rows}u;");
                let _ = writeln!(text, "const PAIRS: u32 = {pairs}u;\nconst QUERY_GROUPS: u32 = {groups}u;");
                let _ = writeln!(text, "const PARTIAL: bool = {partial};");
                text.push_str(wgsl!("ops/attention"));
            }
            Self::AttentionMerge(forms) => {
                text.push_str(wgsl!("ops/attention_merge"));
                store(&mut text, forms, 3);
            }
            Self::TopK(TopKRound { kept, of_logits }) => {
                let _ = writeln!(text, "const KEPT: u32 = {kept}u;");
                text.push_str(wgsl!("ops/top_k"));
                text.push_str(match of_logits {
                    true => wgsl!("lib/candidates_logits"),
                    false => wgsl!("lib/candidates_kept"),
                });
            }
        }
        text
    }

    /// Whether its second binding is what changes from step to step.
    pub fn reads_step(self) -> bool {
        matches!(self, Self::RopeAppend | Self::Attention(_) | Self::AttentionMerge(_))
    }
}

/// A number that is most likely another one for other bytes (FNV-1a).
pub(crate) fn fingerprint(bytes: impl IntoIterator<Item = u8>) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    bytes.into_iter().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.products, self.rows)
    }
}

impl fmt::Display for Shader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |format: &Format| format.spec().name;
        match self {
            Self::Embed(format) => write!(f, "embed {}", name(format)),
            Self::RmsNorm(forms) => write!(f, "rms_norm{}", forms.suffix()),
            Self::Quantize => f.write_str("quantize"),
            Self::Linear { format, tile, add } => {
                write!(f, "linear{} {} {tile}", if *add { "_add" } else { "" }, name(format))
            }
            Self::Qkv { formats: [q, k, v], tile } => {
                write!(f, "qkv {} {} {} {tile}", name(q), name(k), name(v))
            }
            Self::Gated { formats: [gate, up], tile, gelu } => {
                write!(f, "{} {} {} {tile}", if *gelu { "gated_gelu" } else { "gated" }, name(gate), name(up))
            }
            Self::RopeAppend => f.write_str("rope_append"),
            Self::Attention(AttentionTile { heads, rows, pairs, partial }) => {
                let split = if *partial { "split " } else { "" };
                write!(f, "attention {split}{heads}x{rows}x{pairs}")
            }
            Self::AttentionMerge(forms) => write!(f, "attention_merge{}", forms.suffix()),
            Self::TopK(TopKRound { kept, of_logits }) => {
                write!(f, "top_k {kept} of {}", if *of_logits { "logits" } else { "candidates" })
            }
        }
    }
}

/// `store`, which writes activations in these forms to bindings from `binding` on.
fn store(text: &mut String, forms: Forms, mut binding: u32) {
    let mut calls = String::new();
    if forms.floats {
        let _ =
            writeln!(text, "@group(0) @binding({binding}) var<storage, read_write> out: array<vec4<f32>>;");
        text.push_str(wgsl!("lib/store_floats"));
        calls.push_str("  store_floats(row, i, v);\n");
        binding += 1;
    }
    if forms.codes {
        let _ = writeln!(text, "@group(0) @binding({binding}) var<storage, read_write> q: array<u32>;");
        text.push_str(wgsl!("lib/store_codes"));
        calls.push_str("  store_codes(row, i, v, lane);\n");
    }
    let _ = writeln!(text, "fn store(row: u32, i: u32, v: vec4<f32>, lane: u32) {{\n{calls}}}");
}

/// What products with the matrices `a`, `b`, ... are made of. The bindings: the forms of the rows that are read, `out`, the
/// matrices.
fn products(text: &mut String, formats: &[Format], tile: Tile, add: bool) {
    let _ = writeln!(text, "const ADD: bool = {add};\nconst ROWS: u32 = {}u;", tile.rows);
    text.push_str(wgsl!("lib/linear_params"));
    text.push_str(if tile.is_gemm() { wgsl!("lib/gemm") } else { wgsl!("lib/gemv") });
    let forms = tile.products.forms(formats);
    let mut bindings = 1..;
    let mut bind = |text: &mut String, access: &str, name: &str, of: &str| {
        let binding = bindings.next().unwrap_or_default();
        let _ = writeln!(text, "@group(0) @binding({binding}) var<storage, {access}> {name}: array<{of}>;");
        binding
    };
    if forms.floats {
        bind(text, "read", "x", "vec4<f32>");
        text.push_str(if tile.is_gemm() { wgsl!("lib/gemm_float_tile") } else { "" });
    }
    if forms.codes {
        bind(text, "read", "q", "vec4<u32>");
        text.push_str(wgsl!("lib/dot4"));
        text.push_str(if tile.is_gemm() { wgsl!("lib/gemm_dot4_tile") } else { "" });
    }
    let first = bind(text, "read_write", "out", "f32") + 1;
    for (binding, (name, format)) in (first..).zip(["a", "b", "c"].into_iter().zip(formats)) {
        weights(text, name, *format, binding);
        let product = match (tile.products.forms(&[*format]).codes, tile.is_gemm()) {
            (false, false) => wgsl!("lib/gemv_float"),
            (true, false) => wgsl!("lib/gemv_dot4"),
            (false, true) => wgsl!("lib/gemm_float"),
            (true, true) => wgsl!("lib/gemm_dot4"),
        };
        text.push_str(&product.replace('$', name));
    }
}

/// The binding `name` with weights of `format`, and how they are read.
fn weights(text: &mut String, name: &str, format: Format, binding: u32) {
    let spec = format.spec();
    let codes = match (spec.codes, format) {
        (Codes::I8, _) => wgsl!("lib/i8"),
        (Codes::Float, Format::F16) => wgsl!("lib/f16"),
        (Codes::Float, Format::Bf16) => wgsl!("lib/bf16"),
        (Codes::Float, _) => wgsl!("lib/f32"),
        _ => wgsl!("lib/fields"),
    };
    let bytes = if spec.codes == Codes::Float { "" } else { wgsl!("lib/bytes") };
    let scales = match spec.scale {
        ScaleForm::None => wgsl!("lib/scale_none"),
        ScaleForm::F16 | ScaleForm::F16Min => wgsl!("lib/scale_f16"),
        ScaleForm::Super | ScaleForm::SuperMin => wgsl!("lib/scale_super"),
    };
    let mins = match spec.scale {
        ScaleForm::F16Min => wgsl!("lib/min_f16"),
        ScaleForm::SuperMin => wgsl!("lib/min_super"),
        _ => wgsl!("lib/min_none"),
    };
    let [low, high] = spec.codes.fields();
    let (groups, parts) = (BLOCK_K / spec.group, 1 + usize::from(spec.scale.has_min()));
    let _ = writeln!(text, "@group(0) @binding({binding}) var<storage, read> {name}: array<u32>;");
    let _ = writeln!(text, "const {name}_OFFSET: f32 = {}.0;", spec.offset);
    for (of, value) in [("LOW", low), ("HIGH", high), ("GROUPS", groups), ("PARTS", parts)] {
        let _ = writeln!(text, "const {name}_{of}: u32 = {value}u;");
    }
    for piece in [codes, bytes, scales, mins] {
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
