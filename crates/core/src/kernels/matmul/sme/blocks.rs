//! Outer products of blocks that have scales: a panel of rows times a tile of columns.
//!
//! `ZA` holds squares of `W` x `W` sums, where `W` is the number of lanes, at most the 16 of a tile: a panel times a tile is
//! done in squares. An instruction adds to all sums of a square the products of 4 `k`. After each block the vectors scale its
//! sums and add them up, a row a register, as `quantized` says.

use core::arch::naked_asm;

use super::operands::Blocks;

/// A panel times a tile of blocks that have scales: `PLANES` of activations, `GROUPS` with scales of their own in a block,
/// and mins, `HALVES` or floats. The sums of a row are in `z16`..`z31`.
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
    const HALVES: bool,
>(
    blocks: &Blocks,
) {
    /// The codes of rows at `$at` times those of columns in `$codes`, for the first or the second half of a block.
    macro_rules! product {
        ($at:literal, $codes:literal, $first:literal $second:literal) => {
            concat!(
                "
                ld1b {{z11.b}}, p1/z, [x1", $at, "]
                .if {planes} == 2
                ld1b {{z3.b}}, p1/z, [x6", $at, "]
                .endif
                smopa za", $first, ".s, p1/m, p1/m, z11.b, ", $codes, ".b
                .if {planes} == 2
                smopa za", $second, ".s, p1/m, p1/m, z3.b, ", $codes, ".b
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
                mov ", $to, ".s, p0/m, za", $first, "h.s[", $slice, ", ", $lane, "]
                .if {planes} == 2
                mov z10.s, p0/m, za", $second, "h.s[", $slice, ", ", $lane, "]
                lsl ", $to, ".s, ", $to, ".s, #7
                add ", $to, ".s, ", $to, ".s, z10.s
                .endif
                scvtf ", $to, ".s, p0/m, ", $to, ".s
                fmul ", $to, ".s, ", $to, ".s, ", $scale, ".s
                .if {mins}
                fmul z10.s, ", $min, ".s, ", $sums, ".s[", $lane, "]
                fadd ", $to, ".s, ", $to, ".s, z10.s
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
    /// Those of a block at `$base`, of its groups.
    macro_rules! vectors {
        ($first:literal $second:literal, $base:literal) => {
            concat!(
                "
                .if {halves}
                ld1h {{", $first, ".s}}, p0/z, [", $base, "]
                fcvt ", $first, ".s, p0/m, ", $first, ".h
                .else
                ld1w {{", $first, ".s}}, p0/z, [", $base, "]
                .endif
                .if {groups} == 2
                ld1w {{", $second, ".s}}, p0/z, [", $base, ", x17, lsl #2]
                .endif
                "
            )
        };
    }
    macro_rules! store {
        ($($row:literal $total:literal)*) => {
            concat!($(
                ".if {width} > ", $row, "
                st1w {{", $total, ".s}}, p0, [x8]
                add x8, x8, x1
                .endif
                "
            ),*)
        };
    }
    naked_asm!(
        enter!("sme"),
        masks!("z14", "z15"),
        "
        .if {codes} == 2
        mov w17, #0x3d800000 // 1 / 16
        mov z9.s, w17
        .endif
        mov x17, #16
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
        .if {halves}
        add x3, x3, x20, lsr #1
        add x4, x4, x20, lsr #1
        .else
        add x3, x3, x20
        add x4, x4, x20
        .endif
        add x8, x8, x20
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
        ",
        vectors!("z4" "z5", "x3"),
        ".if {codes} == 2
        fmul z4.s, z4.s, z9.s
        .endif
        .if {mins}
        ",
        vectors!("z8" "z9", "x4"),
        ".endif\n",
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
        add x3, x3, #(64 - 32 * {halves}) * {groups}
        add x5, x5, #64
        .if {mins}
        add x4, x4, #(64 - 32 * {halves}) * {groups}
        add x7, x7, #64 * {groups}
        .endif
        subs x16, x16, #1
        b.ne 40b
        ldr x1, [x0, #64]
        lsr x2, x19, #2
        madd x8, x1, x2, x8
        ",
        store!("0" "z16" "1" "z17" "2" "z18" "3" "z19" "4" "z20" "5" "z21" "6" "z22" "7" "z23"),
        store!("8" "z24" "9" "z25" "10" "z26" "11" "z27" "12" "z28" "13" "z29" "14" "z30" "15" "z31"),
        next_square!(),
        leave!(),
        width = const W,
        codes = const CODES,
        planes = const PLANES,
        groups = const GROUPS,
        mins = const MINS as usize,
        halves = const HALVES as usize,
    )
}

