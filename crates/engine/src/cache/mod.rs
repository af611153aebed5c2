//! Allocation of KV pages and recurrent slots: two types with two budgets. The memory itself is the
//! backend's.

mod kv;
mod state;

pub use kv::{KvPages, PageList, PageRef};
pub use state::{Slot, StateSlots};
