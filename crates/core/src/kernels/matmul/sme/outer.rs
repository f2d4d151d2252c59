//! Outer products: the whole of a panel of rows times a tile of columns, in streaming mode from the first block to the last.
//!
//! `ZA` holds squares of `W` x `W` sums, where `W` is the number of lanes, at most the 16 of a tile: a panel times a tile is
//! done in squares. An instruction adds to all sums of a square the products of 4 `k`. The vectors of streaming mode scale
//! the sums of a block and add them up, a row a register, as `quantized` says.
//!
//! Registers of all kernels here: `x0` operands, `x1` codes of rows, `x2` codes of columns, `x9`..`x11` and `x21`..`x24`
//! 64 to 448, `w12`..`w15` the rows 0, 4, 8 and 12 of a square, `x19` and `x20` the bytes before the square's rows and
//! columns, `p0` and `p1` as many words and bytes as a square is wide, `z30` and `z31` (or `z14` and `z15`) masks.

use core::arch::naked_asm;

use super::operands::{Blocks, Integers};

/// How codes of columns become bytes.
pub(super) mod codes {
    /// They are signed bytes.
    pub const BYTES: usize = 0;
    /// Unsigned nibbles.
    pub const NIBBLES: usize = 1;
    /// Nibbles that stand for `16 * (code - 8)`: cheaper than to subtract.
    pub const NIBBLES_TIMES_16: usize = 2;
}

/// Keeps what a caller wants back, enters streaming mode with `ZA`, and sets up what all kernels share.
macro_rules! enter {
    () => {
        "
        .arch_extension sme
        stp x19, x20, [sp, #-112]!
        stp x21, x22, [sp, #16]
        stp x23, x24, [sp, #32]
        stp d8, d9, [sp, #48]
        stp d10, d11, [sp, #64]
        stp d12, d13, [sp, #80]
        stp d14, d15, [sp, #96]
        smstart
        mov x9, #64
        mov x10, #128
        mov x11, #192
        mov x21, #256
        mov x22, #320
        mov x23, #384
        mov x24, #448
        mov w12, #0
        mov w13, #4
        mov w14, #8
        mov w15, #12
        mov x17, #{width}
        whilelt p0.s, xzr, x17
        mov x17, #4 * {width}
        whilelt p1.b, xzr, x17
        "
    };
}

/// The reverse of [`enter`].
macro_rules! leave {
    () => {
        "
        smstop
        ldp d14, d15, [sp, #96]
        ldp d12, d13, [sp, #80]
        ldp d10, d11, [sp, #64]
        ldp d8, d9, [sp, #48]
        ldp x23, x24, [sp, #32]
        ldp x21, x22, [sp, #16]
        ldp x19, x20, [sp], #112
        .arch_extension nosme
        ret
        "
    };
}

/// Masks for codes of the kind `{codes}`.
macro_rules! masks {
    ($first:literal, $second:literal) => {
        concat!(
            "
            .if {codes} == 1
            mov ",
            $first,
            ".b, #15
            .elseif {codes} == 2
            mov ",
            $first,
            ".b, #0x88
            mov ",
            $second,
            ".b, #0xf0
            .endif
            "
        )
    };
}

/// The codes `$from`: of 4 `k` into `$low` and, if they are nibbles, of the next 4 into `$high`.
macro_rules! unpack {
    ($from:literal, $low:literal, $high:literal, $first:literal, $second:literal) => {
        concat!(
            "
            .if {codes} == 1
            and ",
            $low,
            ".d, ",
            $from,
            ".d, ",
            $first,
            ".d
            lsr ",
            $high,
            ".b, ",
            $from,
            ".b, #4
            .else
            eor ",
            $from,
            ".d, ",
            $from,
            ".d, ",
            $first,
            ".d
            lsl ",
            $low,
            ".b, ",
            $from,
            ".b, #4
            and ",
            $high,
            ".d, ",
            $from,
            ".d, ",
            $second,
            ".d
            .endif
            "
        )
    };
}

/// A panel times a tile of blocks that have scales: `{planes}` of activations, `{groups}` with scales of their own in a
/// block, `{mins}`. The sums of a row are in `z16`..`z31`.
///
/// # Safety
/// The CPU must have SME, `W` be the lanes of streaming mode, or 16 if there are more, `ZA` free and `blocks` point to as much
/// as [`Blocks`] says.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn blocks<
    const W: usize,
    const CODES: usize,
    const PLANES: usize,
    const GROUPS: usize,
    const MINS: bool,
>(
    blocks: &Blocks,
) {
    /// The codes of rows at `$at` times those of columns in `$codes`, for the first or the second half of a block.
    macro_rules! product {
        ($at:literal, $codes:literal, $first:literal $second:literal) => {
            concat!(
                "
                ld1b {{z11.b}}, p1/z, [x1",
                $at,
                "]
                .if {planes} == 2
                ld1b {{z3.b}}, p1/z, [x6",
                $at,
                "]
                .endif
                smopa za",
                $first,
                ".s, p1/m, p1/m, z11.b, ",
                $codes,
                ".b
                .if {planes} == 2
                smopa za",
                $second,
                ".s, p1/m, p1/m, z3.b, ",
                $codes,
                ".b
                .endif
                "
            )
        };
    }
    /// The codes of columns at `$at`, of 8 `k` if they are nibbles.
    macro_rules! nibbles {
        ($at:literal, $low:literal, $high:literal, $first:literal $second:literal) => {
            concat!(
                "ld1b {{z13.b}}, p1/z, [x2", $at, "]",
                unpack!("z13", "z12", "z13", "z14", "z15"),
                product!($low, "z12", $first $second),
                product!($high, "z13", $first $second),
            )
        };
    }
    macro_rules! bytes {
        ($at:literal, $first:literal $second:literal) => {
            concat!("ld1b {{z12.b}}, p1/z, [x2", $at, "]", product!($at, "z12", $first $second))
        };
    }
    /// Reads row `$row` of the sums of a group into `$to` and scales it.
    macro_rules! term {
        ($to:literal, $slice:literal $lane:literal, $first:literal $second:literal,
         $scale:literal, $min:literal, $sums:literal) => {
            concat!(
                "
                mov ",
                $to,
                ".s, p0/m, za",
                $first,
                "h.s[",
                $slice,
                ", ",
                $lane,
                "]
                .if {planes} == 2
                mov z10.s, p0/m, za",
                $second,
                "h.s[",
                $slice,
                ", ",
                $lane,
                "]
                lsl ",
                $to,
                ".s, ",
                $to,
                ".s, #7
                add ",
                $to,
                ".s, ",
                $to,
                ".s, z10.s
                .endif
                scvtf ",
                $to,
                ".s, p0/m, ",
                $to,
                ".s
                fmul ",
                $to,
                ".s, ",
                $to,
                ".s, ",
                $scale,
                ".s
                .if {mins}
                fmul z10.s, ",
                $min,
                ".s, ",
                $sums,
                ".s[",
                $lane,
                "]
                fadd ",
                $to,
                ".s, ",
                $to,
                ".s, z10.s
                .endif
                "
            )
        };
    }
    macro_rules! row {
        ($slice:literal $lane:literal, $total:literal) => {
            concat!(
                term!("z6", $slice $lane, "0" "1", "z4", "z8", "z1"),
                ".if {groups} == 2\n.if {planes} == 2",
                term!("z7", $slice $lane, "2" "3", "z5", "z9", "z2"),
                ".else",
                term!("z7", $slice $lane, "1" "1", "z5", "z9", "z2"),
                "
                .endif
                fadd z6.s, z6.s, z7.s
                .endif
                fmul z6.s, z6.s, z0.s[", $lane, "]
                fadd ", $total, ".s, ", $total, ".s, z6.s
                "
            )
        };
    }
    /// Four rows, whose scales and sums are `$bytes` from the first's.
    macro_rules! rows {
        ($bytes:literal, $second_group:literal, $slice:literal, $a:literal $b:literal $c:literal $d:literal) => {
            concat!(
                ".if 4 * {width} > ", $bytes, "
                ld1rqw {{z0.s}}, p0/z, [x5, #", $bytes, "]
                .if {mins}
                ld1rqw {{z1.s}}, p0/z, [x7, #", $bytes, "]
                .if {groups} == 2
                ld1rqw {{z2.s}}, p0/z, [x7, #", $second_group, "]
                .endif
                .endif",
                row!($slice "0", $a),
                row!($slice "1", $b),
                row!($slice "2", $c),
                row!($slice "3", $d),
                ".endif\n",
            )
        };
    }
    macro_rules! store {
        ($($row:literal $total:literal)*) => {
            concat!($(
                ".if {width} > ", $row, "
                st1w {{", $total, ".s}}, p0, [x8]
                add x8, x8, #64
                .endif
                "
            ),*)
        };
    }
    naked_asm!(
        enter!(),
        masks!("z14", "z15"),
        "
        mov x19, #0
        20:
        mov x20, #0
        30:
        ldp x1, x2, [x0]
        ldp x3, x4, [x0, #16]
        ldp x5, x7, [x0, #32]
        ldp x8, x16, [x0, #48]
        add x1, x1, x19
        add x5, x5, x19
        add x7, x7, x19
        add x2, x2, x20
        add x3, x3, x20
        add x4, x4, x20
        add x8, x8, x20
        add x8, x8, x19, lsl #4
        .irp row, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
        mov z\\row\\().s, #0
        .endr
        40:
        .if {planes} == 2
        add x6, x1, #512
        .endif
        .if {planes} * {groups} == 1
        zero {{za0.s}}
        .elseif {planes} * {groups} == 2
        zero {{za0.s, za1.s}}
        .else
        zero {{za}}
        .endif
        .if {codes} == 0
        ",
        bytes!("", "0" "1"),
        bytes!(", x9", "0" "1"),
        bytes!(", x10", "0" "1"),
        bytes!(", x11", "0" "1"),
        ".if {groups} == 1",
        bytes!(", x21", "0" "1"),
        bytes!(", x22", "0" "1"),
        bytes!(", x23", "0" "1"),
        bytes!(", x24", "0" "1"),
        ".elseif {planes} == 1",
        bytes!(", x21", "1" "1"),
        bytes!(", x22", "1" "1"),
        bytes!(", x23", "1" "1"),
        bytes!(", x24", "1" "1"),
        ".else",
        bytes!(", x21", "2" "3"),
        bytes!(", x22", "2" "3"),
        bytes!(", x23", "2" "3"),
        bytes!(", x24", "2" "3"),
        ".endif\n.else\n",
        nibbles!("", "", ", x9", "0" "1"),
        nibbles!(", x9", ", x10", ", x11", "0" "1"),
        nibbles!(", x10", ", x21", ", x22", "0" "1"),
        nibbles!(", x11", ", x23", ", x24", "0" "1"),
        "
        .endif
        ld1w {{z4.s}}, p0/z, [x3]
        .if {mins}
        ld1w {{z8.s}}, p0/z, [x4]
        .endif
        .if {groups} == 2
        mov x17, #16
        ld1w {{z5.s}}, p0/z, [x3, x17, lsl #2]
        .if {mins}
        ld1w {{z9.s}}, p0/z, [x4, x17, lsl #2]
        .endif
        .endif
        ",
        rows!("0", "64", "w12", "z16" "z17" "z18" "z19"),
        rows!("16", "80", "w13", "z20" "z21" "z22" "z23"),
        rows!("32", "96", "w14", "z24" "z25" "z26" "z27"),
        rows!("48", "112", "w15", "z28" "z29" "z30" "z31"),
        "
        add x1, x1, #512 * {planes}
        .if {codes} == 0
        add x2, x2, #512
        .else
        add x2, x2, #256
        .endif
        add x3, x3, #64 * {groups}
        add x5, x5, #64
        .if {mins}
        add x4, x4, #64 * {groups}
        add x7, x7, #64 * {groups}
        .endif
        subs x16, x16, #1
        b.ne 40b
        ",
        store!("0" "z16" "1" "z17" "2" "z18" "3" "z19" "4" "z20" "5" "z21" "6" "z22" "7" "z23"),
        store!("8" "z24" "9" "z25" "10" "z26" "11" "z27" "12" "z28" "13" "z29" "14" "z30" "15" "z31"),
        "
        add x20, x20, #4 * {width}
        cmp x20, #64
        b.lo 30b
        add x19, x19, #4 * {width}
        cmp x19, #64
        b.lo 20b
        ",
        leave!(),
        width = const W,
        codes = const CODES,
        planes = const PLANES,
        groups = const GROUPS,
        mins = const MINS as usize,
    )
}

/// A panel times `4 / PLANES` tiles of weights whose products are integers over all of `k`.
///
/// # Safety
/// As for [`blocks`], with `integers` as [`Integers`] says.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn integers<const W: usize, const CODES: usize, const PLANES: usize>(
    integers: &Integers,
) {
    /// The codes of rows, of both planes, at `$at`.
    macro_rules! rows {
        ($first:literal $second:literal, $at:literal) => {
            concat!(
                "ld1b {{",
                $first,
                ".b}}, p1/z, [x1",
                $at,
                "]
                .if {planes} == 2
                ld1b {{",
                $second,
                ".b}}, p1/z, [x6",
                $at,
                "]
                .endif
                "
            )
        };
    }
    /// These, `$first` and `$second`, times the codes of a tile, whose sums are in `$of_one` with one plane, in `$of_two`
    /// with two.
    macro_rules! product {
        ($first:literal $second:literal, $codes:literal, $of_one:literal, $($of_two:literal)*) => {
            concat!(
                ".if {planes} == 1
                smopa za", $of_one, ".s, p1/m, p1/m, ", $first, ".b, ", $codes, ".b
                .endif
                ",
                two!($first $second, $codes, $($of_two)*)
            )
        };
    }
    macro_rules! two {
        ($first:literal $second:literal, $codes:literal,) => {
            ""
        };
        ($first:literal $second:literal, $codes:literal, $high:literal $low:literal) => {
            concat!(
                ".if {planes} == 2
                smopa za",
                $high,
                ".s, p1/m, p1/m, ",
                $first,
                ".b, ",
                $codes,
                ".b
                smopa za",
                $low,
                ".s, p1/m, p1/m, ",
                $second,
                ".b, ",
                $codes,
                ".b
                .endif
                "
            )
        };
    }
    macro_rules! tile {
        ($base:literal, $at:literal, $of_one:literal, $($of_two:literal)*) => {
            concat!(
                "ld1b {{z13.b}}, p1/z, [", $base, $at, "]
                .if {codes} != 0
                ",
                unpack!("z13", "z12", "z13", "z30", "z31"),
                product!("z0" "z2", "z12", $of_one, $($of_two)*),
                product!("z1" "z3", "z13", $of_one, $($of_two)*),
                ".else\n",
                product!("z0" "z2", "z13", $of_one, $($of_two)*),
                ".endif\n",
            )
        };
    }
    macro_rules! tiles {
        ($at:literal) => {
            concat!(
                tile!("x2", $at, "0", "0" "1"),
                tile!("x3", $at, "1", "2" "3"),
                ".if {planes} == 1\n",
                tile!("x4", $at, "2",),
                tile!("x5", $at, "3",),
                ".endif\n"
            )
        };
    }
    macro_rules! nibbles {
        ($at:literal, $low:literal, $high:literal) => {
            concat!(rows!("z0" "z2", $low), rows!("z1" "z3", $high), tiles!($at))
        };
    }
    macro_rules! bytes {
        ($at:literal) => { concat!(rows!("z0" "z2", $at), tiles!($at)) };
    }
    macro_rules! store {
        ($($square:literal)*) => {
            concat!($(
                "mov x8, x7
                .irp at, 12, 13, 14, 15
                .if {width} > 4 * (\\at - 12)
                .irp row, 0, 1, 2, 3
                st1w {{za", $square, "h.s[w\\at, \\row]}}, p0, [x8]
                add x8, x8, #64
                .endr
                .endif
                .endr
                add x7, x7, #1024
                "
            ),*)
        };
    }
    naked_asm!(
        enter!(),
        masks!("z30", "z31"),
        "
        mov x19, #0
        20:
        mov x20, #0
        30:
        ldp x1, x2, [x0]
        ldp x3, x4, [x0, #16]
        ldp x5, x7, [x0, #32]
        ldr x16, [x0, #48]
        add x1, x1, x19
        add x2, x2, x20
        add x3, x3, x20
        add x4, x4, x20
        add x5, x5, x20
        add x7, x7, x20
        add x7, x7, x19, lsl #4
        zero {{za}}
        40:
        .if {planes} == 2
        add x6, x1, #512
        .endif
        .if {codes} == 0
        ",
        bytes!(""),
        bytes!(", x9"),
        bytes!(", x10"),
        bytes!(", x11"),
        bytes!(", x21"),
        bytes!(", x22"),
        bytes!(", x23"),
        bytes!(", x24"),
        ".else\n",
        nibbles!("", "", ", x9"),
        nibbles!(", x9", ", x10", ", x11"),
        nibbles!(", x10", ", x21", ", x22"),
        nibbles!(", x11", ", x23", ", x24"),
        "
        .endif
        add x1, x1, #512 * {planes}
        .irp base, 2, 3, 4, 5
        .if {planes} == 1 || \\base <= 3
        .if {codes} == 0
        add x\\base, x\\base, #512
        .else
        add x\\base, x\\base, #256
        .endif
        .endif
        .endr
        subs x16, x16, #1
        b.ne 40b
        ",
        store!("0" "1" "2" "3"),
        "
        add x20, x20, #4 * {width}
        cmp x20, #64
        b.lo 30b
        add x19, x19, #4 * {width}
        cmp x19, #64
        b.lo 20b
        ",
        leave!(),
        width = const W,
        codes = const CODES,
        planes = const PLANES,
    )
}
