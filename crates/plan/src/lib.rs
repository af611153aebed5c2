//! The plan stage: a graph and a backend's kernel rows become a `Program` over planned memory, and a
//! text that shows its calls, the bytes they must move and how long they took.
//!
//! Only this crate knows both ops in a graph and kernel rows. It never sees a tensor's contents.

mod error;
mod explain;
mod kernels;
mod lower;
mod measured;
mod memory;
mod overlap;

pub use error::{NoKernel, PlanError};
pub use explain::plan_text;
pub use kernels::Kernels;
pub use lower::{LowerOptions, lower};
pub use measured::{LayerKind, Measured, layer_kinds};
pub use memory::{Interval, MemoryPlan, plan_memory};
