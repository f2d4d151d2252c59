//! How fast the GPU of this machine runs models of usual shapes, and how near that is to what its memory can do.
//! Weights are made up: nothing is downloaded or written. `cargo xtask bench gpu` runs it.
#![forbid(unsafe_code)]

mod bandwidth;
mod model;
mod shape;

use bandwidth::Bandwidth;
use lowbit_gpu::Native;
use model::Speed;
use shape::Shape;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What was asked for.
#[derive(Default)]
struct Options {
    /// A tiny shape, whatever the GPU.
    small: bool,
    /// One shape only.
    only: Option<String>,
    /// Where the report goes, as JSON.
    json: Option<String>,
}

fn main() -> Result<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    let gpu = Native::new()?;
    let (name, is_software) = (gpu.name().to_owned(), gpu.is_software());
    let is_small = options.small || is_software;
    println!("{name}");
    if is_software {
        println!("This is a processor that acts as a GPU: a tiny model, and speeds mean nothing.");
    }
    let bandwidth = bandwidth::measure(&gpu, is_small)?;
    println!(
        "memory: {:.1} GB/s read, {:.1} GB/s read and written by copies",
        bandwidth.read, bandwidth.copy
    );
    // Each shape gets a device of its own, with which its memory goes.
    drop(gpu);
    let mut speeds = Vec::new();
    for shape in shape::SHAPES.iter().filter(|shape| options.wants(shape, is_small)) {
        let speed = model::measure(shape, Native::new()?)?;
        speed.print(&bandwidth);
        speeds.push(speed.json(&bandwidth));
    }
    if speeds.is_empty() {
        let names: Vec<&str> = shape::SHAPES.iter().map(|shape| shape.name).collect();
        return Err(format!("no such shape, choose one of {}", names.join(", ")).into());
    }
    if let Some(path) = options.json {
        let Bandwidth { read, copy } = bandwidth;
        let report = serde_json::json!({
            "gpu": name,
            "is_software": is_software,
            "read_gb_s": read,
            "copy_gb_s": copy,
            "shapes": speeds,
        });
        std::fs::write(&path, serde_json::to_string_pretty(&report)?)?;
        println!("{path}");
    }
    Ok(())
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self::default();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--small" => options.small = true,
                "--shape" => options.only = Some(arguments.next().ok_or("--shape needs a name")?),
                "--json" => options.json = Some(arguments.next().ok_or("--json needs a path")?),
                other => return Err(format!("unknown option {other:?}; --small, --shape, --json").into()),
            }
        }
        Ok(options)
    }

    fn wants(&self, shape: &Shape, is_small: bool) -> bool {
        match &self.only {
            Some(name) => name == shape.name,
            None => shape.is_small == is_small,
        }
    }
}

impl Speed {
    fn print(&self, bandwidth: &Bandwidth) {
        let [short, long] = self.decode.map(|decode| decode.tok_s);
        let (gb_s, share) = (self.weights_gb_s(), 100.0 * self.weights_gb_s() / bandwidth.best());
        let [after_short, after_long] = self.decode.map(|decode| decode.after);
        println!(
            "{}: prefill {} {:.1} tok/s; decode {short:.2} tok/s after {after_short}, {long:.2} after {after_long}; \
             {gb_s:.1} GB/s of weights, {share:.1} % of what memory can do",
            self.name, self.prompt, self.prefill_tok_s
        );
        println!("  a token after {after_long}, by kind of dispatch, each kind alone:");
        for kind in &self.kinds {
            println!(
                "  {:<22} {:>5.1} a layer {:>12} bytes of weights {:>10} others {:>12} MACs {:>9.3} ms {:>7.1} GB/s",
                kind.name,
                kind.runs as f64 / self.layers as f64,
                kind.cost.weights,
                kind.cost.others,
                kind.cost.macs,
                kind.seconds * 1e3,
                kind.gb_s(),
            );
        }
    }

    fn json(&self, bandwidth: &Bandwidth) -> serde_json::Value {
        let decode =
            self.decode.map(|decode| serde_json::json!({ "after": decode.after, "tok_s": decode.tok_s }));
        let kind = |kind: &model::Kind| {
            serde_json::json!({
                "shader": kind.name,
                "dispatches": kind.runs,
                "dispatches_a_layer": kind.runs as f64 / self.layers as f64,
                "weights": kind.cost.weights,
                "others": kind.cost.others,
                "macs": kind.cost.macs,
                "ms": kind.seconds * 1e3,
                "gb_s": kind.gb_s(),
            })
        };
        serde_json::json!({
            "shape": self.name,
            "layers": self.layers,
            "weight_bytes": self.weight_bytes,
            "load_s": self.load_s,
            "prefill": { "tokens": self.prompt, "tok_s": self.prefill_tok_s },
            "decode": decode,
            "weights_gb_s": self.weights_gb_s(),
            "share_of_bandwidth": self.weights_gb_s() / bandwidth.best(),
            "kinds": self.kinds.iter().map(kind).collect::<Vec<_>>(),
        })
    }
}
