#![forbid(unsafe_code)]
//! The `lowbit` command line.

fn main() {}
