//! The graph stage: a model as ops in SSA form, checked, printable, and rewritten by small passes.
//!
//! Ops and their types come from `kernel`; what a model is, which kernels exist and where values lie in
//! memory are other crates' business.

mod builder;
mod error;
mod graph;
mod infer;
mod observe;
mod op_text;
mod parse;
pub mod passes;
mod print;
mod verify;

pub use builder::GraphBuilder;
pub use error::GraphError;
pub use graph::{Graph, Input, Node, ValueId, WeightDecl, WeightId};
pub use observe::{Observed, ObservedExperts};
