//! From an [`Isa`] chosen at run time to code compiled for it.

#[cfg(all(
    target_arch = "wasm32",
    target_feature = "simd128",
    not(all(feature = "one-isa", target_feature = "relaxed-simd"))
))]
use super::Wasm;
#[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
use super::WasmRelaxed;
#[cfg(target_arch = "x86_64")]
use super::{Amx, Avx2, Avx512};
use super::{Dot, Isa, Simd};
#[cfg(target_arch = "aarch64")]
use super::{Neon, NeonDotprod, NeonI8mm, Sme};
use crate::{Error, Result};

/// Work that can be compiled for every ISA.
///
/// `run` and everything it calls must be `#[inline(always)]` down to the methods of [`Simd`] and [`Dot`]: a function
/// that stays a call is compiled without the ISA's instructions. For the same reason hot loops avoid closures.
pub trait Kernel {
    /// What the work returns.
    type Output;
    /// Does the work with the instructions of `s`.
    fn run<S: Simd + Dot>(self, s: S) -> Self::Output;
}

/// Runs `kernel` with the vector instructions of `isa`. When this machine lacks them it runs as [`Isa::Scalar`]: slower,
/// the same bits. A module for the page (feature `one-isa`) has only the fastest of its target's.
#[inline]
pub fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    #[cfg(all(feature = "one-isa", target_arch = "wasm32", target_feature = "simd128"))]
    {
        let _ = isa;
        kernel.run(Fastest::new())
    }
    #[cfg(not(all(feature = "one-isa", target_arch = "wasm32", target_feature = "simd128")))]
    choose(isa, kernel)
}

#[cfg(all(
    feature = "one-isa",
    target_arch = "wasm32",
    target_feature = "simd128",
    not(target_feature = "relaxed-simd")
))]
use Wasm as Fastest;
#[cfg(all(feature = "one-isa", target_arch = "wasm32", target_feature = "relaxed-simd"))]
use WasmRelaxed as Fastest;

#[cfg(not(all(feature = "one-isa", target_arch = "wasm32", target_feature = "simd128")))]
#[inline]
fn choose<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    // Plain Rust is compiled in once, at the end.
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx2
        && let Some(token) = Avx2::new()
    {
        return token.run(kernel);
    }
    #[cfg(target_arch = "x86_64")]
    if isa.vectors() == Isa::Avx512
        && let Some(token) = Avx512::new()
    {
        return token.run(kernel);
    }
    #[cfg(target_arch = "aarch64")]
    if isa == Isa::Neon
        && let Some(token) = Neon::new()
    {
        return token.run(kernel);
    }
    #[cfg(target_arch = "aarch64")]
    if isa == Isa::NeonDotprod
        && let Some(token) = NeonDotprod::new()
    {
        return token.run(kernel);
    }
    #[cfg(target_arch = "aarch64")]
    if isa.vectors() == Isa::NeonI8mm
        && let Some(token) = NeonI8mm::new()
    {
        return token.run(kernel);
    }
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    if isa == Isa::Wasm {
        return kernel.run(Wasm::new());
    }
    #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
    if isa == Isa::WasmRelaxed {
        return kernel.run(WasmRelaxed::new());
    }
    // A target without vectors has no other choice.
    let _ = isa;
    kernel.run(super::Scalar)
}

/// Threads that keep the units of SME busy: more did not help on the cores that have been measured in public.
const SME_THREADS: usize = 2;

impl Isa {
    /// Every ISA, from the plainest to the fastest.
    pub const ALL: [Isa; 11] = [
        Isa::Scalar,
        Isa::Avx2,
        Isa::Avx512,
        Isa::Amx,
        Isa::Neon,
        Isa::NeonDotprod,
        Isa::NeonI8mm,
        Isa::Sme,
        Isa::Sme2,
        Isa::Wasm,
        Isa::WasmRelaxed,
    ];

    /// Whether this machine (natively) or this module (in WebAssembly) can run it.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        if self == Isa::Amx {
            return Amx::new().is_some();
        }
        #[cfg(target_arch = "aarch64")]
        if self == Isa::Sme {
            return Sme::new().is_some();
        } else if self == Isa::Sme2 {
            return Sme::two().is_some();
        }
        dispatch(self, Name) == self
    }

    /// The ISA of its vector instructions: itself, unless it is a matrix engine beside them.
    pub fn vectors(self) -> Isa {
        match self {
            Isa::Amx => Isa::Avx512,
            Isa::Sme | Isa::Sme2 => Isa::NeonI8mm,
            itself => itself,
        }
    }

    /// What thread `thread` of a team runs it with: cores share few units of SME, so that further threads do more with their
    /// own vectors. They take as many tiles as they have time for, so that no split has to be guessed.
    pub fn of_thread(self, thread: usize) -> Isa {
        let is_shared = matches!(self, Isa::Sme | Isa::Sme2);
        if is_shared && thread >= SME_THREADS { self.vectors() } else { self }
    }

    /// The ISAs that can run here, from the plainest to the fastest.
    pub fn available() -> impl Iterator<Item = Isa> {
        Self::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// The fastest ISA that can run here.
    pub fn best() -> Isa {
        Self::available().last().unwrap_or(Isa::Scalar)
    }

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
            Isa::Neon => "neon",
            Isa::NeonDotprod => "neon-dotprod",
            Isa::NeonI8mm => "neon-i8mm",
            Isa::Sme => "sme",
            Isa::Sme2 => "sme2",
            Isa::Wasm => "wasm",
            Isa::WasmRelaxed => "wasm-relaxed",
        }
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Isa {
    type Err = Error;

    /// The ISA of that name, if it can run here.
    fn from_str(name: &str) -> Result<Self> {
        Self::available().find(|isa| isa.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::available().map(Isa::name).collect();
            Error::Isa(format!("ISA {name:?} is not available here; choose one of {}", names.join(", ")))
        })
    }
}

/// Which ISA a dispatch ends in.
struct Name;

impl Kernel for Name {
    type Output = Isa;
    fn run<S: Simd + Dot>(self, _: S) -> Isa {
        S::ISA
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dispatch_runs_what_is_available_and_falls_back_to_scalar() {
        for isa in Isa::ALL {
            let vectors = isa.vectors();
            let expected = if vectors.is_available() { vectors } else { Isa::Scalar };
            assert_eq!(dispatch(isa, Name), expected);
            assert!(vectors.is_available() || !isa.is_available());
        }
        assert!(Isa::Scalar.is_available());
        assert!(Isa::best().is_available());
    }

    #[test]
    fn few_threads_share_the_units_of_sme() {
        for isa in Isa::ALL {
            assert_eq!([0, 1].map(|thread| isa.of_thread(thread)), [isa; 2]);
        }
        assert_eq!(Isa::Sme2.of_thread(2), Isa::NeonI8mm);
        assert_eq!(Isa::Amx.of_thread(2), Isa::Amx);
    }

    #[test]
    fn names_are_parsed_and_unknown_names_list_the_choices() {
        for isa in Isa::available() {
            assert_eq!(isa.name().parse::<Isa>().ok(), Some(isa));
        }
        let error = "mmx".parse::<Isa>().map_err(|e| e.to_string());
        assert!(error.is_err_and(|e| e.contains("mmx") && e.contains("scalar")));
    }
}
