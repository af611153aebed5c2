//! KV pages and recurrent slots on the device, in the contract's layouts: `[layer][page]` and `[layer][slot]`. A cell is
//! a few plain copies.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use mambo_kernel::check::Marks;
use mambo_kernel::{BackendError, CacheLayout, Cell, Ticket, Wait};

use crate::driver::{Context, Event, Stream};
use crate::kernels::binding::{KvPool, SlotPool};
use crate::memory::{DeviceBuffer, PinnedBuffer};

/// Every layer's pool starts on a multiple of so many bytes.
const POOL_ALIGN: usize = 256;

/// The caches of one model.
pub(crate) struct Caches {
    layout: CacheLayout,
    pages: DeviceBuffer,
    /// Where each layer's pages start.
    page_bases: Vec<usize>,
    slots: DeviceBuffer,
    /// Where each layer's parts start.
    part_bases: Vec<usize>,
    pub marks: Marks,
}

impl Caches {
    /// Allocates zeroed caches.
    pub fn new(
        context: &Arc<Context>,
        stream: &Stream,
        layout: &CacheLayout,
    ) -> Result<Caches, BackendError> {
        let (mut page_bytes, mut page_bases) = (0, Vec::new());
        for dims in &layout.kv_layers {
            page_bases.push(page_bytes);
            page_bytes += (layout.kv_types.page_bytes(dims) * layout.pages).next_multiple_of(POOL_ALIGN);
        }
        let (mut part_bytes, mut part_bases) = (0, Vec::new());
        for layer in 0..layout.state_layers.len() {
            part_bases.push(part_bytes);
            part_bytes += (layout.slot_layout(layer).len * 4 * layout.slots).next_multiple_of(POOL_ALIGN);
        }
        Ok(Caches {
            pages: DeviceBuffer::zeroed(context, stream, page_bytes, "KV pages")?,
            page_bases,
            slots: DeviceBuffer::zeroed(context, stream, part_bytes, "recurrent slots")?,
            part_bases,
            layout: layout.clone(),
            marks: Marks::new(layout),
        })
    }

    /// The layout, and the marks that steps are checked with.
    pub fn layout_and_marks(&mut self) -> (&CacheLayout, &mut Marks) {
        (&self.layout, &mut self.marks)
    }

    /// The pages of an attention layer.
    pub fn kv(&self, layer: usize) -> Option<KvPool> {
        let dims = self.layout.kv_layers.get(layer)?;
        Some(KvPool {
            pages: self.pages.ptr().plus_bytes(self.page_bases[layer]),
            page_bytes: self.layout.kv_types.page_bytes(dims),
            types: self.layout.kv_types,
            scale: self.layout.kv_scale(layer),
        })
    }

    /// The slots' parts of a state layer.
    pub fn slots(&self, layer: usize) -> Option<SlotPool> {
        let base = *self.part_bases.get(layer)?;
        let layout = self.layout.slot_layout(layer);
        Some(SlotPool { parts: self.slots.ptr().plus_bytes(base), stride_words: layout.len, layout })
    }

    /// Bytes of the pages' buffer that are one page, layer by layer.
    fn page_ranges(&self, page: u32) -> Vec<Range<usize>> {
        assert!((page as usize) < self.layout.pages, "page {page} does not exist");
        let layers = self.layout.kv_layers.iter().zip(&self.page_bases);
        let range = |(dims, base): (&_, &usize)| {
            let bytes = self.layout.kv_types.page_bytes(dims);
            let start = base + page as usize * bytes;
            start..start + bytes
        };
        layers.map(range).collect()
    }

    /// Bytes of the slots' buffer that are one slot's part of a layer.
    fn part_range(&self, layer: usize, slot: u32) -> Range<usize> {
        assert!((slot as usize) < self.layout.slots, "slot {slot} does not exist");
        let bytes = self.layout.slot_layout(layer).len * 4;
        let start = self.part_bases[layer] + slot as usize * bytes;
        start..start + bytes
    }

    /// The bytes of a cell in its buffer, in the cell's order, with neighbours joined.
    fn ranges(&self, cell: Cell) -> (&DeviceBuffer, Vec<Range<usize>>) {
        match cell {
            Cell::Page(page) => (&self.pages, self.page_ranges(page)),
            Cell::Slot { slot, position } => {
                let mut joined: Vec<Range<usize>> = Vec::new();
                for layer in 0..self.layout.state_layers.len() {
                    let start = self.part_range(layer, slot).start;
                    for words in self.layout.slot_ranges(layer, position as usize) {
                        let bytes = start + words.start * 4..start + words.end * 4;
                        match joined.last_mut() {
                            Some(last) if last.end == bytes.start => last.end = bytes.end,
                            _ => joined.push(bytes),
                        }
                    }
                }
                (&self.slots, joined)
            }
        }
    }

    /// Queues a copy of a cell to another of its kind.
    pub fn copy(&self, stream: &Stream, from: Cell, to: Cell) -> Result<(), BackendError> {
        let copy = |buffer: &DeviceBuffer, from: Range<usize>, to: Range<usize>| {
            buffer.copy_within(stream, from.start, to.start, from.len())
        };
        match (from, to) {
            (Cell::Page(from), Cell::Page(to)) => {
                let mut pairs = self.page_ranges(from).into_iter().zip(self.page_ranges(to));
                pairs.try_for_each(|(from, to)| copy(&self.pages, from, to))
            }
            (Cell::Slot { slot: from, .. }, Cell::Slot { slot: to, .. }) => {
                let mut layers = 0..self.layout.state_layers.len();
                layers.try_for_each(|layer| {
                    copy(&self.slots, self.part_range(layer, from), self.part_range(layer, to))
                })
            }
            _ => unreachable!("a page is no slot"),
        }
    }
}

/// Cells on their way between host and device.
#[derive(Default)]
pub(crate) struct CellTraffic {
    exports: HashMap<Ticket, (PinnedBuffer, usize, Event)>,
    /// Buffers that are still being read by the device.
    imports: Vec<(PinnedBuffer, Event)>,
    spare: Vec<PinnedBuffer>,
}

impl CellTraffic {
    /// A pinned buffer of at least so many bytes.
    fn buffer(&mut self, context: &Arc<Context>, bytes: usize) -> Result<PinnedBuffer, BackendError> {
        let mut index = 0;
        while index < self.imports.len() {
            match self.imports[index].1.has_passed()? {
                true => self.spare.push(self.imports.swap_remove(index).0),
                false => index += 1,
            }
        }
        let fitting = self.spare.iter().position(|buffer| buffer.bytes() >= bytes);
        match fitting {
            Some(index) => Ok(self.spare.swap_remove(index)),
            None => {
                // Smaller ones have had their time.
                self.spare.clear();
                PinnedBuffer::new(context, bytes, "a cell that is being copied")
            }
        }
    }

    /// Queues reading a cell.
    pub fn export(
        &mut self,
        context: &Arc<Context>,
        stream: &Stream,
        caches: &Caches,
        cell: Cell,
        ticket: Ticket,
    ) -> Result<(), BackendError> {
        let bytes = caches.layout.cell_bytes(cell);
        let buffer = self.buffer(context, bytes)?;
        let (from, ranges) = caches.ranges(cell);
        let mut at = 0;
        for range in ranges {
            from.copy_to_pinned(stream, range.start, &buffer, at, range.len())?;
            at += range.len();
        }
        assert_eq!(at, bytes, "the parts of {cell}");
        let event = Event::new(context, false)?;
        event.record(stream)?;
        self.exports.insert(ticket, (buffer, bytes, event));
        Ok(())
    }

    /// Hands the bytes of a cell over if they have arrived.
    pub fn collect(&mut self, ticket: Ticket, wait: Wait, into: &mut Vec<u8>) -> Result<bool, BackendError> {
        let (_, _, event) = self.exports.get(&ticket).expect("a cell is collected once");
        match wait {
            Wait::Block => event.wait("reading a cell")?,
            Wait::Poll if !event.has_passed()? => return Ok(false),
            Wait::Poll => {}
        }
        let (buffer, bytes, _) = self.exports.remove(&ticket).expect("it was found above");
        into.extend_from_slice(&buffer.as_slice()[..bytes]);
        self.spare.push(buffer);
        Ok(true)
    }

    /// Queues filling a cell.
    pub fn import(
        &mut self,
        context: &Arc<Context>,
        stream: &Stream,
        caches: &Caches,
        cell: Cell,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        let (got, want) = (bytes.len(), caches.layout.cell_bytes(cell));
        if got != want {
            return Err(BackendError::CellSize { cell, got, want });
        }
        let mut buffer = self.buffer(context, bytes.len())?;
        buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        let (to, ranges) = caches.ranges(cell);
        let mut at = 0;
        for range in ranges {
            to.copy_from_pinned(stream, range.start, &buffer, at, range.len())?;
            at += range.len();
        }
        let event = Event::new(context, false)?;
        event.record(stream)?;
        self.imports.push((buffer, event));
        Ok(())
    }
}
