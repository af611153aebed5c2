//! The KV pages of a backend's caches and the lists of them that sequences hold.

use mambo_kernel::PAGE_TOKENS;

use super::pool::{CellPool, CellRef};

/// The pages of one sequence, in position order.
#[derive(Debug, Default)]
pub struct PageList {
    pages: Vec<CellRef>,
    numbers: Vec<u32>,
}

impl PageList {
    /// Page numbers, first positions first.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// The pages themselves.
    pub fn pages(&self) -> &[CellRef] {
        &self.pages
    }

    /// Adds a page at the end.
    pub fn push(&mut self, page: CellRef) {
        self.numbers.push(page.number());
        self.pages.push(page);
    }

    /// Replaces a page and returns the one that was there.
    pub fn replace(&mut self, index: usize, page: CellRef) -> CellRef {
        self.numbers[index] = page.number();
        std::mem::replace(&mut self.pages[index], page)
    }
}

/// The pages of a backend's caches.
#[derive(Debug)]
pub struct KvPages {
    pool: CellPool,
}

impl KvPages {
    /// A pool of `total` pages, all free.
    pub fn new(total: u32) -> Self {
        KvPages { pool: CellPool::new(0..total) }
    }

    /// Pages that hold `tokens` positions.
    pub fn pages_for(tokens: usize) -> usize {
        tokens.div_ceil(PAGE_TOKENS)
    }

    /// Free pages.
    pub fn free(&self) -> usize {
        self.pool.free()
    }

    /// Whether a page is one of these.
    pub fn owns(&self, page: &CellRef) -> bool {
        self.pool.owns(page)
    }

    /// Takes one page.
    pub fn take_one(&self) -> Option<CellRef> {
        self.pool.take()
    }

    /// Takes pages until a list has `count`, or none if there are too few.
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
}
