//! The pool of KV pages: which are free and which belong to whom.

use mambo_kernel::PAGE_TOKENS;

/// The pages of one sequence, in position order.
#[derive(Debug, Default)]
pub struct PageList(Vec<u32>);

impl PageList {
    /// Page numbers, first positions first.
    pub fn pages(&self) -> &[u32] {
        &self.0
    }
}

/// Free pages of the pool.
#[derive(Debug)]
pub struct KvPages {
    /// In falling order.
    free: Vec<u32>,
    total: usize,
}

impl KvPages {
    /// A pool of `total` pages, all free.
    pub fn new(total: usize) -> Self {
        KvPages { free: (0..total as u32).rev().collect(), total }
    }

    /// Pages that hold `tokens` positions.
    pub fn pages_for(tokens: usize) -> usize {
        tokens.div_ceil(PAGE_TOKENS)
    }

    /// Pages nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes pages for `tokens` positions, or nothing if there are too few. Neighbours in the sequence are neighbours
    /// in memory where that can be: long streams are read faster.
    pub fn take(&mut self, tokens: usize) -> Option<PageList> {
        let rest = self.free.len().checked_sub(Self::pages_for(tokens))?;
        Some(PageList(self.free.drain(rest..).rev().collect()))
    }

    /// Gives a sequence's pages back.
    pub fn give_back(&mut self, list: PageList) {
        self.free.extend(list.0.into_iter().rev());
        // Two runs that are sorted already, as a rule: this sort only merges them.
        self.free.sort_by(|a, b| b.cmp(a));
        debug_assert!(self.free.len() <= self.total, "a page was given back twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_whole_and_come_back() {
        let mut pool = KvPages::new(3);
        let two = pool.take(PAGE_TOKENS + 1).unwrap();
        assert_eq!((two.pages(), pool.free()), (&[0, 1][..], 1));
        assert!(pool.take(PAGE_TOKENS + 1).is_none(), "too few pages are not handed out in part");
        assert_eq!(pool.free(), 1);
        pool.give_back(two);
        assert_eq!(pool.free(), 3);
        let one_each = [1, 1, 1].map(|tokens| pool.take(tokens).unwrap());
        one_each.into_iter().for_each(|list| pool.give_back(list));
        assert_eq!(pool.take(3 * PAGE_TOKENS).unwrap().pages(), [0, 1, 2]);
    }
}
