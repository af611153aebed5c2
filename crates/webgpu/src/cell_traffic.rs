//! Cells on their way: copied within the device, to the host and from it.

use std::collections::HashMap;

use mambo_kernel::{BackendError, Cell, Ticket, Wait};

use crate::caches::{Caches, CellPart};
use crate::device::Device;
use crate::steps::ReadBack;

/// Cells that are being read, and the buffer that copies within a layer go through: none may have one buffer on both ends.
#[derive(Default)]
pub(crate) struct CellTraffic {
    exports: HashMap<Ticket, (ReadBack, usize)>,
    bounce: Option<wgpu::Buffer>,
}

impl CellTraffic {
    /// Queues a copy of a cell to another of its kind.
    pub fn copy(
        &mut self,
        device: &Device,
        caches: &Caches,
        from: Cell,
        to: Cell,
    ) -> Result<(), BackendError> {
        let (from, to) = match (from, to) {
            (Cell::Page { .. }, Cell::Page { .. }) => (caches.parts(from), caches.parts(to)),
            (Cell::Slot { slot: from, .. }, Cell::Slot { slot: to, .. }) => {
                (caches.whole_slot(from), caches.whole_slot(to))
            }
            _ => unreachable!("a page is no slot"),
        };
        let bytes = size(&from);
        let bounce = match self.bounce.take() {
            Some(buffer) if buffer.size() >= bytes => buffer,
            _ => device.copied(bytes as usize, "a cell that is being copied")?,
        };
        let mut encoder = device.device.create_command_encoder(&Default::default());
        let mut at = 0;
        for part in &from {
            let len = part.bytes.end - part.bytes.start;
            encoder.copy_buffer_to_buffer(part.buffer, part.bytes.start, &bounce, at, Some(len));
            at += len;
        }
        at = 0;
        for part in &to {
            let len = part.bytes.end - part.bytes.start;
            encoder.copy_buffer_to_buffer(&bounce, at, part.buffer, part.bytes.start, Some(len));
            at += len;
        }
        device.queue.submit([encoder.finish()]);
        self.bounce = Some(bounce);
        device.faults.check("copying a cell")
    }

    /// Queues reading a cell.
    pub fn export(
        &mut self,
        device: &Device,
        caches: &Caches,
        cell: Cell,
        ticket: Ticket,
    ) -> Result<(), BackendError> {
        let parts = caches.parts(cell);
        let bytes = caches.layout.cell_bytes(cell);
        assert_eq!(size(&parts), bytes as u64, "the parts of {cell}");
        let buffer = device.read_back(bytes, "a cell that is being read")?;
        let mut encoder = device.device.create_command_encoder(&Default::default());
        let mut at = 0;
        for part in &parts {
            let len = part.bytes.end - part.bytes.start;
            encoder.copy_buffer_to_buffer(part.buffer, part.bytes.start, &buffer, at, Some(len));
            at += len;
        }
        let submission = device.queue.submit([encoder.finish()]);
        device.faults.check("reading a cell")?;
        self.exports.insert(ticket, (ReadBack::of(device, buffer, submission), bytes));
        Ok(())
    }

    /// Hands the bytes of a cell over if they have arrived.
    pub fn collect(
        &mut self,
        device: &Device,
        ticket: Ticket,
        wait: Wait,
        into: &mut Vec<u8>,
    ) -> Result<bool, BackendError> {
        let (read, bytes) = self.exports.get(&ticket).expect("a cell is collected once");
        match read.has_arrived(device, wait, "reading a cell") {
            Ok(false) => return Ok(false),
            Ok(true) => {}
            Err(error) => {
                self.exports.remove(&ticket);
                return Err(error);
            }
        }
        let taken = read.take(*bytes, |bytes| into.extend_from_slice(bytes));
        self.exports.remove(&ticket);
        taken.map(|_| true)
    }

    /// Queues filling a cell.
    pub fn import(
        &mut self,
        device: &Device,
        caches: &Caches,
        cell: Cell,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        let (got, want) = (bytes.len(), caches.layout.cell_bytes(cell));
        if got != want {
            return Err(BackendError::CellSize { cell, got, want });
        }
        let mut rest = bytes;
        for part in caches.parts(cell) {
            let (own, after) = rest.split_at((part.bytes.end - part.bytes.start) as usize);
            device.queue.write_buffer(part.buffer, part.bytes.start, own);
            rest = after;
        }
        device.flush();
        device.faults.check("filling a cell")
    }
}

fn size(parts: &[CellPart]) -> u64 {
    parts.iter().map(|part| part.bytes.end - part.bytes.start).sum()
}
