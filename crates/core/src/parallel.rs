//! The team of threads: the only code that knows about threads.
