//! The KV pages of a backend's caches and the lists of them that sequences hold: for every group of attention layers a
//! pool, and a list for each sequence.
//!
//! All pages that a sequence will ever need at once are reserved when it starts. Where layers see a window, pages that
//! no token to come can see leave the list and are used again for later positions, so a list holds a bounded number.

use std::collections::VecDeque;

use mambo_kernel::{CacheLayout, KvGroup, NO_PAGE, PAGE_TOKENS};

use super::pool::{CellPool, CellRef};

/// The pages of one sequence in one group, in position order.
#[derive(Debug)]
pub struct PageList {
    /// Nothing where no token to come sees the page.
    pages: Vec<Option<CellRef>>,
    numbers: Vec<u32>,
    /// Entries at the front that hold nothing.
    released: usize,
    /// Reserved pages, in the order in which they are used.
    spare: VecDeque<CellRef>,
    /// Entries when the sequence has reached its limit.
    limit: usize,
    /// Most pages that are needed at once.
    most: usize,
}

impl PageList {
    /// Page numbers, first positions first; [`NO_PAGE`] where none is held.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// A page by its place in the list, if it is held.
    pub fn page(&self, index: usize) -> Option<&CellRef> {
        self.pages.get(index)?.as_ref()
    }

    /// Pages in the list.
    pub fn held(&self) -> usize {
        self.pages.len() - self.released
    }

    /// Adds an entry at the end: a page that was restored, or nothing where none is needed.
    pub fn push(&mut self, page: Option<CellRef>) {
        self.numbers.push(page.as_ref().map_or(NO_PAGE, CellRef::number));
        self.released += usize::from(page.is_none());
        self.pages.push(page);
    }

    /// Replaces a page.
    pub fn replace(&mut self, index: usize, page: CellRef) {
        self.numbers[index] = page.number();
        self.pages[index] = Some(page);
    }

    /// Takes pages from the reserve until the list covers so many tokens.
    fn cover(&mut self, tokens: usize) {
        while self.pages.len() < pages_for(tokens) {
            let page = self.spare.pop_front().expect("pages were reserved");
            self.push(Some(page));
        }
    }

    /// Reserved pages that the sequence needs to reach its limit. Those that leave the list come back to the reserve,
    /// unless a snapshot shares them.
    fn needed_spare(&self, own: usize) -> usize {
        (self.limit - self.pages.len().min(self.limit)).min(self.most.saturating_sub(own))
    }

    /// Pages of the list that nobody shares. Where nothing ever leaves the list it makes no difference.
    fn own(&self) -> usize {
        match self.most {
            usize::MAX => 0,
            _ => self.pages[self.released..].iter().flatten().filter(|page| page.is_exclusive()).count(),
        }
    }

    /// Releases the entries before one. What the reserve does not need goes back to the pool.
    fn release_before(&mut self, first: usize) {
        if self.released >= first {
            return;
        }
        while self.released < first.min(self.pages.len()) {
            self.numbers[self.released] = NO_PAGE;
            let page = self.pages[self.released].take();
            self.spare.extend(page.filter(CellRef::is_exclusive));
            self.released += 1;
        }
        self.spare.truncate(self.needed_spare(self.own()));
    }
}

/// The pages of one group.
#[derive(Debug)]
pub struct GroupPages {
    pool: CellPool,
    group: KvGroup,
    /// Most pages that a sequence needs at once.
    most: usize,
    /// Tokens that a sequence may take back.
    rollback: usize,
}

impl GroupPages {
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

    /// The entries of a list that the memory of a sequence at a position consists of.
    pub fn entries_at(&self, position: usize) -> std::ops::Range<usize> {
        self.group.first_page(position)..pages_for(position)
    }

    /// A list without pages, of a sequence of up to so many tokens.
    pub fn list(&self, limit: usize) -> PageList {
        PageList {
            pages: Vec::new(),
            numbers: Vec::new(),
            released: 0,
            spare: VecDeque::new(),
            limit: pages_for(limit),
            most: self.most,
        }
    }

    /// Pages to take for a sequence of up to so many tokens that goes on from a position with `copies` pages of its own.
    pub fn needed(&self, limit: usize, position: usize, copies: usize) -> usize {
        let later = pages_for(limit).saturating_sub(pages_for(position));
        copies + later.min(self.most.saturating_sub(copies))
    }

    /// Reserves what a list lacks, or nothing if too few pages are free.
    pub fn reserve(&self, list: &mut PageList) -> bool {
        let missing = list.needed_spare(list.own()).saturating_sub(list.spare.len());
        if self.free() < missing {
            return false;
        }
        list.spare.extend((0..missing).map(|_| self.take_one().expect("they were counted")));
        true
    }

    /// Makes a list ready for a step from a position to an end: releases what no token sees any more, not even after a
    /// rollback, and covers the new tokens.
    fn prepare(&self, list: &mut PageList, position: usize, end: usize) {
        list.release_before(self.group.first_page(position.saturating_sub(self.rollback)));
        list.cover(end);
    }

    /// A reference to a page of a list for a snapshot, unless none is free to make up for it: a shared page does not come
    /// back to the reserve.
    pub fn share(&self, list: &mut PageList, index: usize) -> Option<CellRef> {
        let page = list.page(index).expect("a snapshot needs pages that are held").clone();
        // Two references by now, so that it is not counted as the list's own.
        if list.spare.len() < list.needed_spare(list.own()) {
            list.spare.push_back(self.take_one()?);
        }
        Some(page)
    }

    /// A page to put in the place of one that is shared: from the reserve if that has more than enough.
    pub fn take_copy(&self, list: &mut PageList) -> Option<CellRef> {
        let has_more = list.spare.len() > list.needed_spare(list.own() + 1);
        if has_more { list.spare.pop_back() } else { self.take_one() }
    }
}

/// The pages of a backend's caches, by group.
#[derive(Debug)]
pub struct KvPages {
    /// In the layout's order.
    pub groups: Vec<GroupPages>,
}

impl KvPages {
    /// Pools as the layout has them, all free. A sequence needs `most` pages of a group at once, and may take back
    /// `rollback` tokens.
    pub fn new(layout: &CacheLayout, rollback: usize, most: impl Fn(&KvGroup) -> usize) -> Self {
        let group = |group: &KvGroup| GroupPages {
            pool: CellPool::new(0..group.pages as u32),
            most: if group.window.is_some() { most(group) } else { usize::MAX },
            group: group.clone(),
            rollback,
        };
        KvPages { groups: layout.kv_groups.iter().map(group).collect() }
    }

    /// Free pages of all groups.
    pub fn free(&self) -> usize {
        self.groups.iter().map(GroupPages::free).sum()
    }

    /// Free pages of the group that has fewest.
    pub fn fewest_free(&self) -> usize {
        self.groups.iter().map(GroupPages::free).min().unwrap_or(0)
    }

    /// Lists without pages, of a sequence of up to so many tokens.
    pub fn lists(&self, limit: usize) -> SequencePages {
        SequencePages { lists: self.groups.iter().map(|group| group.list(limit)).collect() }
    }

    /// Reserves what a sequence's lists lack; says whether there was enough.
    pub fn reserve(&self, pages: &mut SequencePages) -> bool {
        self.groups.iter().zip(&mut pages.lists).all(|(group, list)| group.reserve(list))
    }

    /// Makes a sequence's lists ready for a step from a position to an end.
    pub fn prepare(&self, pages: &mut SequencePages, position: usize, end: usize) {
        for (group, list) in self.groups.iter().zip(&mut pages.lists) {
            group.prepare(list, position, end);
        }
    }
}

/// The pages of one sequence, by group. All lists have as many entries.
#[derive(Debug, Default)]
pub struct SequencePages {
    /// In the layout's order.
    pub lists: Vec<PageList>,
}

/// Pages that hold `tokens` positions.
pub fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}

/// Most pages that so many consecutive positions lie in, wherever they begin.
pub fn pages_spanned(tokens: usize) -> usize {
    tokens.saturating_add(2 * PAGE_TOKENS - 2) / PAGE_TOKENS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools(window: Option<usize>, pages: usize, most: usize) -> KvPages {
        let kv_groups = vec![KvGroup { window, layers: vec![0], pages }];
        KvPages::new(&CacheLayout { kv_groups, ..Default::default() }, 0, |_| most)
    }

    #[test]
    fn pages_are_taken_whole_and_come_back() {
        let pool = pools(None, 3, 0);
        let mut two = pool.lists(PAGE_TOKENS + 1);
        assert!(pool.reserve(&mut two));
        pool.prepare(&mut two, 0, PAGE_TOKENS + 1);
        assert_eq!((two.lists[0].numbers(), pool.free()), (&[0, 1][..], 1));
        let mut more = pool.lists(PAGE_TOKENS + 1);
        assert!(!pool.reserve(&mut more), "too few pages are not handed out in part");
        assert_eq!(pool.free(), 1);
        drop(two);
        assert_eq!(pool.free(), 3);
    }

    #[test]
    fn a_window_of_pages_is_used_again() {
        let pool = pools(Some(40), 5, 4);
        let mut pages = pool.lists(20 * PAGE_TOKENS);
        assert!(pool.reserve(&mut pages));
        for position in (0..20 * PAGE_TOKENS).step_by(8) {
            pool.prepare(&mut pages, position, position + 8);
            let list = &pages.lists[0];
            assert!(list.held() <= 4 && pool.free() >= 1, "{} pages at {position}", list.held());
            let first = (position + 1).saturating_sub(40) / PAGE_TOKENS;
            let is_right = |(index, number): (usize, &u32)| (*number == NO_PAGE) == (index < first);
            assert!(list.numbers().iter().enumerate().all(is_right), "{:?}", list.numbers());
        }
        assert!(pool.free() > 1, "the last pages need no reserve");
        drop(pages);
        assert_eq!(pool.free(), 5);
    }

    #[test]
    fn a_shared_page_is_made_up_for() {
        let pool = pools(Some(40), 6, 4);
        let mut pages = pool.lists(20 * PAGE_TOKENS);
        assert!(pool.reserve(&mut pages));
        pool.prepare(&mut pages, 0, 2 * PAGE_TOKENS);
        let group = &pool.groups[0];
        let shared = [0, 1].map(|index| group.share(&mut pages.lists[0], index).expect("two are free"));
        assert_eq!(pool.free(), 0);
        assert!(group.share(&mut pages.lists[0], 0).is_some(), "it is shared already");
        pool.prepare(&mut pages, 2 * PAGE_TOKENS, 3 * PAGE_TOKENS);
        assert!(group.share(&mut pages.lists[0], 2).is_none(), "the sequence would run out of pages");
        // The sequence goes on to its limit with the pages it has left.
        for page in 3..20 {
            pool.prepare(&mut pages, page * PAGE_TOKENS, (page + 1) * PAGE_TOKENS);
        }
        drop((pages, shared));
        assert_eq!(pool.free(), 6);
    }

    #[test]
    fn spans_are_counted_at_their_worst() {
        for tokens in 1..200 {
            let worst = (0..PAGE_TOKENS).map(|at| (at + tokens - 1) / PAGE_TOKENS + 1).max();
            assert_eq!(Some(pages_spanned(tokens)), worst);
        }
    }
}
