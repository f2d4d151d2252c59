//! `lowbit export`: artifacts to GGUF files.

use crate::error::Result;
use crate::{model, output};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Export {
    /// An artifact, or the name `smollm2`
    model: String,
    /// The GGUF file
    #[arg(short, long)]
    output: PathBuf,
    /// One JSON document on standard output
    #[arg(long)]
    json: bool,
}

impl Export {
    pub fn run(&self) -> Result<()> {
        let exported = model::export(&self.model, &self.output)?;
        if self.json {
            let describe = |&(ty, count): &(lowbit_core::pack::GgmlType, usize)| serde_json::json!({ "type": ty.name(), "count": count });
            return output::json(&serde_json::json!({
                "output": self.output.display().to_string(),
                "bytes": exported.bytes,
                "sha256": exported.sha256,
                "identical": exported.identical,
                "matrices": exported.matrices.iter().map(describe).collect::<Vec<_>>(),
            }));
        }
        for (ty, count) in &exported.matrices {
            let noun = if *count == 1 { "matrix" } else { "matrices" };
            output::line(&format!("{count} {noun} of {}", ty.name()))?;
        }
        output::line(match exported.identical {
            true => "the file is the one that was packed, byte for byte",
            false => {
                "the header is new: the model was packed without --reversible; its matrices are as they were packed"
            }
        })?;
        let shown = self.output.display();
        output::line(&format!("{shown}: {} bytes, SHA-256 {}", exported.bytes, exported.sha256))
    }
}
