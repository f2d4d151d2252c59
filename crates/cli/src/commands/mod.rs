//! One file a command.

pub mod bench;
pub mod chat;
pub mod compare;
pub mod compare_logits;
pub mod export;
pub mod inspect;
pub mod pack;
pub mod parity;
pub mod perplexity;
pub mod run;
pub mod tokenize;
