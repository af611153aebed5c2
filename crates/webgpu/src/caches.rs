//! KV pages and recurrent slots on the device, a buffer for each layer, in the contract's layouts: `[page]` and `[slot]`.
//! A cell is a few plain copies.

use std::ops::Range;

use mambo_kernel::check::Marks;
use mambo_kernel::{BackendError, CacheLayout, Cell, KvScale, KvTypes, SlotLayout};

use crate::device::Device;

/// Pages of one attention layer.
#[derive(Clone)]
pub(crate) struct KvPool {
    pub buffer: wgpu::Buffer,
    /// Words of a page of the layer.
    pub page_words: usize,
    /// Pages in the pool.
    pub pages: usize,
    /// The layer's group, whose page lists it reads.
    pub group: usize,
    pub types: KvTypes,
    pub scale: KvScale,
}

/// One state layer's parts of the recurrent slots.
#[derive(Clone)]
pub(crate) struct SlotPool {
    pub buffer: wgpu::Buffer,
    /// Offsets in a part count words; one slot's part follows the other.
    pub layout: SlotLayout,
}

/// The caches of one model.
pub(crate) struct Caches {
    pub layout: CacheLayout,
    kv: Vec<KvPool>,
    slots: Vec<SlotPool>,
    pub marks: Marks,
}

/// Bytes of a layer's buffer that are part of a cell, in the cell's order.
pub(crate) struct CellPart<'a> {
    pub buffer: &'a wgpu::Buffer,
    pub bytes: Range<u64>,
}

impl Caches {
    /// Allocates zeroed caches.
    pub fn new(device: &Device, layout: &CacheLayout) -> Result<Caches, BackendError> {
        let mut kv = Vec::with_capacity(layout.kv_layers.len());
        for (layer, dims) in layout.kv_layers.iter().enumerate() {
            let group = layout.kv_group(layer);
            let (pages, page_bytes) = (layout.kv_groups[group].pages, layout.kv_types.page_bytes(dims));
            let bytes = pages.saturating_mul(page_bytes);
            let what = format!("{pages} KV pages of {page_bytes} bytes of attention layer {layer}");
            kv.push(KvPool {
                buffer: device.storage(bytes, &what)?,
                page_words: page_bytes / 4,
                pages,
                group,
                types: layout.kv_types,
                scale: layout.kv_scale(layer),
            });
        }
        let mut slots = Vec::with_capacity(layout.state_layers.len());
        for layer in 0..layout.state_layers.len() {
            let part = layout.slot_layout(layer);
            let bytes = layout.slots.saturating_mul(part.len * 4);
            let what = format!("{} slots of {} bytes of state layer {layer}", layout.slots, part.len * 4);
            slots.push(SlotPool { buffer: device.storage(bytes, &what)?, layout: part });
        }
        Ok(Caches { layout: layout.clone(), kv, slots, marks: Marks::new(layout) })
    }

    /// The pages of an attention layer.
    pub fn kv(&self, layer: usize) -> Option<&KvPool> {
        self.kv.get(layer)
    }

    /// The slots' parts of a state layer.
    pub fn slots(&self, layer: usize) -> Option<&SlotPool> {
        self.slots.get(layer)
    }

    /// Where a cell is.
    pub fn parts(&self, cell: Cell) -> Vec<CellPart<'_>> {
        match cell {
            Cell::Page { group, page } => {
                let pool = &self.layout.kv_groups[group as usize];
                assert!((page as usize) < pool.pages, "page {page} of group {group} does not exist");
                let part = |layer: &usize| {
                    let KvPool { buffer, page_words, .. } = &self.kv[*layer];
                    let bytes = *page_words as u64 * 4;
                    CellPart { buffer, bytes: u64::from(page) * bytes..(u64::from(page) + 1) * bytes }
                };
                pool.layers.iter().map(part).collect()
            }
            Cell::Slot { slot, position } => {
                assert!((slot as usize) < self.layout.slots, "slot {slot} does not exist");
                let mut parts: Vec<CellPart> = Vec::new();
                for (layer, SlotPool { buffer, layout }) in self.slots.iter().enumerate() {
                    let start = u64::from(slot) * layout.len as u64;
                    let first = parts.len();
                    for words in self.layout.slot_ranges(layer, position as usize) {
                        let bytes = (start + words.start as u64) * 4..(start + words.end as u64) * 4;
                        match parts[first..].last_mut() {
                            Some(last) if last.bytes.end == bytes.start => last.bytes.end = bytes.end,
                            _ => parts.push(CellPart { buffer, bytes }),
                        }
                    }
                }
                parts.retain(|part| !part.bytes.is_empty());
                parts
            }
        }
    }

    /// All of a slot, for copies on the device.
    pub fn whole_slot(&self, slot: u32) -> Vec<CellPart<'_>> {
        assert!((slot as usize) < self.layout.slots, "slot {slot} does not exist");
        let mut parts = Vec::with_capacity(self.slots.len());
        for SlotPool { buffer, layout } in &self.slots {
            let bytes = layout.len as u64 * 4;
            parts.push(CellPart { buffer, bytes: u64::from(slot) * bytes..(u64::from(slot) + 1) * bytes });
        }
        parts
    }
}
