//! Assembly that the kernels of SME share.
//!
//! Registers: `x0` operands, `x1` codes of rows, `x2` codes of columns, `x9`..`x11` and `x21`..`x24` 64 to 448, `w12`..`w15` the
//! rows 0, 4, 8 and 12 of a square of `ZA`, `x19` and `x20` the bytes before the square's rows and columns, `p0` and `p1` as
//! many words and bytes as a square is wide.

/// How codes of columns become bytes.
pub(super) mod codes {
    /// They are signed bytes.
    pub const BYTES: usize = 0;
    /// Unsigned nibbles.
    pub const NIBBLES: usize = 1;
    /// Nibbles that stand for `16 * (code - 8)`: cheaper than to subtract.
    pub const NIBBLES_TIMES_16: usize = 2;
}

/// Keeps what a caller wants back, enters streaming mode with `ZA`, and sets up what all kernels share. The assembler knows no
/// more than `$version`.
macro_rules! enter {
    ($version:literal) => {
        concat!(".arch_extension ", $version, "
        stp x19, x20, [sp, #-128]!
        stp x21, x22, [sp, #16]
        stp x23, x24, [sp, #32]
        stp x25, x26, [sp, #48]
        stp d8, d9, [sp, #64]
        stp d10, d11, [sp, #80]
        stp d12, d13, [sp, #96]
        stp d14, d15, [sp, #112]
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
        ")
    };
}

/// The reverse of [`enter`].
macro_rules! leave {
    () => {
        "
        smstop
        ldp d14, d15, [sp, #112]
        ldp d12, d13, [sp, #96]
        ldp d10, d11, [sp, #80]
        ldp d8, d9, [sp, #64]
        ldp x25, x26, [sp, #48]
        ldp x23, x24, [sp, #32]
        ldp x21, x22, [sp, #16]
        ldp x19, x20, [sp], #128
        .arch_extension nosme2
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
            mov ", $first, ".b, #15
            .elseif {codes} == 2
            mov ", $first, ".b, #0x88
            mov ", $second, ".b, #0xf0
            .endif
            "
        )
    };
}

/// The nibbles `$from`: of 4 `k` into `$low`, of the next 4 into `$high`, by these masks.
macro_rules! unpack {
    ($from:literal, $low:literal, $high:literal, $first:literal, $second:literal) => {
        concat!(
            "
            .if {codes} == 1
            and ", $low, ".d, ", $from, ".d, ", $first, ".d
            lsr ", $high, ".b, ", $from, ".b, #4
            .else
            eor ", $from, ".d, ", $from, ".d, ", $first, ".d
            lsl ", $low, ".b, ", $from, ".b, #4
            and ", $high, ".d, ", $from, ".d, ", $second, ".d
            .endif
            "
        )
    };
}

/// The end of the loops over squares, from the labels 20 (rows) and 30 (columns).
macro_rules! next_square {
    () => {
        "
        add x20, x20, #4 * {width}
        cmp x20, #64
        b.lo 30b
        add x19, x19, #4 * {width}
        cmp x19, #64
        b.lo 20b
        "
    };
}

/// Moves `x2`..`x5`, codes of columns, to the next block.
macro_rules! next_codes {
    () => {
        "
        .irp base, 2, 3, 4, 5
        .if {codes} == 0
        add x\\base, x\\base, #512
        .else
        add x\\base, x\\base, #256
        .endif
        .endr
        "
    };
}
