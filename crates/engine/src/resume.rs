//! Snapshots of running sequences, and sequences that resume from one. Full pages are shared; the last page of a
//! snapshot, which will be written again, is copied.

use std::sync::Arc;

use mambo_kernel::{CacheTypes, Cell, PAGE_TOKENS};

use crate::cache::{KvPages, PageRef};
use crate::engine::{Engine, Event};
use crate::error::EngineError;
use crate::sequence::{Request, Sequence, SequenceId};
use crate::snapshot::{Snapshot, SnapshotPage};

impl Engine {
    /// A copy of a running sequence's memory at the position it has reached; between steps only.
    pub fn snapshot(&mut self, id: SequenceId) -> Result<Snapshot, EngineError> {
        let index = self.idle_sequence(id)?;
        self.capture(index)
    }

    /// The portable form of a snapshot of this engine: bytes that another engine, on any backend, can resume from.
    pub fn export(&mut self, snapshot: &Snapshot) -> Result<Vec<u8>, EngineError> {
        let mut pages = Vec::with_capacity(snapshot.pages.len());
        for page in &snapshot.pages {
            pages.push(match page {
                SnapshotPage::Bytes(bytes) => bytes.to_vec(),
                SnapshotPage::Shared(page) => {
                    self.check_owner(page)?;
                    let mut bytes = Vec::with_capacity(snapshot.page_bytes);
                    self.backend.export_cell(Cell::Page(page.number()), &mut bytes)?;
                    bytes
                }
            });
        }
        Ok(snapshot.to_bytes(&pages))
    }

    fn check_owner(&self, page: &PageRef) -> Result<(), EngineError> {
        if self.pages.owns(page) { Ok(()) } else { Err(EngineError::ForeignSnapshot) }
    }

    /// Takes the snapshot that a request asked for, once, when the sequence reaches its position.
    pub(crate) fn take_snapshot(&mut self, index: usize, position: usize) -> Result<(), EngineError> {
        if self.running[index].request.snapshot_at == Some(position) {
            self.running[index].request.snapshot_at = None;
            let snapshot = Arc::new(self.capture(index)?);
            self.events.push(Event::Snapshot { id: self.running[index].id, snapshot });
        }
        Ok(())
    }

    fn capture(&mut self, index: usize) -> Result<Snapshot, EngineError> {
        let sequence = &self.running[index];
        let position = sequence.slot.position();
        let tokens = (0..position).map(|p| sequence.token(p).expect("what has run was seen")).collect();
        let slot_cell = Cell::Slot { slot: sequence.slot.index(), position: position as u32 };
        let mut slot = Vec::with_capacity(self.layout.cell_bytes(slot_cell));
        self.backend.export_cell(slot_cell, &mut slot)?;
        // Without attention layers, pages hold nothing.
        let count = if self.layout.kv_layers.is_empty() { 0 } else { KvPages::pages_for(position) };
        let held = sequence.pages.pages()[..count].to_vec();
        let mut pages = Vec::with_capacity(held.len());
        for (number, page) in held.into_iter().enumerate() {
            let is_full = (number + 1) * PAGE_TOKENS <= position;
            pages.push(if is_full { SnapshotPage::Shared(page) } else { self.copy_of(&page)? });
        }
        Ok(Snapshot {
            model: self.fingerprint,
            types: self.types(),
            tokens,
            slot,
            pages,
            page_bytes: self.layout.cell_bytes(Cell::Page(0)),
        })
    }

    /// A copy of a page that is still written: another page if one is free, else bytes.
    fn copy_of(&mut self, page: &PageRef) -> Result<SnapshotPage, EngineError> {
        let from = Cell::Page(page.number());
        // Pages that running sequences have reserved are not free, so this takes none of theirs.
        if let Some(copy) = self.pages.take_one() {
            self.backend.copy_cell(from, Cell::Page(copy.number()))?;
            return Ok(SnapshotPage::Shared(copy));
        }
        let mut bytes = Vec::new();
        self.backend.export_cell(from, &mut bytes)?;
        Ok(SnapshotPage::Bytes(bytes.into()))
    }

    fn types(&self) -> CacheTypes {
        CacheTypes { kv: self.config.kv_types, state: self.config.state_elem }
    }

    /// Pages that a request will share with the snapshot it resumes from.
    pub(crate) fn shared_pages(&self, request: &Request) -> usize {
        let Some(snapshot) = request.resume.as_ref().filter(|s| s.begins(&request.prompt)) else { return 0 };
        let full = snapshot.tokens.len() / PAGE_TOKENS;
        let is_ours =
            |page: &&SnapshotPage| matches!(page, SnapshotPage::Shared(page) if self.pages.owns(page));
        snapshot.pages.iter().take(full).filter(is_ours).count()
    }

    /// Starts a sequence from a snapshot, if its prompt continues it.
    pub(crate) fn resume(&mut self, sequence: &mut Sequence, snapshot: &Snapshot) -> Result<(), EngineError> {
        if !snapshot.begins(&sequence.request.prompt) {
            return Ok(());
        }
        if snapshot.model != self.fingerprint {
            return Err(EngineError::SnapshotModel { got: snapshot.model, want: self.fingerprint });
        }
        if snapshot.types != self.types() {
            let text = |types: CacheTypes| {
                format!("keys and values in {} and states in {}", types.kv, types.state.name())
            };
            return Err(EngineError::SnapshotTypes { got: text(snapshot.types), want: text(self.types()) });
        }
        let position = snapshot.tokens.len();
        // Without attention layers, pages hold nothing and the sequence takes its own.
        let page_count = if self.layout.kv_layers.is_empty() { 0 } else { KvPages::pages_for(position) };
        if snapshot.pages.len() != page_count {
            let problem = format!("hold {} pages for {position} tokens", snapshot.pages.len());
            return Err(EngineError::SnapshotBytes(problem));
        }
        for (number, page) in snapshot.pages.iter().enumerate() {
            let is_full = (number + 1) * PAGE_TOKENS <= position;
            let own = self.page_from(page, is_full)?;
            sequence.pages.push(own);
        }
        let slot = Cell::Slot { slot: sequence.slot.index(), position: position as u32 };
        self.backend.import_cell(slot, &snapshot.slot)?;
        sequence.slot.restored_at(position);
        sequence.reused = position;
        sequence.request.snapshot_at = sequence.request.snapshot_at.filter(|at| *at > position);
        Ok(())
    }

    /// A page for a sequence to continue with: shared if it is full, else a copy.
    fn page_from(&mut self, page: &SnapshotPage, is_full: bool) -> Result<PageRef, EngineError> {
        match page {
            SnapshotPage::Shared(page) => {
                self.check_owner(page)?;
                if is_full {
                    return Ok(page.clone());
                }
                let copy = self.pages.take_one().expect("pages were counted");
                self.backend.copy_cell(Cell::Page(page.number()), Cell::Page(copy.number()))?;
                Ok(copy)
            }
            SnapshotPage::Bytes(bytes) => {
                let own = self.pages.take_one().expect("pages were counted");
                self.backend.import_cell(Cell::Page(own.number()), bytes)?;
                Ok(own)
            }
        }
    }

    /// Makes sure that a sequence may write its pages from a position on: shared ones are replaced by copies.
    pub(crate) fn own_pages_from(&mut self, index: usize, position: usize) -> Result<(), EngineError> {
        for number in position / PAGE_TOKENS..self.running[index].pages.pages().len() {
            let page = &self.running[index].pages.pages()[number];
            if page.is_exclusive() {
                continue;
            }
            let from = page.number();
            let free_slots = self.slots.free();
            let copy = self.pages.take_one().ok_or(EngineError::Busy { free_slots, free_pages: 0 })?;
            self.backend.copy_cell(Cell::Page(from), Cell::Page(copy.number()))?;
            self.running[index].pages.replace(number, copy);
        }
        Ok(())
    }
}
