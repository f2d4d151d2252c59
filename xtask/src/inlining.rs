//! Kernels are fast only where their intrinsics are inlined, and these are only into code compiled for the ISA. What is
//! not, such as the body of a closure that a function of the standard library calls, still computes the right bits, ten
//! times slower.

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSymbol};
use std::path::Path;

/// Fails if a binary holds an intrinsic of AVX or AVX-512 as a function of its own.
pub fn check(binary: &Path) -> Result<()> {
    let data = std::fs::read(binary).with_context(|| format!("cannot read {}", binary.display()))?;
    let file = object::File::parse(&*data).with_context(|| format!("cannot parse {}", binary.display()))?;
    let names: Vec<_> = file.symbols().filter_map(|symbol| symbol.name().ok()).collect();
    if names.is_empty() {
        bail!("{} has no symbols to look at", binary.display());
    }
    let called: Vec<_> = names.into_iter().filter(|name| is_wide_intrinsic(name)).collect();
    if !called.is_empty() {
        bail!(
            "these intrinsics are called, not inlined: find the closure around them\n{}",
            called.join("\n")
        );
    }
    Ok(())
}

fn is_wide_intrinsic(symbol: &str) -> bool {
    symbol.contains("core_arch") && ["_mm256_", "_mm512_"].iter().any(|prefix| symbol.contains(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_intrinsics_of_wide_registers_count() {
        let wide = "_RNvNtNtNtCsgEmfK2I1SDS_4core9core_arch3x8610avx512vnni19__mm512_dpbusd_epi32.llvm.67";
        assert!(is_wide_intrinsic(wide));
        for other in
            ["_RNvNtNtNtCsgEmf_4core9core_arch3x865xsave7__xgetbv", "_RNvCs1_6lowbit4main", "_mm256_x"]
        {
            assert!(!is_wide_intrinsic(other), "{other}");
        }
    }
}
