//! Snapshots of running sequences, and sequences that resume from one. Full pages are shared; slots, and the last page
//! of a snapshot, which will be written again, are copied.

use std::sync::Arc;

use mambo_kernel::{CacheTypes, Cell, PAGE_TOKENS};

use crate::cache::{CellRef, GroupPages};
use crate::engine::{Engine, Event};
use crate::error::EngineError;
use crate::sequence::{Sequence, SequenceId};
use crate::snapshot::{Snapshot, SnapshotCell, SnapshotPages};

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
        self.make_room_for_copies();
        let sequence = &self.running[index];
        let position = sequence.slot.position();
        let tokens = (0..position).map(|p| sequence.token(p).expect("what has run was seen")).collect();
        let slot = sequence.slot.index();
        let groups = (0..self.pages.groups.len()).map(|group| self.capture_pages(index, group, position));
        let groups = groups.collect::<Result<_, _>>()?;
        let slot = self.copy_of_slot(slot, position as u32)?;
        Ok(Snapshot {
            model: self.fingerprint,
            types: self.types(),
            tokens,
            slot,
            slot_bytes: self.layout.cell_bytes(Cell::Slot { slot: 0, position: position as u32 }),
            groups,
        })
    }

    /// Where nothing may wait for a cell's bytes, copies need cells: the prefix cache gives up as many as one snapshot takes.
    fn make_room_for_copies(&mut self) {
        let has_room = |engine: &Engine| {
            engine.snapshot_slots.free() > 0 && engine.pages.groups.iter().all(|group| group.free() > 0)
        };
        while !self.backend.may_block() && !has_room(self) && self.drop_prefix(&[]) {}
    }

    /// The pages of one group that the token at a position sees. Full ones are shared if the sequence can spare them; a
    /// copy of others, and of the last one, which is still written, is another page if one is free, else bytes.
    fn capture_pages(
        &mut self,
        index: usize,
        group: usize,
        position: usize,
    ) -> Result<SnapshotPages, EngineError> {
        let pool = &self.pages.groups[group];
        let entries = pool.entries_at(position);
        let mut pages = Vec::with_capacity(entries.len());
        for entry in entries {
            let (pool, list) = (&self.pages.groups[group], &mut self.running[index].pages.lists[group]);
            let is_full = (entry + 1) * PAGE_TOKENS <= position;
            if let Some(page) = is_full.then(|| pool.share(list, entry)).flatten() {
                pages.push(SnapshotCell::Shared(page));
                continue;
            }
            // Pages that running sequences have reserved are not free, so this takes none of theirs.
            let (copy, from) = (pool.take_one(), list.numbers()[entry]);
            let cell = |page| Cell::Page { group: group as u32, page };
            pages.push(self.copy_of(cell(from), copy, cell)?);
        }
        Ok(SnapshotPages { pages, page_bytes: self.layout.page_bytes(group) })
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
        if !self.backend.may_block() {
            return Err(EngineError::CannotWait { what: "a snapshot beyond those that fit on the device" });
        }
        let mut bytes = Vec::with_capacity(self.layout.cell_bytes(from));
        self.backend.read_cell(from, &mut bytes)?;
        Ok(SnapshotCell::Bytes(Arc::new(bytes)))
    }

    pub(crate) fn types(&self) -> CacheTypes {
        CacheTypes { kv: self.config.kv_types, state: self.config.state_elem }
    }

    /// Pages of every group that a prompt needs to reach its limit, besides those that it will share with the snapshot it
    /// resumes from.
    pub(crate) fn needed_pages(&self, prompt: &[u32], limit: usize, resume: Option<&Snapshot>) -> Vec<usize> {
        let resume = resume.filter(|snapshot| snapshot.begins(prompt));
        let position = resume.map_or(0, |snapshot| snapshot.tokens.len());
        let needed = |(index, group): (usize, &GroupPages)| {
            let restored = resume.and_then(|snapshot| snapshot.groups.get(index));
            let is_copied = |(page, is_full): &(&SnapshotCell, bool)| {
                !is_full || !matches!(page, SnapshotCell::Shared(page) if group.owns(page))
            };
            let copies = restored.map_or(0, |pages| pages.filled(position).filter(is_copied).count());
            group.needed(limit, position, copies)
        };
        self.pages.groups.iter().enumerate().map(needed).collect()
    }

    /// Starts a sequence from a snapshot, if its prompt continues it.
    pub(crate) fn resume(&mut self, sequence: &mut Sequence, snapshot: &Snapshot) -> Result<(), EngineError> {
        if !snapshot.begins(&sequence.request.prompt) {
            return Ok(());
        }
        self.check_snapshot(snapshot)?;
        let position = snapshot.tokens.len();
        for (index, restored) in snapshot.groups.iter().enumerate() {
            let released = self.pages.groups[index].entries_at(position).start;
            (0..released).for_each(|_| sequence.pages.lists[index].push(None));
            for (page, is_full) in restored.filled(position) {
                let own = self.page_from(index, page, is_full)?;
                sequence.pages.lists[index].push(Some(own));
            }
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
    fn page_from(
        &mut self,
        group: usize,
        page: &SnapshotCell,
        is_full: bool,
    ) -> Result<CellRef, EngineError> {
        let pool = &self.pages.groups[group];
        let cell = |page: &CellRef| Cell::Page { group: group as u32, page: page.number() };
        match page {
            SnapshotCell::Shared(page) => {
                if !pool.owns(page) {
                    return Err(EngineError::ForeignSnapshot);
                }
                if is_full {
                    return Ok(page.clone());
                }
                let copy = pool.take_one().expect("pages were counted");
                self.backend.copy_cell(cell(page), cell(&copy))?;
                Ok(copy)
            }
            SnapshotCell::Bytes(bytes) => {
                let own = pool.take_one().expect("pages were counted");
                self.backend.import_cell(cell(&own), bytes)?;
                Ok(own)
            }
        }
    }

    /// Makes sure that a sequence may write its pages from a position on: shared ones are replaced by copies.
    pub(crate) fn own_pages_from(&mut self, index: usize, position: usize) -> Result<(), EngineError> {
        for (number, pool) in self.pages.groups.iter().enumerate() {
            let list = &mut self.running[index].pages.lists[number];
            for entry in position / PAGE_TOKENS..list.numbers().len() {
                let page = list.page(entry).expect("what can be rolled back to is held");
                if page.is_exclusive() {
                    continue;
                }
                let cell = |page: u32| Cell::Page { group: number as u32, page };
                let from = cell(page.number());
                let free_slots = self.slots.free();
                let copy = pool.take_copy(list).ok_or(EngineError::Busy { free_slots, free_pages: 0 })?;
                self.backend.copy_cell(from, cell(copy.number()))?;
                list.replace(entry, copy);
            }
        }
        Ok(())
    }
}
