//! Outer products of weights with one scale a column, whose products are integers over all of `k`.
//!
//! A panel of rows times as many tiles as `ZA` has squares for: 4, or 2 where activations have two planes. The sums stay in
//! `ZA` from the first block to the last; then they are scaled as `channel` says.

use core::arch::naked_asm;

use super::operands::Integers;

/// A panel times `4 / PLANES` tiles.
///
/// # Safety
/// As for [`super::blocks::blocks`], with `integers` as [`Integers`] says.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn integers<const W: usize, const CODES: usize, const PLANES: usize>(
    integers: &Integers,
) {
    /// The codes of rows, of both planes, at `$at`.
    macro_rules! rows {
        ($first:literal $second:literal, $at:literal) => {
            concat!(
                "
                ld1b {{", $first, ".b}}, p1/z, [x1", $at, "]
                .if {planes} == 2
                ld1b {{", $second, ".b}}, p1/z, [x6", $at, "]
                .endif
                "
            )
        };
    }
    /// These times the codes of a tile, whose sums are in square `$of_one`, or in `$high` and `$low` with two planes.
    macro_rules! product {
        ($first:literal $second:literal, $codes:literal, $of_one:literal $high:literal $low:literal) => {
            concat!(
                "
                .if {planes} == 1
                smopa za", $of_one, ".s, p1/m, p1/m, ", $first, ".b, ", $codes, ".b
                .else
                smopa za", $high, ".s, p1/m, p1/m, ", $first, ".b, ", $codes, ".b
                smopa za", $low, ".s, p1/m, p1/m, ", $second, ".b, ", $codes, ".b
                .endif
                "
            )
        };
    }
    macro_rules! tile {
        ($base:literal, $at:literal, $of_one:literal $high:literal $low:literal) => {
            concat!(
                "
                ld1b {{z13.b}}, p1/z, [", $base, $at, "]
                .if {codes} == 0
                ",
                product!("z0" "z2", "z13", $of_one $high $low),
                ".else",
                unpack!("z13", "z12", "z13", "z30", "z31"),
                product!("z0" "z2", "z12", $of_one $high $low),
                product!("z1" "z3", "z13", $of_one $high $low),
                ".endif
                "
            )
        };
    }
    /// All tiles, at `$at`. With two planes there are no more than two.
    macro_rules! tiles {
        ($at:literal) => {
            concat!(
                tile!("x2", $at, "0" "0" "1"),
                tile!("x3", $at, "1" "2" "3"),
                ".if {planes} == 1\n",
                tile!("x4", $at, "2" "0" "0"),
                tile!("x5", $at, "3" "0" "0"),
                ".endif\n"
            )
        };
    }
    macro_rules! bytes {
        ($($at:literal)*) => { concat!($(rows!("z0" "z2", $at), tiles!($at)),*) };
    }
    macro_rules! nibbles {
        ($($at:literal $low:literal $high:literal)*) => {
            concat!($(rows!("z0" "z2", $low), rows!("z1" "z3", $high), tiles!($at)),*)
        };
    }
    /// Row `$row` of a tile, from its squares to where it goes; the scales of the tile's columns are in `$scales`.
    macro_rules! value {
        ($slice:literal $lane:literal, $of_one:literal $high:literal $low:literal, $scales:literal, $place:literal) => {
            concat!(
                "
                .if {planes} == 1
                mov z6.s, p0/m, za", $of_one, "h.s[", $slice, ", ", $lane, "]
                .if {codes} == 1
                sub z6.s, z6.s, z2.s
                .endif
                scvtf z6.s, p0/m, z6.s
                .else
                // 128 * high + low = 4096 * (high / 32) + (128 * (high % 32) + low)
                mov z6.s, p0/m, za", $high, "h.s[", $slice, ", ", $lane, "]
                mov z7.s, p0/m, za", $low, "h.s[", $slice, ", ", $lane, "]
                and z8.d, z6.d, z20.d
                lsl z8.s, z8.s, #7
                add z7.s, z7.s, z8.s
                asr z6.s, z6.s, #5
                .if {codes} == 1
                sub z6.s, z6.s, z1.s
                sub z7.s, z7.s, z2.s
                .endif
                asr z8.s, z7.s, #12
                add z6.s, z6.s, z8.s
                and z7.d, z7.d, z21.d
                scvtf z6.s, p0/m, z6.s
                scvtf z7.s, p0/m, z7.s
                fmul z6.s, z6.s, z22.s
                fadd z6.s, z6.s, z7.s
                .endif
                fmul z6.s, z6.s, z0.s[", $lane, "]
                fmul z6.s, z6.s, ", $scales, ".s
                st1w {{z6.s}}, p0, [", $place, ", x8, lsl #2]
                "
            )
        };
    }
    macro_rules! row {
        ($slice:literal $lane:literal, $bytes:literal) => {
            concat!(
                "
                .if {codes} == 1
                .if {planes} == 2
                ld1rw {{z1.s}}, p0/z, [x6, #", $bytes, "]
                .endif
                ld1rw {{z2.s}}, p0/z, [x7, #", $bytes, "]
                .endif
                ",
                value!($slice $lane, "0" "0" "1", "z16", "x1"),
                value!($slice $lane, "1" "2" "3", "z17", "x2"),
                ".if {planes} == 1",
                value!($slice $lane, "2" "0" "0", "z18", "x3"),
                value!($slice $lane, "3" "0" "0", "z19", "x4"),
                ".endif
                add x8, x8, x16
                "
            )
        };
    }
    macro_rules! rows_of_values {
        ($($slice:literal $a:literal $b:literal $c:literal $d:literal)*) => {
            concat!($(
                ".if 4 * {width} > ", $a, "
                ld1rqw {{z0.s}}, p0/z, [x5, #", $a, "]
                ",
                row!($slice "0", $a),
                row!($slice "1", $b),
                row!($slice "2", $c),
                row!($slice "3", $d),
                ".endif\n"
            ),*)
        };
    }
    naked_asm!(
        enter!("sme"),
        masks!("z30", "z31"),
        "
        mov z20.s, #31
        mov z21.s, #1
        lsl z21.s, z21.s, #12
        mov z22.d, z21.d
        scvtf z22.s, p0/m, z22.s
        sub z21.s, z21.s, #1
        mov x19, #0
        20:
        mov x20, #0
        30:
        ldp x1, x2, [x0]
        ldp x3, x4, [x0, #16]
        ldp x5, x16, [x0, #32]
        add x1, x1, x19
        .irp base, 2, 3, 4, 5
        add x\\base, x\\base, x20
        .endr
        zero {{za}}
        40:
        .if {planes} == 2
        add x6, x1, #512
        .endif
        .if {codes} == 0
        ",
        bytes!("" ", x9" ", x10" ", x11" ", x21" ", x22" ", x23" ", x24"),
        ".else",
        nibbles!("" "" ", x9"  ", x9" ", x10" ", x11"  ", x10" ", x21" ", x22"  ", x11" ", x23" ", x24"),
        "
        .endif
        add x1, x1, #512 * {planes}
        ",
        next_codes!(),
        "
        subs x16, x16, #1
        b.ne 40b
        ldp x1, x2, [x0, #48]
        ldp x3, x4, [x0, #64]
        add x1, x1, x20
        ld1w {{z16.s}}, p0/z, [x1]
        add x2, x2, x20
        ld1w {{z17.s}}, p0/z, [x2]
        add x3, x3, x20
        ld1w {{z18.s}}, p0/z, [x3]
        add x4, x4, x20
        ld1w {{z19.s}}, p0/z, [x4]
        ldp x5, x6, [x0, #80]
        add x5, x5, x19
        add x6, x6, x19
        add x7, x6, #64
        ldp x1, x2, [x0, #96]
        ldp x3, x4, [x0, #112]
        .irp base, 1, 2, 3, 4
        add x\\base, x\\base, x20
        .endr
        ldr x16, [x0, #128]
        lsr x8, x19, #2
        mul x8, x8, x16
        ",
        rows_of_values!(
            "w12" "0" "4" "8" "12"
            "w13" "16" "20" "24" "28"
            "w14" "32" "36" "40" "44"
            "w15" "48" "52" "56" "60"
        ),
        next_square!(),
        leave!(),
        width = const W,
        codes = const CODES,
        planes = const PLANES,
    )
}
