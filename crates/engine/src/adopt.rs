//! The prefix cache's doors: what it drops can leave as bytes, and what came from elsewhere can move in.

use std::sync::Arc;

use mambo_kernel::{Cell, PAGE_TOKENS};

use crate::cache::KvPages;
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
        let full = snapshot.tokens.len() / PAGE_TOKENS;
        for page in snapshot.pages.iter_mut().take(full) {
            let SnapshotCell::Bytes(bytes) = page else { continue };
            let Some(own) = self.pages.take_one() else { break };
            self.backend.import_cell(Cell::Page(own.number()), bytes)?;
            *page = SnapshotCell::Shared(own);
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
        // Without attention layers, pages hold nothing and a sequence takes its own.
        let pages = if self.layout.kv_layers.is_empty() { 0 } else { KvPages::pages_for(position) };
        if snapshot.pages.len() != pages {
            let problem = format!("hold {} pages for {position} tokens", snapshot.pages.len());
            return Err(EngineError::SnapshotBytes(problem));
        }
        let slot = Cell::Slot { slot: 0, position: position as u32 };
        let wanted = (self.layout.cell_bytes(slot), self.layout.cell_bytes(Cell::Page(0)));
        if (snapshot.slot_bytes, snapshot.page_bytes) != wanted {
            let problem = format!(
                "hold {} bytes of state and pages of {}, where this model has {} and {}",
                snapshot.slot_bytes, snapshot.page_bytes, wanted.0, wanted.1
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
