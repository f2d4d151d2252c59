//! SME2's dot products: a single row times four vectors of columns at once.
//!
//! An instruction multiplies 4 `k` of the row with four vectors, each of `W` columns, and adds to four vectors of `ZA`, so that
//! long runs of weights pass with few instructions. The sums of a block are scaled and added up as `quantized` says, or as
//! `channel` does.

use core::arch::naked_asm;

use super::operands::Dots;

/// What the scales of a format are to [`dots`].
pub(super) mod scales {
    /// Floats of blocks.
    pub const FLOATS: usize = 0;
    /// Halves of blocks.
    pub const HALVES: usize = 1;
    /// Floats of columns alone.
    pub const COLUMNS: usize = 2;
    /// And a byte a block and column, with which products are multiplied.
    pub const STEPS: usize = 3;
}

/// A row times `4 * W` columns. Nibbles without mins have the offset 8.
///
/// # Safety
/// The CPU must have SME2, `W` be the lanes of streaming mode, or 16 if there are more, `ZA` free and `dots` point to as much as
/// [`Dots`] says.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn dots<
    const W: usize,
    const CODES: usize,
    const PLANES: usize,
    const SCALES: usize,
    const MINS: bool,
>(
    dots: &Dots,
) {
    /// Products of the codes in four registers with word `$lane` of the row's registers.
    macro_rules! product {
        ($codes:literal, $row:literal $second:literal, $lane:literal) => {
            concat!(
                "
                sdot za.s[w8, 0, vgx4], {{", $codes, "}}, ", $row, ".b[", $lane, "]
                .if {planes} == 2
                sdot za.s[w8, 1, vgx4], {{", $codes, "}}, ", $second, ".b[", $lane, "]
                .endif
                "
            )
        };
    }
    macro_rules! load {
        ($at:literal) => {
            concat!(
                "ld1b {{z0.b}}, p1/z, [x2", $at, "]
                ld1b {{z1.b}}, p1/z, [x3", $at, "]
                ld1b {{z2.b}}, p1/z, [x4", $at, "]
                ld1b {{z3.b}}, p1/z, [x5", $at, "]
                "
            )
        };
    }
    macro_rules! bytes {
        ($($at:literal $lane:literal)*, $row:literal $second:literal) => {
            concat!($(load!($at), product!("z0.b-z3.b", $row $second, $lane)),*)
        };
    }
    macro_rules! nibbles {
        ($($at:literal $low:literal $high:literal)*, $row:literal $second:literal) => {
            concat!($(
                load!($at),
                unpack!("z0", "z4", "z0", "z30", "z31"),
                unpack!("z1", "z5", "z1", "z30", "z31"),
                unpack!("z2", "z6", "z2", "z30", "z31"),
                unpack!("z3", "z7", "z3", "z30", "z31"),
                product!("z4.b-z7.b", $row $second, $low),
                product!("z0.b-z3.b", $row $second, $high),
            )*)
        };
    }
    /// Scales or mins of the four vectors, into `z8`..`z11`.
    macro_rules! vectors {
        ($a:literal $b:literal $c:literal $d:literal) => {
            concat!(
                ".if {scales} == 1
                ld1h {{z8.s}}, p0/z, [", $a, ", x17, lsl #1]
                ld1h {{z9.s}}, p0/z, [", $b, ", x17, lsl #1]
                ld1h {{z10.s}}, p0/z, [", $c, ", x17, lsl #1]
                ld1h {{z11.s}}, p0/z, [", $d, ", x17, lsl #1]
                fcvt z8.s, p0/m, z8.h
                fcvt z9.s, p0/m, z9.h
                fcvt z10.s, p0/m, z10.h
                fcvt z11.s, p0/m, z11.h
                .else
                ld1w {{z8.s}}, p0/z, [", $a, ", x17, lsl #2]
                ld1w {{z9.s}}, p0/z, [", $b, ", x17, lsl #2]
                ld1w {{z10.s}}, p0/z, [", $c, ", x17, lsl #2]
                ld1w {{z11.s}}, p0/z, [", $d, ", x17, lsl #2]
                .endif
                "
            )
        };
    }
    /// `z0`..`z3` by `z8`..`z11`.
    macro_rules! scale {
        () => {
            "
            fmul z0.s, z0.s, z8.s
            fmul z1.s, z1.s, z9.s
            fmul z2.s, z2.s, z10.s
            fmul z3.s, z3.s, z11.s
            "
        };
    }
    naked_asm!(
        enter!("sme2"),
        masks!("z30", "z31"),
        "
        ldp x1, x2, [x0]
        ldp x3, x4, [x0, #16]
        ldp x5, x6, [x0, #32]
        ldp x7, x19, [x0, #48]
        ldp x20, x12, [x0, #64]
        ldp x13, x14, [x0, #80]
        ldp x15, x25, [x0, #96]
        ldp x26, x16, [x0, #112]
        mov x17, #0
        mov w8, #0
        zero {{za}}
        mov z28.s, #1
        lsl z28.s, z28.s, #12
        sub z28.s, z28.s, #1
        .irp total, 16, 17, 18, 19, 20, 21, 22, 23
        mov z\\total\\().s, #0
        .endr
        40:
        ld1rqb {{z14.b}}, p1/z, [x1]
        ld1rqb {{z15.b}}, p1/z, [x1, #16]
        .if {planes} == 2
        ld1rqb {{z12.b}}, p1/z, [x1, #32]
        ld1rqb {{z13.b}}, p1/z, [x1, #48]
        .endif
        .if {codes} == 0
        ",
        bytes!("" "0" ", x9" "1" ", x10" "2" ", x11" "3", "z14" "z12"),
        bytes!(", x21" "0" ", x22" "1" ", x23" "2" ", x24" "3", "z15" "z13"),
        ".else\n",
        nibbles!("" "0" "1" ", x9" "2" "3", "z14" "z12"),
        nibbles!(", x10" "0" "1" ", x11" "2" "3", "z15" "z13"),
        "
        .endif
        mov {{z0.s-z3.s}}, za.s[w8, 0, vgx4]
        .if {planes} == 2
        mov {{z4.s-z7.s}}, za.s[w8, 1, vgx4]
        lsl z0.s, z0.s, #7
        lsl z1.s, z1.s, #7
        lsl z2.s, z2.s, #7
        lsl z3.s, z3.s, #7
        add z0.s, z0.s, z4.s
        add z1.s, z1.s, z5.s
        add z2.s, z2.s, z6.s
        add z3.s, z3.s, z7.s
        .endif
        zero {{za}}
        .if {mins} || {codes} == 1
        ld1rw {{z12.s}}, p0/z, [x26]
        .endif
        .if {mins}
        scvtf z12.s, p0/m, z12.s
        .elseif {codes} == 1
        lsl z12.s, z12.s, #3
        sub z0.s, z0.s, z12.s
        sub z1.s, z1.s, z12.s
        sub z2.s, z2.s, z12.s
        sub z3.s, z3.s, z12.s
        .endif
        .if {scales} >= 2
        .if {scales} == 3
        ld1b {{z8.s}}, p0/z, [x6, x17]
        ld1b {{z9.s}}, p0/z, [x7, x17]
        ld1b {{z10.s}}, p0/z, [x19, x17]
        ld1b {{z11.s}}, p0/z, [x20, x17]
        mul z0.s, p0/m, z0.s, z8.s
        mul z1.s, p0/m, z1.s, z9.s
        mul z2.s, p0/m, z2.s, z10.s
        mul z3.s, p0/m, z3.s, z11.s
        .endif
        .if {planes} == 2
        asr z4.s, z0.s, #12
        asr z5.s, z1.s, #12
        asr z6.s, z2.s, #12
        asr z7.s, z3.s, #12
        add z20.s, z20.s, z4.s
        add z21.s, z21.s, z5.s
        add z22.s, z22.s, z6.s
        add z23.s, z23.s, z7.s
        and z0.d, z0.d, z28.d
        and z1.d, z1.d, z28.d
        and z2.d, z2.d, z28.d
        and z3.d, z3.d, z28.d
        .endif
        add z16.s, z16.s, z0.s
        add z17.s, z17.s, z1.s
        add z18.s, z18.s, z2.s
        add z19.s, z19.s, z3.s
        .else
        scvtf {{z0.s-z3.s}}, {{z0.s-z3.s}}
        ",
        vectors!("x6" "x7" "x19" "x20"),
        scale!(),
        ".if {mins}\n",
        vectors!("x12" "x13" "x14" "x15"),
        "
        fmul z8.s, z8.s, z12.s
        fmul z9.s, z9.s, z12.s
        fmul z10.s, z10.s, z12.s
        fmul z11.s, z11.s, z12.s
        fadd z0.s, z0.s, z8.s
        fadd z1.s, z1.s, z9.s
        fadd z2.s, z2.s, z10.s
        fadd z3.s, z3.s, z11.s
        .endif
        ld1rw {{z13.s}}, p0/z, [x25]
        fmul z0.s, z0.s, z13.s
        fmul z1.s, z1.s, z13.s
        fmul z2.s, z2.s, z13.s
        fmul z3.s, z3.s, z13.s
        fadd z16.s, z16.s, z0.s
        fadd z17.s, z17.s, z1.s
        fadd z18.s, z18.s, z2.s
        fadd z19.s, z19.s, z3.s
        add x25, x25, #4
        .endif
        add x1, x1, #32 * {planes}
        add x17, x17, #16
        add x26, x26, #4
        ",
        next_codes!(),
        "
        subs x16, x16, #1
        b.ne 40b
        .if {scales} >= 2
        .if {planes} == 2
        asr z0.s, z16.s, #12
        asr z1.s, z17.s, #12
        asr z2.s, z18.s, #12
        asr z3.s, z19.s, #12
        add z20.s, z20.s, z0.s
        add z21.s, z21.s, z1.s
        add z22.s, z22.s, z2.s
        add z23.s, z23.s, z3.s
        and z16.d, z16.d, z28.d
        and z17.d, z17.d, z28.d
        and z18.d, z18.d, z28.d
        and z19.d, z19.d, z28.d
        add z28.s, z28.s, #1
        scvtf z28.s, p0/m, z28.s
        scvtf {{z20.s-z23.s}}, {{z20.s-z23.s}}
        scvtf {{z16.s-z19.s}}, {{z16.s-z19.s}}
        fmul z20.s, z20.s, z28.s
        fmul z21.s, z21.s, z28.s
        fmul z22.s, z22.s, z28.s
        fmul z23.s, z23.s, z28.s
        fadd z16.s, z20.s, z16.s
        fadd z17.s, z21.s, z17.s
        fadd z18.s, z22.s, z18.s
        fadd z19.s, z23.s, z19.s
        .else
        scvtf {{z16.s-z19.s}}, {{z16.s-z19.s}}
        .endif
        ld1rw {{z13.s}}, p0/z, [x25]
        ld1w {{z8.s}}, p0/z, [x12]
        ld1w {{z9.s}}, p0/z, [x13]
        ld1w {{z10.s}}, p0/z, [x14]
        ld1w {{z11.s}}, p0/z, [x15]
        fmul z16.s, z16.s, z13.s
        fmul z17.s, z17.s, z13.s
        fmul z18.s, z18.s, z13.s
        fmul z19.s, z19.s, z13.s
        fmul z16.s, z16.s, z8.s
        fmul z17.s, z17.s, z9.s
        fmul z18.s, z18.s, z10.s
        fmul z19.s, z19.s, z11.s
        .endif
        ldr x8, [x0, #128]
        st1w {{z16.s}}, p0, [x8]
        add x8, x8, #4 * {width}
        st1w {{z17.s}}, p0, [x8]
        add x8, x8, #4 * {width}
        st1w {{z18.s}}, p0, [x8]
        add x8, x8, #4 * {width}
        st1w {{z19.s}}, p0, [x8]
        ",
        leave!(),
        width = const W,
        codes = const CODES,
        planes = const PLANES,
        scales = const SCALES,
        mins = const MINS as usize,
    )
}
