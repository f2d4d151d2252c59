//! SME: outer products of bytes into a square register of sums (`ZA`), and with SME2 dot products of several vectors at
//! once. Everything else is NEON's.
//!
//! Instructions of SME need the streaming mode, in which many cores know no NEON, and which clears the vector registers
//! where it begins and ends. So what uses it is a whole kernel in assembly that enters and leaves it; see
//! [`crate::kernels::matmul`].

use core::arch::asm;
use std::sync::OnceLock;

use super::NeonI8mm;

/// The token of SME. It exists only where the CPU and the system have it.
#[derive(Clone, Copy, Debug)]
pub struct Sme {
    vectors: NeonI8mm,
    version: Version,
    /// Bytes of a vector in streaming mode.
    vector_len: usize,
}

/// What there is of SME.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// Outer products.
    One,
    /// And operations of several vectors.
    Two,
}

impl Sme {
    /// The token, if SME can be used here.
    pub fn new() -> Option<Self> {
        static USABLE: OnceLock<Option<Sme>> = OnceLock::new();
        *USABLE.get_or_init(|| {
            let (vectors, version) = (NeonI8mm::new()?, version()?);
            Some(Self { vectors, version, vector_len: streaming_vector_len() })
        })
    }

    /// The token, if SME2 can be used here.
    pub fn two() -> Option<Self> {
        Self::new().filter(|sme| sme.version == Version::Two)
    }

    /// The token of the vectors that work beside it.
    pub fn vectors(self) -> NeonI8mm {
        self.vectors
    }

    /// 32-bit lanes of a vector in streaming mode: 4 to 64, a power of two.
    pub fn lanes(self) -> usize {
        self.vector_len / 4
    }

    /// Whether this thread's `ZA` holds nothing that a caller wants back: kernels do not save it.
    pub fn is_free(self) -> bool {
        let (state, saved): (u64, u64);
        // SAFETY: where there is SME there are these registers, of the streaming mode and `ZA`, and of what the owner of
        // `ZA` has asked to save.
        unsafe {
            asm!(
                "mrs {}, S3_3_C4_C2_2",
                "mrs {}, S3_3_C13_C0_5",
                out(reg) state,
                out(reg) saved,
                options(nomem, nostack, preserves_flags)
            );
        }
        state == 0 && saved == 0
    }
}

/// Bytes of a vector in streaming mode. Only asked where there is SME.
fn streaming_vector_len() -> usize {
    let len;
    // SAFETY: the CPU has SME; the instruction reads no memory and needs no mode.
    unsafe {
        asm!(
            ".arch_extension sme",
            "rdsvl {}, #1",
            ".arch_extension nosme",
            out(reg) len,
            options(nomem, nostack, preserves_flags)
        );
    }
    len
}

/// Which SME the system offers to programs.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn version() -> Option<Version> {
    const AT_HWCAP2: usize = 26;
    const SME: usize = 1 << 23;
    const SME_I8I32: usize = 1 << 26;
    const SME2: usize = 1 << 37;
    unsafe extern "C" {
        safe fn getauxval(kind: usize) -> usize;
    }
    let has = getauxval(AT_HWCAP2);
    match (has & SME != 0 && has & SME_I8I32 != 0, has & SME2 != 0) {
        (false, _) => None,
        (true, false) => Some(Version::One),
        (true, true) => Some(Version::Two),
    }
}

/// Which SME the system offers to programs.
#[cfg(target_os = "macos")]
fn version() -> Option<Version> {
    let has = |name: &core::ffi::CStr| {
        unsafe extern "C" {
            fn sysctlbyname(
                name: *const core::ffi::c_char,
                old: *mut i32,
                old_len: *mut usize,
                new: *mut core::ffi::c_void,
                new_len: usize,
            ) -> i32;
        }
        let (mut value, mut len) = (0, size_of::<i32>());
        // SAFETY: these names are of integers of 4 bytes, and as much room is given; nothing is set.
        let result =
            unsafe { sysctlbyname(name.as_ptr(), &raw mut value, &raw mut len, core::ptr::null_mut(), 0) };
        result == 0 && value != 0
    };
    match (has(c"hw.optional.arm.SME_I8I32"), has(c"hw.optional.arm.FEAT_SME2")) {
        (false, _) => None,
        (true, false) => Some(Version::One),
        (true, true) => Some(Version::Two),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos")))]
fn version() -> Option<Version> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vector_length_is_one_of_the_architecture_and_nothing_is_in_use() {
        let Some(sme) = Sme::new() else { return };
        assert!(sme.lanes().is_power_of_two() && (4..=64).contains(&sme.lanes()));
        assert!(sme.is_free());
    }

    #[test]
    fn an_array_in_use_is_not_free() {
        let Some(sme) = Sme::new() else { return };
        // SAFETY: the CPU has SME; the array is given back.
        unsafe {
            asm!(".arch_extension sme", "smstart za", ".arch_extension nosme", options(nomem, nostack))
        };
        let is_free = sme.is_free();
        // SAFETY: as above.
        unsafe { asm!(".arch_extension sme", "smstop za", ".arch_extension nosme", options(nomem, nostack)) };
        assert!(!is_free && sme.is_free());
    }
}
