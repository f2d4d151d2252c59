#![forbid(unsafe_code)]
//! Language models over a lowbit backend.
