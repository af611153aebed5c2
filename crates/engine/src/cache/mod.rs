//! Allocation of KV pages and recurrent slots: two types with two budgets. The memory itself is the
//! backend's.

mod kv;
mod pool;
mod state;

pub use kv::{GroupPages, KvPages, PageList, SequencePages, pages_for, pages_spanned};
pub use pool::{CellPool, CellRef};
pub use state::{Slot, StateSlots};
