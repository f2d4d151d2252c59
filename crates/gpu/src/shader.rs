//! The shaders: an op of `shaders/ops` with the pieces of `shaders/lib` that its weight formats and options ask for.
//!
//! In a piece about weights, `$` stands for the binding that holds them: `a`, `b` or `c`.

use std::fmt::{self, Write as _};

use crate::attention::AttentionTile;
use crate::kernels::{Extensions, Forms, Kernels, Products};
use crate::top_k::TopKRound;
use lowbit_core::backend::RopeStyle;
use lowbit_core::format::{BLOCK_K, Codebook, Codes, FORMATS, Format, ScaleForm};

/// One shader: an op and what it is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shader {
    /// Rows of an embedding table.
    Embed(Format),
    /// RMSNorm.
    RmsNorm {
        /// The forms that what follows reads.
        forms: Forms,
        /// How the sum is made.
        extensions: Extensions,
    },
    /// Rows as signed bytes.
    Quantize,
    /// Rows as signed bytes with one scale each.
    QuantizeRows {
        /// Whether scales are powers of two.
        strict: bool,
    },
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
    /// The products with the query, key and value matrices of one row, with rotary embedding, and keys and values into the
    /// cache.
    AttentionInput {
        /// The matrices' formats.
        formats: [Format; 3],
        /// How they are computed.
        tile: Tile,
        /// How coordinates are paired.
        style: RopeStyle,
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
    /// How float weights are read and sums are made.
    pub extensions: Extensions,
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
        let extensions = kernels.extensions.only(Self::used(rows, formats));
        Self { products: kernels.products.of(formats), rows, extensions }
    }

    /// All tiles.
    fn all() -> impl Iterator<Item = Self> {
        let products = [Products::Float, Products::Dot4].into_iter();
        let tiles = products.flat_map(|products| Self::ROWS.map(|rows| (products, rows)));
        tiles.flat_map(|(products, rows)| {
            Extensions::combinations().map(move |extensions| Self { products, rows, extensions })
        })
    }

    /// The extensions that are of use to a tile of so many rows and matrices of these formats.
    fn used(rows: u32, formats: &[Format]) -> Extensions {
        Extensions { subgroups: rows == Self::ROWS[0], f16: formats.contains(&Format::F16) }
    }

    /// Whether [`Self::new`] makes this tile for matrices of these formats.
    fn takes(self, formats: &[Format]) -> bool {
        let forms = self.products.forms(formats);
        (forms.codes || self.products == Products::Float)
            && !(self.is_gemm() && forms.is_both())
            && self.extensions == self.extensions.only(Self::used(self.rows, formats))
    }

    /// Whether it makes queries, keys and values in one dispatch: of one row, which it reads in one form, as a shader may
    /// have 8 buffers.
    pub(crate) fn makes_attention_input(self, formats: &[Format]) -> bool {
        self.rows == Self::ROWS[0] && !self.products.forms(formats).is_both()
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
        include_str!(concat!(env!("OUT_DIR"), "/shaders/", $path, ".wgsl"))
    };
}

impl Shader {
    /// Every shader, with some mixtures of formats for those that take several matrices.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Quantize, Self::RopeAppend];
        all.extend([false, true].map(|strict| Self::QuantizeRows { strict }));
        all.extend(AttentionTile::all().map(Self::Attention));
        all.extend(Forms::ALL.map(Self::AttentionMerge));
        for extensions in [Extensions::NONE, Extensions { subgroups: true, ..Extensions::NONE }] {
            all.extend(Forms::ALL.map(|forms| Self::RmsNorm { forms, extensions }));
        }
        all.extend(TopKRound::all().map(Self::TopK));
        all.extend(FORMATS.iter().map(|spec| Self::Embed(spec.format)));
        all.extend(Tile::all().flat_map(Self::of_tile));
        all
    }

    /// The products that a tile can make of every format, and of some mixtures; with extensions, some of them.
    fn of_tile(tile: Tile) -> Vec<Self> {
        let mut all = Vec::new();
        let gated = |formats| [false, true].map(|gelu| Self::Gated { formats, tile, gelu });
        let qkv = |formats: [Format; 3]| {
            let is_one = tile.makes_attention_input(&formats);
            let styles = [RopeStyle::Half, RopeStyle::Interleaved].into_iter().filter(move |_| is_one);
            let input = styles.map(move |style| Self::AttentionInput { formats, tile, style });
            input.chain([Self::Qkv { formats, tile }])
        };
        for format in FORMATS.iter().map(|spec| spec.format).filter(|format| tile.takes(&[*format])) {
            all.extend([false, true].map(|add| Self::Linear { format, tile, add }));
            if tile.extensions == Extensions::NONE {
                all.extend(gated([format; 2]));
                all.extend(qkv([format; 3]));
            }
        }
        let mixtures = [
            [Format::Q4m, Format::Q5, Format::F16],
            [Format::Q8, Format::Q4, Format::Q4m],
            [Format::P4, Format::C8, Format::C4],
        ];
        for mixture in mixtures.into_iter().filter(|mixture| tile.takes(mixture)) {
            all.extend(gated([mixture[0], mixture[2]]));
            all.extend(qkv(mixture));
        }
        all
    }

    /// Another one, most likely, when any shader is.
    pub(crate) const FINGERPRINT: &str = env!("LOWBIT_SHADERS");

    /// The whole WGSL text; its entry point is `main`.
    pub fn source(self) -> String {
        let extensions = self.extensions();
        let mut text = extensions.directives();
        text.push_str(wgsl!("lib/params"));
        match self {
            Self::Embed(format) => {
                text.push_str(wgsl!("ops/embed"));
                text.push_str(halves(extensions));
                weights(&mut text, "a", format, 3);
            }
            Self::RmsNorm { forms, .. } => {
                text.push_str(wgsl!("ops/rms_norm"));
                text.push_str(lanes(extensions));
                store(&mut text, forms, 3);
            }
            Self::Quantize => {
                text.push_str(wgsl!("ops/quantize"));
                store(&mut text, Forms::CODES, 2);
            }
            Self::QuantizeRows { strict } => {
                let _ = writeln!(text, "const STRICT: bool = {strict};");
                text.push_str(wgsl!("ops/quantize_rows"));
                codes(&mut text, 2);
            }
            Self::Linear { format, tile, add } => {
                let output = if add { Output::Added } else { Output::Written };
                products(&mut text, &[format], tile, output);
                text.push_str(wgsl!("ops/linear"));
            }
            Self::Qkv { formats, tile } => {
                products(&mut text, &formats, tile, Output::Written);
                text.push_str(wgsl!("ops/qkv"));
            }
            Self::AttentionInput { formats, tile, style } => {
                let _ = writeln!(text, "const HALF: bool = {};", style == RopeStyle::Half);
                products(&mut text, &formats, tile, Output::Cached);
                text.push_str(wgsl!("ops/attention_input"));
            }
            Self::Gated { formats, tile, gelu } => {
                let _ = writeln!(text, "const GELU: bool = {gelu};");
                products(&mut text, &formats, tile, Output::Written);
                text.push_str(wgsl!("ops/gated"));
            }
            Self::RopeAppend => text.push_str(wgsl!("ops/rope_append")),
            Self::Attention(AttentionTile { heads, rows, pairs, partial, .. }) => {
                let groups = (heads * rows).next_power_of_two();
                let _ = writeln!(text, "const HEADS: u32 = {heads}u;\nconst TILE_ROWS: u32 = {rows}u;");
                let _ = writeln!(text, "const PAIRS: u32 = {pairs}u;\nconst QUERY_GROUPS: u32 = {groups}u;");
                let _ = writeln!(text, "const PARTIAL: bool = {partial};");
                text.push_str(wgsl!("ops/attention"));
                text.push_str(halves(extensions));
                text.push_str(lanes(extensions));
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
        matches!(
            self,
            Self::RopeAppend | Self::AttentionInput { .. } | Self::Attention(_) | Self::AttentionMerge(_)
        )
    }

    /// What it asks for that not every device has.
    pub fn extensions(self) -> Extensions {
        match self {
            Self::RmsNorm { extensions, .. } | Self::Attention(AttentionTile { extensions, .. }) => {
                extensions
            }
            Self::Linear { tile, .. }
            | Self::Qkv { tile, .. }
            | Self::AttentionInput { tile, .. }
            | Self::Gated { tile, .. } => tile.extensions,
            _ => Extensions::NONE,
        }
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}{}", self.products, self.rows, self.extensions)
    }
}

impl fmt::Display for Shader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |format: &Format| format.spec().name;
        match self {
            Self::Embed(format) => write!(f, "embed {}", name(format)),
            Self::RmsNorm { forms, extensions } => write!(f, "rms_norm{}{extensions}", forms.suffix()),
            Self::Quantize => f.write_str("quantize"),
            Self::QuantizeRows { strict } => {
                write!(f, "quantize rows{}", if *strict { " strictly" } else { "" })
            }
            Self::Linear { format, tile, add } => {
                write!(f, "linear{} {} {tile}", if *add { "_add" } else { "" }, name(format))
            }
            Self::Qkv { formats: [q, k, v], tile } => {
                write!(f, "qkv {} {} {} {tile}", name(q), name(k), name(v))
            }
            Self::AttentionInput { formats: [q, k, v], tile, style } => {
                let style = if *style == RopeStyle::Half { "half" } else { "interleaved" };
                write!(f, "qkv_rope {style} {} {} {} {tile}", name(q), name(k), name(v))
            }
            Self::Gated { formats: [gate, up], tile, gelu } => {
                write!(f, "{} {} {} {tile}", if *gelu { "gated_gelu" } else { "gated" }, name(gate), name(up))
            }
            Self::RopeAppend => f.write_str("rope_append"),
            Self::Attention(AttentionTile { heads, rows, pairs, partial, extensions }) => {
                let split = if *partial { "split " } else { "" };
                write!(f, "attention {split}{heads}x{rows}x{pairs}{extensions}")
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
        codes(text, binding);
        text.push_str(wgsl!("lib/store_codes"));
        calls.push_str("  store_codes(row, i, v, lane);\n");
    }
    let _ = writeln!(text, "fn store(row: u32, i: u32, v: vec4<f32>, lane: u32) {{\n{calls}}}");
}

/// The binding `q` that codes are written to, and how.
fn codes(text: &mut String, binding: u32) {
    let _ = writeln!(text, "@group(0) @binding({binding}) var<storage, read_write> q: array<u32>;");
    text.push_str(wgsl!("lib/codes"));
}

/// How sums over a workgroup are made, and its entry point.
fn lanes(extensions: Extensions) -> &'static str {
    if extensions.subgroups { wgsl!("lib/lanes_subgroups") } else { wgsl!("lib/lanes") }
}

/// How halves are read.
fn halves(extensions: Extensions) -> &'static str {
    if extensions.f16 { wgsl!("lib/halves_f16") } else { wgsl!("lib/halves") }
}

/// What becomes of products.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    /// They are written.
    Written,
    /// They are added to what is there.
    Added,
    /// Two tiles of them become queries, keys or values.
    Cached,
}

/// What products with the matrices `a`, `b`, ... are made of. The bindings: what changes from step to step, for
/// [`Output::Cached`]; the forms of the rows that are read; `out`; for [`Output::Cached`] the cache and the rotary table; the
/// matrices.
fn products(text: &mut String, formats: &[Format], tile: Tile, output: Output) {
    let is_cached = output == Output::Cached;
    let _ =
        writeln!(text, "const ADD: bool = {};\nconst ROWS: u32 = {}u;", output == Output::Added, tile.rows);
    text.push_str(wgsl!("lib/linear_params"));
    text.push_str(lanes(tile.extensions));
    if tile.is_gemm() {
        text.push_str(wgsl!("lib/gemm"));
    } else {
        let _ = writeln!(text, "const TILES: u32 = {}u;", if is_cached { 2 } else { 1 });
        text.push_str(wgsl!("lib/gemv"));
    }
    if formats.contains(&Format::F16) {
        text.push_str(halves(tile.extensions));
    }
    let forms = tile.products.forms(formats);
    let mut bindings = if is_cached { 2.. } else { 1.. };
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
    let mut first = bind(text, "read_write", "out", "f32") + 1;
    if is_cached {
        bind(text, "read_write", "keys", "u32");
        bind(text, "read_write", "values", "u32");
        first = bind(text, "read", "rope", "f32") + 1;
    }
    for (binding, (name, format)) in (first..).zip(["a", "b", "c"].into_iter().zip(formats)) {
        weights(text, name, *format, binding);
        let is_channel = format.spec().scale.is_channel();
        let product = match (tile.products.forms(&[*format]).codes, tile.is_gemm()) {
            (false, false) => wgsl!("lib/gemv_float"),
            (true, false) if is_channel => wgsl!("lib/gemv_channel"),
            (true, false) => wgsl!("lib/gemv_dot4"),
            (false, true) => wgsl!("lib/gemm_float"),
            (true, true) if is_channel => wgsl!("lib/gemm_channel"),
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
    let words = match (spec.codes, spec.codebook) {
        (Codes::I8 | Codes::Float, _) => "",
        (_, Codebook::Linear) => wgsl!("lib/words_linear"),
        _ => wgsl!("lib/words_codebook"),
    };
    let bytes = if spec.codes == Codes::Float { "" } else { wgsl!("lib/bytes") };
    let scales = match spec.scale {
        ScaleForm::None => wgsl!("lib/scale_none"),
        ScaleForm::F16 | ScaleForm::F16Min => wgsl!("lib/scale_f16"),
        ScaleForm::Super | ScaleForm::SuperMin => wgsl!("lib/scale_super"),
        ScaleForm::E8m0 => wgsl!("lib/scale_e8m0"),
        ScaleForm::E4m3 => wgsl!("lib/scale_e4m3"),
        ScaleForm::Channel | ScaleForm::Progressive => wgsl!("lib/scale_channel"),
    };
    let bytes_of_scale = if spec.scale.bytes() == 1 { wgsl!("lib/scale_bytes") } else { "" };
    let mins = match spec.scale {
        ScaleForm::F16Min => wgsl!("lib/min_f16"),
        ScaleForm::SuperMin => wgsl!("lib/min_super"),
        _ => wgsl!("lib/min_none"),
    };
    let [low, high] = spec.codes.fields();
    let (groups, parts) = (spec.groups(), spec.scale.parts());
    let blocks = spec.group.div_ceil(BLOCK_K);
    let word = if format == Format::F16 { "Halves" } else { "u32" };
    let _ = writeln!(text, "@group(0) @binding({binding}) var<storage, read> {name}: array<{word}>;");
    let _ = writeln!(text, "const {name}_OFFSET: f32 = {}.0;", spec.offset);
    let _ = writeln!(text, "const {name}_STEPS: bool = {};", spec.scale == ScaleForm::Progressive);
    for (of, value) in
        [("LOW", low), ("HIGH", high), ("GROUPS", groups), ("BLOCKS", blocks), ("PARTS", parts)]
    {
        let _ = writeln!(text, "const {name}_{of}: u32 = {value}u;");
    }
    if spec.codebook != Codebook::Linear {
        let words = spec.codebook.values().map(i8::cast_unsigned);
        let words = words.as_chunks().0.iter().map(|bytes| format!("{:#x}u", u32::from_le_bytes(*bytes)));
        let _ = writeln!(text, "const {name}_VALUES = vec4<u32>({});", words.collect::<Vec<_>>().join(", "));
    }
    for piece in [codes, words, bytes, bytes_of_scale, scales, mins] {
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
