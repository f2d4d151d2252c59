//! AMX: tile registers that multiply a panel of rows by a block of weights. Everything else is AVX-512's.

use core::arch::asm;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::{Avx512, BlockCodes, MatrixEngine, PanelSums};
use crate::activation::{PANEL, RowCodes};

/// The token of AMX (tiles, 8-bit integers). It exists only where the CPU has it and the system lets this process use it.
#[derive(Clone, Copy, Debug)]
pub struct Amx(Avx512);

impl Amx {
    /// The token, if tiles can be used here.
    pub fn new() -> Option<Self> {
        static USABLE: OnceLock<bool> = OnceLock::new();
        let vectors = Avx512::new()?;
        USABLE.get_or_init(|| has_tiles() && may_use_tiles()).then_some(Self(vectors))
    }

    /// The token of the vectors that work beside the tiles.
    pub fn vectors(self) -> Avx512 {
        self.0
    }

    /// Sets this thread's tiles up.
    pub fn configure(self) -> AmxTiles {
        // SAFETY: the token exists only where tiles may be used; the instruction reads the 64 bytes of `SHAPES`.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const SHAPES, options(nostack, readonly)) };
        AmxTiles(PhantomData)
    }
}

/// Whether the CPU has tiles and 8-bit products, and the system saves tiles when it switches between threads.
fn has_tiles() -> bool {
    const AMX_TILE: u32 = 1 << 24;
    const AMX_INT8: u32 = 1 << 25;
    const TILE_STATE: u32 = 0b11 << 17;
    let features = core::arch::x86_64::__cpuid_count(7, 0).edx;
    let saved: u32;
    // SAFETY: only asked where AVX-512 is usable, hence `xgetbv` is.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") saved, out("edx") _, options(nostack, nomem)) };
    features & AMX_TILE != 0 && features & AMX_INT8 != 0 && saved & TILE_STATE == TILE_STATE
}

/// Asks the system for tiles, for all threads of this process. Refused for instance where it cannot make room for them
/// on a signal's stack.
#[cfg(target_os = "linux")]
fn may_use_tiles() -> bool {
    const ARCH_PRCTL: u64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let result: u64;
    // SAFETY: this call takes two integers and touches no memory of ours; the kernel overwrites `rcx` and `r11`.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn may_use_tiles() -> bool {
    false
}

/// The operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Tiles 0 and 1: sums. 2 and 3: rows. 4 and 5: weights.
static SHAPES: Shapes = Shapes {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 32, 32, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// This thread's tiles, in use until this is dropped.
#[derive(Debug)]
pub struct AmxTiles(PhantomData<*mut ()>);

impl Drop for AmxTiles {
    fn drop(&mut self) {
        // SAFETY: tiles are configured on this thread: the type is not `Send`.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

impl MatrixEngine for AmxTiles {
    #[inline(always)]
    fn multiply<const P: usize>(
        &mut self,
        x: &[RowCodes<P>; PANEL],
        w: &BlockCodes,
        sums: &mut [PanelSums; P],
    ) {
        let (x, sums) = (x.as_ptr(), sums.as_mut_ptr());
        macro_rules! tiles {
            ($($instruction:literal)*) => {
                asm!(
                    $($instruction,)*
                    w = in(reg) w,
                    x = in(reg) x,
                    sums = in(reg) sums,
                    line = in(reg) 64usize,
                    row = in(reg) size_of::<RowCodes<P>>(),
                    options(nostack),
                )
            };
        }
        // SAFETY: tiles are configured on this thread as `SHAPES` says. 16 rows of 32 bytes are read from every plane of
        // `x`, 8 rows of 64 from `w`; 16 rows of 64 are written to every plane of `sums`.
        unsafe {
            if P == 1 {
                tiles!(
                    "tilezero tmm0"
                    "tileloadd tmm4, [{w} + {line}]"
                    "tileloadd tmm2, [{x} + {row}]"
                    "tdpbssd tmm0, tmm2, tmm4"
                    "tilestored [{sums} + {line}], tmm0"
                );
            } else {
                tiles!(
                    "tilezero tmm0"
                    "tilezero tmm1"
                    "tileloadd tmm4, [{w} + {line}]"
                    "tileloadd tmm2, [{x} + {row}]"
                    "tileloadd tmm3, [{x} + {row} + 32]"
                    "tdpbssd tmm0, tmm2, tmm4"
                    "tdpbssd tmm1, tmm3, tmm4"
                    "tilestored [{sums} + {line}], tmm0"
                    "tilestored [{sums} + {line} + 1024], tmm1"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The palette in use, which is 0 while tiles are released.
    fn palette() -> u8 {
        #[repr(align(64))]
        struct Stored([u8; 64]);
        let mut stored = Stored([0xff; 64]);
        // SAFETY: AMX is usable; 64 bytes are written.
        unsafe { asm!("sttilecfg [{}]", in(reg) &raw mut stored, options(nostack)) };
        stored.0[0]
    }

    #[test]
    fn tiles_are_released_at_the_end_and_by_a_panic() {
        let Some(amx) = Amx::new() else { return };
        assert_eq!(palette(), 0);
        let tiles = amx.configure();
        assert_eq!(palette(), 1);
        drop(tiles);
        assert_eq!(palette(), 0);
        let result = std::panic::catch_unwind(|| {
            let _tiles = amx.configure();
            panic!("with tiles in use");
        });
        assert!(result.is_err());
        assert_eq!(palette(), 0);
    }
}
