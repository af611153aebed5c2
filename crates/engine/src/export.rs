//! Snapshots leave the engine as bytes. Like a step, an export has two halves, because a browser cannot block and a
//! device should go on computing while its memory is read.

use mambo_kernel::{BackendError, Cell, Ticket, Wait};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::snapshot::{Snapshot, SnapshotCell};

/// An export that has begun. What it reads stays held until it ends.
#[derive(Debug)]
pub struct Export {
    snapshot: Snapshot,
    /// The slot, then the pages.
    cells: Vec<ExportedCell>,
}

#[derive(Debug)]
enum ExportedCell {
    Arrived(Vec<u8>),
    Pending(Ticket),
    Failed(BackendError),
}

impl Engine {
    /// The portable form of a snapshot of this engine: bytes that another engine, on any backend, can resume from.
    pub fn export(&mut self, snapshot: &Snapshot) -> Result<Vec<u8>, EngineError> {
        let mut export = self.begin_export(snapshot)?;
        Ok(self.end_export(&mut export, Wait::Block)?.expect("an export that may block ends"))
    }

    /// Starts reading the memory of a snapshot.
    pub fn begin_export(&mut self, snapshot: &Snapshot) -> Result<Export, EngineError> {
        self.check_alive()?;
        let is_slot_ours = snapshot.slot.is_held_by(|slot| self.snapshot_slots.owns(slot));
        let groups = || snapshot.groups.iter().zip(&self.pages.groups);
        let mut are_ours = groups()
            .flat_map(|(own, group)| own.pages.iter().map(|page| page.is_held_by(|page| group.owns(page))));
        if !is_slot_ours || snapshot.groups.len() != self.pages.groups.len() || !are_ours.all(|ours| ours) {
            return Err(EngineError::ForeignSnapshot);
        }
        let position = snapshot.tokens.len() as u32;
        let slot = |slot| Cell::Slot { slot, position };
        let mut cells = vec![self.export_cell(&snapshot.slot, slot)];
        for (group, own) in (0..).zip(&snapshot.groups) {
            let page = |page| Cell::Page { group, page };
            cells.extend(own.pages.iter().map(|cell| self.export_cell(cell, page)));
        }
        Ok(Export { snapshot: snapshot.clone(), cells })
    }

    fn export_cell(&mut self, cell: &SnapshotCell, in_backend: impl Fn(u32) -> Cell) -> ExportedCell {
        match cell {
            SnapshotCell::Bytes(bytes) => ExportedCell::Arrived(bytes.to_vec()),
            SnapshotCell::Shared(cell) => match self.backend.export_cell(in_backend(cell.number())) {
                Ok(ticket) => ExportedCell::Pending(ticket),
                Err(error) => ExportedCell::Failed(error),
            },
        }
    }

    /// The bytes of an export, or nothing if it may not block and they have not arrived. Ends it once, with them or
    /// with an error.
    pub fn end_export(&mut self, export: &mut Export, wait: Wait) -> Result<Option<Vec<u8>>, EngineError> {
        for cell in &mut export.cells {
            let ExportedCell::Pending(ticket) = *cell else { continue };
            let mut bytes = Vec::new();
            // Every ticket is collected, whatever became of the others.
            match self.backend.collect_cell(ticket, wait, &mut bytes) {
                Ok(true) => *cell = ExportedCell::Arrived(bytes),
                Ok(false) => return Ok(None),
                Err(error) => *cell = ExportedCell::Failed(error),
            }
        }
        let cells = std::mem::take(&mut export.cells).into_iter().map(|cell| match cell {
            ExportedCell::Arrived(bytes) => Ok(bytes),
            ExportedCell::Failed(error) => Err(EngineError::Backend(error)),
            ExportedCell::Pending(_) => unreachable!("all have been collected"),
        });
        let cells: Result<Vec<_>, _> = cells.collect();
        let cells = self.noting_loss(cells)?;
        let (slot, pages) = cells.split_first().expect("an export ends once");
        Ok(Some(export.snapshot.to_bytes(slot, pages)))
    }
}
