//! Snapshots of running sequences, and sequences that resume from one. Full pages are shared; slots, and the last page
//! of a snapshot, which will be written again, are copied.

use std::sync::Arc;

use mambo_kernel::{CacheTypes, Cell, PAGE_TOKENS};

use crate::cache::{CellRef, KvPages};
use crate::engine::{Engine, Event};
use crate::error::EngineError;
use crate::sequence::{Sequence, SequenceId};
use crate::snapshot::{Snapshot, SnapshotCell};

impl Engine {
    /// A copy of a running sequence's memory at the position it has reached; between steps only.
    pub fn snapshot(&mut self, id: SequenceId) -> Result<Snapshot, EngineError> {
        let index = self.idle_sequence(id)?;
        let snapshot = self.capture(index);
        self.noting_loss(snapshot)
    }

    /// Takes the snapshots that a request and the prefix cache asked for, once, when the sequence reaches their position.
    pub(crate) fn take_snapshot(&mut self, index: usize, position: usize) -> Result<(), EngineError> {
        if self.running[index].request.snapshot_at == Some(position) {
            self.running[index].request.snapshot_at = None;
            let snapshot = Arc::new(self.capture(index)?);
            self.events.push(Event::Snapshot { id: self.running[index].id, snapshot });
        }
        if self.running[index].marks.take(position) {
            self.keep(index, position);
        }
        Ok(())
    }

    pub(crate) fn capture(&mut self, index: usize) -> Result<Snapshot, EngineError> {
        let sequence = &self.running[index];
        let position = sequence.slot.position();
        let tokens = (0..position).map(|p| sequence.token(p).expect("what has run was seen")).collect();
        let slot = sequence.slot.index();
        // Without attention layers, pages hold nothing.
        let count = if self.layout.kv_layers.is_empty() { 0 } else { KvPages::pages_for(position) };
        let held = sequence.pages.pages()[..count].to_vec();
        let mut pages = Vec::with_capacity(held.len());
        for (number, page) in held.into_iter().enumerate() {
            let is_full = (number + 1) * PAGE_TOKENS <= position;
            pages.push(if is_full { SnapshotCell::Shared(page) } else { self.copy_of_page(&page)? });
        }
        let slot = self.copy_of_slot(slot, position as u32)?;
        Ok(Snapshot {
            model: self.fingerprint,
            types: self.types(),
            tokens,
            slot,
            slot_bytes: self.layout.cell_bytes(Cell::Slot { slot: 0, position: position as u32 }),
            pages,
            page_bytes: self.layout.cell_bytes(Cell::Page(0)),
        })
    }

    /// A copy of a page that is still written: another page if one is free, else bytes.
    fn copy_of_page(&mut self, page: &CellRef) -> Result<SnapshotCell, EngineError> {
        // Pages that running sequences have reserved are not free, so this takes none of theirs.
        let copy = self.pages.take_one();
        self.copy_of(Cell::Page(page.number()), copy, Cell::Page)
    }

    /// A copy of a slot: another slot if one is free, else bytes.
    fn copy_of_slot(&mut self, slot: u32, position: u32) -> Result<SnapshotCell, EngineError> {
        let copy = self.snapshot_slots.take();
        let cell = |slot| Cell::Slot { slot, position };
        self.copy_of(cell(slot), copy, cell)
    }

    fn copy_of(
        &mut self,
        from: Cell,
        copy: Option<CellRef>,
        cell: impl Fn(u32) -> Cell,
    ) -> Result<SnapshotCell, EngineError> {
        if let Some(copy) = copy {
            self.backend.copy_cell(from, cell(copy.number()))?;
            return Ok(SnapshotCell::Shared(copy));
        }
        let mut bytes = Vec::with_capacity(self.layout.cell_bytes(from));
        self.backend.read_cell(from, &mut bytes)?;
        Ok(SnapshotCell::Bytes(Arc::new(bytes)))
    }

    pub(crate) fn types(&self) -> CacheTypes {
        CacheTypes { kv: self.config.kv_types, state: self.config.state_elem }
    }

    /// Pages that a prompt will share with the snapshot it resumes from.
    pub(crate) fn shared_pages(&self, prompt: &[u32], resume: Option<&Snapshot>) -> usize {
        let Some(snapshot) = resume.filter(|snapshot| snapshot.begins(prompt)) else { return 0 };
        let full = snapshot.tokens.len() / PAGE_TOKENS;
        let is_ours =
            |page: &&SnapshotCell| matches!(page, SnapshotCell::Shared(page) if self.pages.owns(page));
        snapshot.pages.iter().take(full).filter(is_ours).count()
    }

    /// Starts a sequence from a snapshot, if its prompt continues it.
    pub(crate) fn resume(&mut self, sequence: &mut Sequence, snapshot: &Snapshot) -> Result<(), EngineError> {
        if !snapshot.begins(&sequence.request.prompt) {
            return Ok(());
        }
        self.check_snapshot(snapshot)?;
        let position = snapshot.tokens.len();
        for (number, page) in snapshot.pages.iter().enumerate() {
            let is_full = (number + 1) * PAGE_TOKENS <= position;
            let own = self.page_from(page, is_full)?;
            sequence.pages.push(own);
        }
        let cell = |slot| Cell::Slot { slot, position: position as u32 };
        let own = cell(sequence.slot.index());
        match &snapshot.slot {
            SnapshotCell::Shared(slot) if !self.snapshot_slots.owns(slot) => {
                return Err(EngineError::ForeignSnapshot);
            }
            SnapshotCell::Shared(slot) => self.backend.copy_cell(cell(slot.number()), own)?,
            SnapshotCell::Bytes(bytes) => self.backend.import_cell(own, bytes)?,
        }
        sequence.slot.restored_at(position);
        sequence.reused = position;
        sequence.request.snapshot_at = sequence.request.snapshot_at.filter(|at| *at > position);
        Ok(())
    }

    /// A page for a sequence to continue with: shared if it is full, else a copy.
    fn page_from(&mut self, page: &SnapshotCell, is_full: bool) -> Result<CellRef, EngineError> {
        match page {
            SnapshotCell::Shared(page) => {
                if !self.pages.owns(page) {
                    return Err(EngineError::ForeignSnapshot);
                }
                if is_full {
                    return Ok(page.clone());
                }
                let copy = self.pages.take_one().expect("pages were counted");
                self.backend.copy_cell(Cell::Page(page.number()), Cell::Page(copy.number()))?;
                Ok(copy)
            }
            SnapshotCell::Bytes(bytes) => {
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
