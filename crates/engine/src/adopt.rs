//! The prefix cache's doors: what it drops can leave as bytes, and what came from elsewhere can move in.

use std::sync::Arc;

use mambo_kernel::{Cell, PAGE_TOKENS};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::memory::human_bytes;
use crate::prefix::{PrefixCache, PrefixCacheStats, Reuse};
use crate::snapshot::{Snapshot, SnapshotCell};

/// A kept prefix that was dropped, in its portable form.
#[derive(Clone, Debug)]
pub struct SpilledPrefix {
    /// The tokens that ran.
    pub tokens: Vec<u32>,
    /// What [`Snapshot::from_bytes`] reads.
    pub bytes: Vec<u8>,
}

/// Shorter prefixes are sooner read again than fetched from where they were put.
const WORTH_SPILLING: usize = 256;

impl Engine {
    /// What the prefix cache holds and how it served; nothing without one.
    pub fn prefix_cache(&self) -> Option<PrefixCacheStats> {
        self.prefix.as_ref().map(PrefixCache::stats)
    }

    /// Drops every kept prefix.
    pub fn clear_prefix_cache(&mut self) {
        if let Some(cache) = &mut self.prefix {
            cache.clear();
        }
    }

    /// What a prompt would take from the prefix cache now.
    pub fn reusable(&self, prompt: &[u32]) -> Reuse {
        self.prefix.as_ref().map(|cache| cache.find(prompt).1).unwrap_or_default()
    }

    /// The kept snapshot after exactly these tokens.
    pub fn kept_snapshot(&self, tokens: &[u32]) -> Option<Arc<Snapshot>> {
        self.prefix.as_ref()?.get(tokens).cloned()
    }

    /// What was dropped since this was last asked, if the configuration wants it.
    pub fn take_spilled(&mut self) -> Vec<SpilledPrefix> {
        std::mem::take(&mut self.spilled)
    }

    /// Gives `each` all kept prefixes that no other one goes on from, until it has enough.
    pub fn spill_kept(&mut self, mut each: impl FnMut(SpilledPrefix) -> bool) -> Result<(), EngineError> {
        let ends = self.prefix.as_ref().map(PrefixCache::ends).unwrap_or_default();
        for snapshot in ends.iter().filter(|snapshot| snapshot.tokens.len() >= WORTH_SPILLING) {
            let bytes = self.export(snapshot)?;
            if !each(SpilledPrefix { tokens: snapshot.tokens.clone(), bytes }) {
                break;
            }
        }
        Ok(())
    }

    /// Puts a snapshot from elsewhere into the prefix cache, so that prompts go on from it like from what was read here.
    pub fn adopt(&mut self, snapshot: Snapshot) -> Result<(), EngineError> {
        self.check_alive()?;
        self.check_snapshot(&snapshot)?;
        let Some(cache) = self.config.prefix_cache else { return Err(EngineError::NoPrefixCache) };
        let need = snapshot.bytes() as u64;
        if need > cache.bytes {
            let [need, budget] = [need, cache.bytes].map(human_bytes);
            return Err(EngineError::PrefixCacheTooSmall { need, budget });
        }
        let adopted = self.adopted(snapshot);
        let adopted = self.noting_loss(adopted)?;
        self.keep_prefix(Arc::new(adopted));
        Ok(())
    }

    /// The same snapshot with its full pages in the engine's pool, where sequences can share them.
    fn adopted(&mut self, mut snapshot: Snapshot) -> Result<Snapshot, EngineError> {
        let last = if snapshot.tokens.len().is_multiple_of(PAGE_TOKENS) { 0 } else { 1 };
        for (index, group) in snapshot.groups.iter_mut().enumerate() {
            let full = group.pages.len().saturating_sub(last);
            for page in &mut group.pages[..full] {
                let SnapshotCell::Bytes(bytes) = page else { continue };
                let Some(own) = self.pages.groups[index].take_one() else { break };
                let cell = Cell::Page { group: index as u32, page: own.number() };
                self.backend.import_cell(cell, bytes)?;
                *page = SnapshotCell::Shared(own);
            }
        }
        Ok(snapshot)
    }

    /// Refuses a snapshot that is not of this model, of these cache types or of these sizes.
    pub(crate) fn check_snapshot(&self, snapshot: &Snapshot) -> Result<(), EngineError> {
        if snapshot.model != self.fingerprint {
            return Err(EngineError::SnapshotModel { got: snapshot.model, want: self.fingerprint });
        }
        if snapshot.types != self.types() {
            let [got, want] = [snapshot.types, self.types()]
                .map(|types| format!("keys and values in {} and states in {}", types.kv, types.state.name()));
            return Err(EngineError::SnapshotTypes { got, want });
        }
        self.check_tokens(&snapshot.tokens)?;
        let position = snapshot.tokens.len();
        let slot = self.layout.cell_bytes(Cell::Slot { slot: 0, position: position as u32 });
        if snapshot.slot_bytes != slot {
            let problem = format!("hold {} bytes of state, where this model has {slot}", snapshot.slot_bytes);
            return Err(EngineError::SnapshotBytes(problem));
        }
        let groups = self.pages.groups.iter().enumerate();
        let want: Vec<_> =
            groups.map(|(i, group)| (group.entries_at(position).len(), self.layout.page_bytes(i))).collect();
        let got: Vec<_> = snapshot.groups.iter().map(|group| (group.pages.len(), group.page_bytes)).collect();
        if got != want {
            let problem = format!(
                "hold {} for {position} tokens, where this model has {}",
                pages_text(&got),
                pages_text(&want)
            );
            return Err(EngineError::SnapshotBytes(problem));
        }
        Ok(())
    }

    /// Puts a snapshot into the prefix cache, and drops what is worth least where there is no room for all; itself last,
    /// because a prompt may be about to use it.
    pub(crate) fn keep_prefix(&mut self, snapshot: Arc<Snapshot>) {
        let Some(cache) = &mut self.prefix else { return };
        cache.insert(Arc::clone(&snapshot));
        while self.prefix.as_ref().is_some_and(PrefixCache::is_over_budget)
            && self.drop_prefix(&snapshot.tokens)
        {}
    }

    /// Drops the kept prefix that is worth least, the one after `spared` last; says whether there was one.
    pub(crate) fn drop_prefix(&mut self, spared: &[u32]) -> bool {
        let Some(snapshot) = self.prefix.as_mut().and_then(|cache| cache.evict(spared)) else { return false };
        if snapshot.tokens.len() >= WORTH_SPILLING && self.has_room_to_spill() {
            // Exported now and not later: its pages may be needed for a sequence that starts.
            match self.export(&snapshot) {
                Ok(bytes) => self.spilled.push(SpilledPrefix { tokens: snapshot.tokens.clone(), bytes }),
                Err(error) => self.note_loss(&error),
            }
        }
        true
    }

    /// Whether what was spilled and not taken leaves room for more: half of what the cache itself may hold.
    fn has_room_to_spill(&self) -> bool {
        let held: u64 = self.spilled.iter().map(|spilled| spilled.bytes.len() as u64).sum();
        self.config.prefix_cache.is_some_and(|cache| cache.spills && held < cache.bytes / 2)
    }
}

/// Pages and their bytes, by group.
fn pages_text(groups: &[(usize, usize)]) -> String {
    let groups: Vec<String> =
        groups.iter().map(|(pages, bytes)| format!("{pages} pages of {bytes} bytes")).collect();
    if groups.is_empty() { "no pages".to_owned() } else { groups.join(", ") }
}
