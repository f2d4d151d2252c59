//! Floats or foreign blocks into planes, and back.
