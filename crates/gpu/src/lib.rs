//! Models on the GPU.
//!
//! ```text
//! Model<GpuBackend<E>> --ops--> Plan (shaders, bindings, sizes: plain data) --Executor--> logits, or the largest of them
//! ```
//!
//! [`GpuBackend`] turns the ops of a forward pass into a [`Plan`] and hands it to an [`Executor`] when results are
//! wanted. A plan names neither the position nor the token, so that the plan of a token is that of the last one: an
//! executor keeps it ready. The planes of an artifact are read as they lie.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod attention;
mod attention_input;
mod backend;
mod dry;
mod executor;
mod kept;
mod kernels;
mod memory;
#[cfg(not(target_family = "wasm"))]
mod native;
mod plan;
mod products;
mod shader;
mod top_k;
mod tuning;

pub use attention::AttentionTile;
pub use backend::GpuBackend;
pub use dry::Dry;
pub use executor::{Executor, MAX_BINDING};
pub use kept::Kept;
pub use kernels::{Extensions, Features, Forms, Kernels, Products};
pub use memory::{Kv, Matrix, Rope, Tensor, Vector};
#[cfg(not(target_family = "wasm"))]
pub use native::Native;
pub use plan::{BufferId, Cost, Dispatch, Plan};
pub use shader::{Shader, Tile};
pub use top_k::TopKRound;
pub use tuning::{Choice, Key, Origin, Record, Trial, Tuning};
