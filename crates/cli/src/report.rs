//! What packing has done to every matrix, as JSON or as a picture.

use crate::error::{Error, Result};
use crate::whole_file;
use clap::builder::{PathBufValueParser, TypedValueParser};
use lowbit_engine::calibrate::TensorReport;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Reads the path of a report, whose ending says what it is.
pub fn path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.extension().and_then(|ending| ending.to_str()) {
        Some("json" | "svg") => Ok(path),
        _ => Err("expected a name that ends with .json or .svg"),
    })
}

/// Writes a report.
pub fn write(path: &Path, tensors: &[TensorReport]) -> Result<()> {
    let text = if path.extension().is_some_and(|ending| ending == "svg") {
        svg(tensors)
    } else {
        serde_json::json!({ "tensors": tensors }).to_string()
    };
    whole_file::write(path, |mut file| file.write_all(text.as_bytes()).map_err(|e| Error::io(path, e)))
}

/// Pixels of a bar and the space below it.
const ROW: usize = 14;
/// Pixels of the names.
const NAMES: usize = 250;
/// Pixels of the longest bar.
const BARS: usize = 420;

/// A bar for every matrix, as long as its error; its colour is its number of bits.
fn svg(tensors: &[TensorReport]) -> String {
    let most = tensors.iter().map(|tensor| tensor.error).fold(0.0, f64::max);
    let (width, height) = (NAMES + BARS + 160, (tensors.len() + 3) * ROW);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"10\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"4\" y=\"{ROW}\">Relative squared error of the outputs of every matrix</text>\n"
    );
    for (i, tensor) in tensors.iter().enumerate() {
        let y = (i + 2) * ROW;
        let length = if most > 0.0 { tensor.error / most * BARS as f64 } else { 0.0 };
        let _ = writeln!(
            svg,
            "<text x=\"4\" y=\"{}\">{}</text><rect x=\"{NAMES}\" y=\"{y}\" width=\"{length:.1}\" height=\"{}\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{}\">{} {:.2} bits, {:.2e}</text>",
            y + ROW - 4,
            escape(&tensor.name),
            ROW - 3,
            colour(tensor.bits),
            NAMES as f64 + length + 4.0,
            y + ROW - 4,
            tensor.format,
            tensor.bits,
            tensor.error,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// From red, few bits, to blue.
fn colour(bits: f64) -> String {
    let hue = ((bits - 2.0) / 7.0).clamp(0.0, 1.0) * 220.0;
    format!("hsl({hue:.0} 65% 50%)")
}

fn escape(name: &str) -> String {
    name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_is_the_largest_error() {
        let tensor = |name: &str, error| TensorReport {
            name: name.to_owned(),
            format: "q4",
            n: 16,
            k: 32,
            bits: 4.5,
            error,
        };
        let svg = svg(&[tensor("a<b", 0.5), tensor("c", 0.125)]);
        assert!(
            svg.contains("a&lt;b") && svg.contains("width=\"420.0\"") && svg.contains("width=\"105.0\""),
            "{svg}"
        );
    }
}
