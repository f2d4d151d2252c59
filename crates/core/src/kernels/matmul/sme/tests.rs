//! What kernels leave as they found it.

use core::arch::asm;

use super::dots::{dots, scales};
use super::operands::Dots;
use super::*;

/// Registers that a function has to keep, and no mode left behind.
#[test]
fn a_caller_finds_its_registers_again() {
    let Some(sme) = Sme::two() else { return };
    let (row, codes, halves) = ([1_i8; 32], [3_u8; 512], [0x3c00_u16; LANES]);
    let (row_scale, row_sum) = (2.0, 32);
    let mut values = [0.0_f32; 4 * LANES];
    let operands = Dots {
        row: row.as_ptr(),
        codes: [codes.as_ptr(); 4],
        scales: [halves.as_ptr().cast(); 4],
        mins: [std::ptr::null(); 4],
        row_scales: &raw const row_scale,
        row_sums: &raw const row_sum,
        blocks: 1,
        values: values.as_mut_ptr(),
    };
    let kernel: unsafe extern "C" fn(&Dots) = match sme.lanes() {
        4 => dots::<4, BYTES, 1, { scales::HALVES }, false>,
        8 => dots::<8, BYTES, 1, { scales::HALVES }, false>,
        _ => dots::<16, BYTES, 1, { scales::HALVES }, false>,
    };
    let kept = [1_u64, 2, 3, 4, 5, 6, 7, 8];
    let mut found = [0_u64; 8];
    // SAFETY: SME2 is here and `ZA` free; the operands are of one block of as many columns as four vectors have. The
    // registers that are set are named.
    unsafe {
        asm!(
            "ldp d8, d9, [x20]",
            "ldp d10, d11, [x20, #16]",
            "ldp d12, d13, [x20, #32]",
            "ldp d14, d15, [x20, #48]",
            "blr x22",
            "stp d8, d9, [x21]",
            "stp d10, d11, [x21, #16]",
            "stp d12, d13, [x21, #32]",
            "stp d14, d15, [x21, #48]",
            in("x0") &raw const operands,
            in("x20") kept.as_ptr(),
            in("x21") found.as_mut_ptr(),
            in("x22") kernel,
            out("v8") _, out("v9") _, out("v10") _, out("v11") _,
            out("v12") _, out("v13") _, out("v14") _, out("v15") _,
            clobber_abi("C"),
        );
    }
    assert_eq!(found, kept);
    assert!(sme.is_free());
    let width = 4 * sme.lanes().min(LANES);
    assert!(values[..width].iter().all(|value| *value == 32.0 * 3.0 * 2.0), "{values:?}");
}
