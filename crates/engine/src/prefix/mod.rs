//! The prefix cache: snapshots of prompts and answers in a radix tree over their tokens, so that what was read once is
//! not read again. A hybrid model can only go on from a position whose state was kept, so the cache also decides where
//! to keep states: where prompts branched, where turns end, and every so many tokens.
//!
//! Snapshots share KV pages, which are counted once. What goes first is what costs least to compute again for the bytes
//! it frees, measured from when it was last used (GreedyDual-Size).

mod marks;
mod tree;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

pub(crate) use marks::{Marks, WORTH_WAITING};
pub use tree::common_prefix;
use tree::{NodeId, RadixTree};

use crate::snapshot::{Snapshot, SnapshotCell, SnapshotPages};

/// How much the cache may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixCacheConfig {
    /// Bytes of states and pages together.
    pub bytes: u64,
    /// Keep a state every so many tokens of a prompt; none derives it from what a state costs.
    pub every: Option<usize>,
    /// Whether what is dropped for want of room is exported, for [`crate::Engine::take_spilled`].
    pub spills: bool,
}

/// What a request took from the cache, and where the match ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Prompt tokens that were restored instead of run.
    pub tokens: usize,
    /// Prompt tokens that the cache knows.
    pub known: usize,
    /// Why no more were restored.
    pub ended: MatchEnd,
}

/// Why a match ended where it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MatchEnd {
    /// There is no cache, or it was not asked.
    #[default]
    Unasked,
    /// Nothing that the cache knows starts like the prompt.
    Unknown,
    /// The prompt goes on differently from all that the cache knows.
    Diverged,
    /// All of the prompt is known; its last token always runs.
    Whole,
}

impl fmt::Display for Reuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reuse { tokens, known, ended } = self;
        match ended {
            MatchEnd::Unasked => write!(f, "{tokens} tokens restored; the prefix cache was not asked"),
            MatchEnd::Unknown => f.write_str("no tokens restored: nothing known starts like this prompt"),
            MatchEnd::Diverged => write!(
                f,
                "{tokens} tokens restored: the prompt leaves what is known after {known}, and the last state before that is at {tokens}"
            ),
            MatchEnd::Whole => write!(f, "{tokens} tokens restored: all of the prompt's {known} are known"),
        }
    }
}

/// Counters of the cache since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCacheStats {
    /// Prompts that were looked up.
    pub lookups: u64,
    /// Of those, prompts of which something was restored.
    pub hits: u64,
    /// Prompt tokens that were looked up.
    pub prompt_tokens: u64,
    /// Of those, tokens that were restored.
    pub restored_tokens: u64,
    /// Snapshots that were dropped to make room.
    pub evicted: u64,
    /// Snapshots held.
    pub snapshots: usize,
    /// Bytes held.
    pub bytes: u64,
}

struct Entry {
    snapshot: Arc<Snapshot>,
    /// The cache's clock when it was last used.
    used: f64,
}

/// Snapshots by their tokens.
pub(crate) struct PrefixCache {
    tree: RadixTree<Entry>,
    budget: u64,
    pub every: usize,
    /// How many snapshots hold each page of the engine's pools, by group and number.
    pages: HashMap<(usize, u32), usize>,
    /// Rises to the worth of what was dropped last.
    clock: f64,
    stats: PrefixCacheStats,
}

impl PrefixCache {
    /// An empty cache.
    pub fn new(budget: u64, every: usize) -> Self {
        PrefixCache {
            tree: RadixTree::new(),
            budget,
            every: every.max(1),
            pages: HashMap::new(),
            clock: 0.0,
            stats: PrefixCacheStats::default(),
        }
    }

    /// Counters, and what is held now.
    pub fn stats(&self) -> PrefixCacheStats {
        self.stats
    }

    /// The longest kept beginning of a prompt that leaves at least one token to run.
    pub fn find(&self, prompt: &[u32]) -> (Option<Arc<Snapshot>>, Reuse) {
        let found = self.tree.find(prompt);
        let node = found.valued.iter().rev().find(|id| self.tree.depth(**id) < prompt.len());
        let ended = match found.known {
            0 => MatchEnd::Unknown,
            known if known == prompt.len() => MatchEnd::Whole,
            _ => MatchEnd::Diverged,
        };
        let tokens = node.map_or(0, |id| self.tree.depth(*id));
        let snapshot = node.map(|id| Arc::clone(&self.entry(*id).snapshot));
        (snapshot, Reuse { tokens, known: found.known, ended })
    }

    /// Notes what became of a prompt that was looked up.
    pub fn note(&mut self, prompt: &[u32], reuse: Reuse) {
        self.stats.lookups += 1;
        self.stats.hits += u64::from(reuse.tokens > 0);
        self.stats.prompt_tokens += prompt.len() as u64;
        self.stats.restored_tokens += reuse.tokens as u64;
        let clock = self.clock;
        for id in self.tree.find(&prompt[..reuse.tokens]).valued {
            if let Some(entry) = self.tree.value_mut(id) {
                entry.used = clock;
            }
        }
    }

    /// Whether the state after these tokens is kept.
    pub fn holds(&self, tokens: &[u32]) -> bool {
        self.get(tokens).is_some()
    }

    /// The snapshot after exactly these tokens.
    pub fn get(&self, tokens: &[u32]) -> Option<&Arc<Snapshot>> {
        let node = *self.tree.find(tokens).valued.last()?;
        Some(&self.entry(node).snapshot).filter(|_| self.tree.depth(node) == tokens.len())
    }

    /// Snapshots that no other one goes on from.
    pub fn ends(&self) -> Vec<Arc<Snapshot>> {
        let ends = self.tree.valued().filter(|id| !self.tree.has_children(*id));
        ends.map(|id| Arc::clone(&self.entry(id).snapshot)).collect()
    }

    /// Whether more is held than may be.
    pub fn is_over_budget(&self) -> bool {
        self.stats.bytes > self.budget
    }

    /// Keeps a snapshot; what is worth least has to go where there is no room for all.
    pub fn insert(&mut self, snapshot: Arc<Snapshot>) {
        if self.holds(snapshot.tokens()) {
            return;
        }
        self.stats.bytes += self.count_pages(&snapshot, true) + snapshot.slot_bytes as u64;
        self.stats.snapshots += 1;
        let node = self.tree.insert(snapshot.tokens());
        *self.tree.value_mut(node) = Some(Entry { snapshot, used: self.clock });
    }

    /// Takes the snapshot out that is worth least; the one after `spared` only if it is the last.
    pub fn evict(&mut self, spared: &[u32]) -> Option<Arc<Snapshot>> {
        let spared =
            self.tree.find(spared).valued.last().copied().filter(|id| self.tree.depth(*id) == spared.len());
        let worth = |id: &NodeId| if Some(*id) == spared { f64::INFINITY } else { self.worth(*id) };
        let least = self.tree.valued().min_by(|a, b| worth(a).total_cmp(&worth(b)))?;
        self.clock = self.clock.max(self.worth(least));
        let entry = self.tree.remove(least).expect("it holds a value");
        self.stats.bytes -= self.count_pages(&entry.snapshot, false) + entry.snapshot.slot_bytes as u64;
        self.stats.snapshots -= 1;
        self.stats.evicted += 1;
        Some(entry.snapshot)
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        while self.evict(&[]).is_some() {}
    }

    fn entry(&self, id: NodeId) -> &Entry {
        self.tree.value(id).expect("it holds a value")
    }

    /// Tokens that would have to run again without a snapshot, for each byte that dropping it frees, on top of the
    /// clock when it was last used.
    fn worth(&self, id: NodeId) -> f64 {
        let entry = self.entry(id);
        let tokens = self.tree.depth(id) - self.tree.depth_above(id);
        let own = |(index, group): (usize, &SnapshotPages)| {
            let is_own = |page: &&SnapshotCell| match page {
                SnapshotCell::Shared(page) => self.pages.get(&(index, page.number())) == Some(&1),
                SnapshotCell::Bytes(_) => true,
            };
            group.pages.iter().filter(is_own).count() * group.page_bytes
        };
        let pages: usize = entry.snapshot.groups.iter().enumerate().map(own).sum();
        let bytes = entry.snapshot.slot_bytes + pages;
        entry.used + tokens as f64 / bytes.max(1) as f64
    }

    /// Counts a snapshot's pages in or out; the bytes of those that no other snapshot holds.
    fn count_pages(&mut self, snapshot: &Snapshot, adds: bool) -> u64 {
        let mut bytes = 0;
        for (index, group) in snapshot.groups.iter().enumerate() {
            for page in &group.pages {
                let is_only = match page {
                    SnapshotCell::Bytes(_) => true,
                    SnapshotCell::Shared(page) => self.count_page((index, page.number()), adds),
                };
                bytes += if is_only { group.page_bytes as u64 } else { 0 };
            }
        }
        bytes
    }

    /// Counts a page in or out; whether no other snapshot holds it.
    fn count_page(&mut self, page: (usize, u32), adds: bool) -> bool {
        let count = self.pages.entry(page).or_default();
        *count = if adds { *count + 1 } else { *count - 1 };
        let is_only = *count == usize::from(adds);
        if *count == 0 {
            self.pages.remove(&page);
        }
        is_only
    }
}
