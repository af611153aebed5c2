//! The contract between the compiler and the machines: ops, programs, caches, backends.
//!
//! Every op has its formula, tolerance, hard cases and plain reference under `ops/`; the reference is
//! itself a complete, slow backend. Nothing here knows models, graphs, files or text.

mod backend;
mod cache;
mod cache_elem;
pub mod case;
mod cell;
pub mod check;
mod cost;
mod digest;
mod dims;
mod infer;
mod maybe_send;
mod op;
pub mod ops;
mod overlap;
mod program;
mod reference;
mod rope;
pub mod rounding;
mod step;
mod value;

pub use backend::{
    Accepts, Arithmetic, Backend, BackendError, CacheTypes, CallTime, KernelRow, MemoryBudget, ProgramId,
    Rounds, Site, Ticket, Wait, WeightError, WeightPart, WeightSource,
};
pub use cache::{CacheLayout, KvGroup, PAGE_TOKENS, Rollback, SSM_CHUNK, SlotLayout};
pub use cache_elem::{KvElem, KvScale, KvTypes, StateElem};
pub use cell::Cell;
pub use cost::{CallCost, CallWork, StepShape, program_cost};
pub use digest::Digest;
pub use dims::{Activation, Attention, AttentionDims, RouteDims, Scoring, SsmDims};
pub use infer::MAX_SIZE;
pub use maybe_send::MaybeSend;
pub use op::{CacheKind, Epilogue, Op, OpKind, WeightPort, WeightUse};
pub use overlap::Touched;
pub use program::{Call, Operand, Output, Phase, Place, Program, WeightKey};
pub use reference::ReferenceBackend;
pub use rope::{Rope, RopePairs, RopeScaling};
pub use step::{
    Adjustment, CHOICES_KEPT, CHOSEN, ChooseInputs, ChooseRow, Fetch, HiddenRows, MaskSource, Masks, NO_PAGE,
    NO_TOKEN, Segment, StepInputs, StepResults, mask_words,
};
pub use value::{Elem, PrivateElem, ROW_ALIGN, RowBase, Rows, ValueType};
