//! The contract between the compiler and the machines: ops, programs, caches, backends.
//!
//! Every op has its formula, tolerance, hard cases and plain reference under `ops/`; the reference is
//! itself a complete, slow backend. Nothing here knows models, graphs, files or text.

mod backend;
mod cache;
mod cache_elem;
pub mod case;
mod digest;
mod infer;
mod op;
pub mod ops;
mod program;
mod reference;
pub mod rounding;
mod step;
mod value;

pub use backend::{
    Backend, BackendError, CallTime, KernelRow, ProgramId, Site, WeightError, WeightPart, WeightSource,
};
pub use cache::{CacheLayout, PAGE_TOKENS, Rollback, SSM_CHUNK, SlotLayout};
pub use cache_elem::{KvElem, KvScale, KvTypes, StateElem};
pub use digest::Digest;
pub use op::{AttentionDims, CacheKind, Epilogue, Op, OpKind, RouteDims, SsmDims, WeightPort, WeightUse};
pub use program::{Call, Operand, Output, Phase, Place, Program, WeightKey};
pub use reference::ReferenceBackend;
pub use step::{Segment, StepInputs};
pub use value::{
    BF16X2_COLS, BF16X2_LEAST, Elem, Q8_ANCHOR, Q8_BLOCK, Q8_BLOCK_BYTES, ROW_ALIGN, RowBase, Rows, ValueType,
};
