//! The pool of KV pages: counted references, so that sequences and snapshots can share a page read-only. A page is
//! free again when the last reference is gone.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use mambo_kernel::PAGE_TOKENS;

/// Free pages of one engine.
#[derive(Debug)]
struct Pool {
    free: Mutex<BTreeSet<u32>>,
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        // A panic while the lock was held cannot have left the set inconsistent.
        self.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[derive(Debug)]
struct Page {
    number: u32,
    pool: Arc<Pool>,
}

impl Drop for Page {
    fn drop(&mut self) {
        let is_new = self.pool.lock().insert(self.number);
        debug_assert!(is_new, "page {} was freed twice", self.number);
    }
}

/// A counted reference to a page.
#[derive(Clone, Debug)]
pub struct PageRef(Arc<Page>);

impl PageRef {
    /// The page's number in the backend.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Whether this is the only reference to the page, so that it may be written.
    pub fn is_exclusive(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// The pages of one sequence, in position order.
#[derive(Debug, Default)]
pub struct PageList {
    pages: Vec<PageRef>,
    numbers: Vec<u32>,
}

impl PageList {
    /// Page numbers, first positions first.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// The pages themselves.
    pub fn pages(&self) -> &[PageRef] {
        &self.pages
    }

    /// Adds a page at the end.
    pub fn push(&mut self, page: PageRef) {
        self.numbers.push(page.number());
        self.pages.push(page);
    }

    /// Replaces a page and returns the one that was there.
    pub fn replace(&mut self, index: usize, page: PageRef) -> PageRef {
        self.numbers[index] = page.number();
        std::mem::replace(&mut self.pages[index], page)
    }
}

/// The pages of a backend's caches.
#[derive(Debug)]
pub struct KvPages {
    pool: Arc<Pool>,
}

impl KvPages {
    /// A pool of `total` pages, all free.
    pub fn new(total: usize) -> Self {
        KvPages { pool: Arc::new(Pool { free: Mutex::new((0..total as u32).collect()) }) }
    }

    /// Pages that hold `tokens` positions.
    pub fn pages_for(tokens: usize) -> usize {
        tokens.div_ceil(PAGE_TOKENS)
    }

    /// Free pages.
    pub fn free(&self) -> usize {
        self.pool.lock().len()
    }

    /// Whether a page is one of these.
    pub fn owns(&self, page: &PageRef) -> bool {
        Arc::ptr_eq(&self.pool, &page.0.pool)
    }

    /// Takes one page.
    pub fn take_one(&self) -> Option<PageRef> {
        let number = self.pool.lock().pop_first()?;
        Some(PageRef(Arc::new(Page { number, pool: Arc::clone(&self.pool) })))
    }

    /// Takes pages until a list has `count`, or none if there are too few. Consecutive pages of a sequence are
    /// consecutive in memory where possible: sequential reads are faster.
    pub fn extend(&self, list: &mut PageList, count: usize) -> bool {
        let missing = count.saturating_sub(list.pages.len());
        if self.free() < missing {
            return false;
        }
        (0..missing).for_each(|_| list.push(self.take_one().expect("they were counted")));
        true
    }

    /// Takes pages for `tokens` positions, or nothing if there are too few.
    pub fn take(&self, tokens: usize) -> Option<PageList> {
        let mut list = PageList::default();
        self.extend(&mut list, Self::pages_for(tokens)).then_some(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_whole_and_come_back() {
        let pool = KvPages::new(3);
        let two = pool.take(PAGE_TOKENS + 1).unwrap();
        assert_eq!((two.numbers(), pool.free()), (&[0, 1][..], 1));
        assert!(pool.take(PAGE_TOKENS + 1).is_none(), "too few pages are not handed out in part");
        assert_eq!(pool.free(), 1);
        drop(two);
        assert_eq!(pool.free(), 3);
        let one_each = [1, 1, 1].map(|tokens| pool.take(tokens).unwrap());
        drop(one_each);
        assert_eq!(pool.take(3 * PAGE_TOKENS).unwrap().numbers(), [0, 1, 2]);
    }

    #[test]
    fn a_shared_page_is_free_when_the_last_reference_is_dropped() {
        let pool = KvPages::new(2);
        let list = pool.take(1).unwrap();
        let shared = list.pages()[0].clone();
        assert!(!shared.is_exclusive() && pool.owns(&shared) && !KvPages::new(2).owns(&shared));
        drop(list);
        assert!(shared.is_exclusive());
        assert_eq!(pool.free(), 1);
        drop(shared);
        assert_eq!(pool.free(), 2);
    }
}
