//! Counted references to cells of the backend, so that sequences and snapshots can share them read-only. A cell is free
//! again when the last reference is gone.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// Free cells of one kind.
#[derive(Debug)]
struct Free(Mutex<BTreeSet<u32>>);

impl Free {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        // A panic while the lock was held cannot have left the set inconsistent.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[derive(Debug)]
struct Held {
    number: u32,
    free: Arc<Free>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let is_new = self.free.lock().insert(self.number);
        debug_assert!(is_new, "cell {} was freed twice", self.number);
    }
}

/// A counted reference to a cell.
#[derive(Clone, Debug)]
pub struct CellRef(Arc<Held>);

impl CellRef {
    /// The cell's number in the backend.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Whether this is the only reference to the cell, so that it may be written.
    pub fn is_exclusive(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// Cells of one kind: pages, or slots.
#[derive(Debug)]
pub struct CellPool {
    free: Arc<Free>,
}

impl CellPool {
    /// A pool of these cells, all free.
    pub fn new(numbers: Range<u32>) -> Self {
        CellPool { free: Arc::new(Free(Mutex::new(numbers.collect()))) }
    }

    /// Free cells.
    pub fn free(&self) -> usize {
        self.free.lock().len()
    }

    /// Whether a cell is one of these.
    pub fn owns(&self, cell: &CellRef) -> bool {
        Arc::ptr_eq(&self.free, &cell.0.free)
    }

    /// Takes the free cell of the lowest number: those of a sequence are consecutive in memory where possible, and
    /// sequential reads are faster.
    pub fn take(&self) -> Option<CellRef> {
        let number = self.free.lock().pop_first()?;
        Some(CellRef(Arc::new(Held { number, free: Arc::clone(&self.free) })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_cell_is_free_when_the_last_reference_is_dropped() {
        let pool = CellPool::new(5..7);
        let cell = pool.take().unwrap();
        let shared = cell.clone();
        assert_eq!((shared.number(), pool.free()), (5, 1));
        assert!(!shared.is_exclusive() && pool.owns(&shared) && !CellPool::new(5..7).owns(&shared));
        drop(cell);
        assert!(shared.is_exclusive());
        assert_eq!(pool.free(), 1);
        drop(shared);
        assert_eq!(pool.free(), 2);
    }
}
