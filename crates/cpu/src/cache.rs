//! KV pages and recurrent slots in memory.
//!
//! A layer's pool is `[kv_head][page]` of keys `[channel][position]` followed by values `[position][channel]`, each
//! with its scales after its codes. Consecutive pages of a head, which one thread reads, are thus one stream. With
//! keys transposed, a vector holds one channel of sixteen positions, and no sum runs across lanes. Snapshots have the
//! contract's layout.
#![allow(unsafe_code)]

use std::ops::Range;

use mambo_kernel::check::Marks;
use mambo_kernel::{
    BackendError, CacheLayout, Cell, KvElem, KvScale, KvTypes, PAGE_TOKENS, SlotLayout, StepInputs,
};

use crate::memory::Buffer;
use crate::shared::SharedSlice;
use crate::simd::Simd;

/// Where an attention layer's pages are.
#[derive(Clone, Copy)]
struct LayerPages {
    /// Offset of the first in the pool.
    base: usize,
    /// How many there are.
    count: usize,
    /// The layer's group, whose page lists name them.
    group: usize,
}

/// The caches of one model.
pub(crate) struct Caches {
    layout: CacheLayout,
    pool: Buffer<u8>,
    /// By attention layer.
    layers: Vec<LayerPages>,
    slots: Buffer<f32>,
    /// Offset of each layer's part of a slot, and its layout.
    parts: Vec<(usize, SlotLayout)>,
    slot_len: usize,
    /// Scales of 8-bit floats, by attention layer.
    scales: Vec<KvScale>,
    marks: Marks,
}

impl Caches {
    /// Allocates zeroed caches.
    pub fn new(layout: &CacheLayout) -> Result<Self, BackendError> {
        let mut pool_bytes = 0;
        let mut layers = Vec::new();
        for (layer, dims) in layout.kv_layers.iter().enumerate() {
            let group = layout.kv_group(layer);
            let count = layout.kv_groups[group].pages;
            layers.push(LayerPages { base: pool_bytes, count, group });
            pool_bytes += (layout.kv_types.page_bytes(dims) * count).next_multiple_of(64);
        }
        let mut slot_len = 0;
        let mut parts = Vec::new();
        for layer in 0..layout.state_layers.len() {
            let part = layout.slot_layout(layer);
            parts.push((slot_len, part));
            slot_len += part.len;
        }
        Ok(Caches {
            pool: Buffer::zeroed(pool_bytes, "KV pages")?,
            layers,
            slots: Buffer::zeroed(slot_len * layout.slots, "recurrent slots")?,
            layout: layout.clone(),
            parts,
            slot_len,
            scales: (0..layout.kv_layers.len()).map(|layer| layout.kv_scale(layer)).collect(),
            marks: Marks::new(layout),
        })
    }

    /// Empty caches, before a layout is known.
    pub fn empty() -> Result<Self, BackendError> {
        Caches::new(&CacheLayout::default())
    }

    /// The layout, and the marks that steps are checked with.
    pub fn layout_and_marks(&mut self) -> (&CacheLayout, &mut Marks) {
        (&self.layout, &mut self.marks)
    }

    /// Views for the threads of a running step.
    pub fn views(&mut self) -> CacheViews<'_> {
        CacheViews {
            layout: &self.layout,
            scales: &self.scales,
            pool: SharedSlice::new(&mut self.pool),
            layers: &self.layers,
            slots: SharedSlice::new(&mut self.slots),
            parts: &self.parts,
            slot_len: self.slot_len,
        }
    }

    fn slot_range(&self, slot: usize) -> Range<usize> {
        slot * self.slot_len..(slot + 1) * self.slot_len
    }

    /// What they hold.
    pub fn layout(&self) -> &CacheLayout {
        &self.layout
    }

    /// Appends a cell's bytes in the contract's layout.
    pub fn export(&self, cell: Cell, into: &mut Vec<u8>) {
        match cell {
            Cell::Page { group, page } => self.export_page(group as usize, page as usize, into),
            Cell::Slot { slot, position } => {
                let words = &self.slots[self.slot_range(slot as usize)];
                self.layout.export_slot(words, position as usize, into);
            }
        }
    }

    /// Fills a cell from such bytes.
    pub fn import(&mut self, cell: Cell, bytes: &[u8]) -> Result<(), BackendError> {
        let (got, want) = (bytes.len(), self.layout.cell_bytes(cell));
        if got != want {
            return Err(BackendError::CellSize { cell, got, want });
        }
        match cell {
            Cell::Page { group, page } => self.import_page(group as usize, page as usize, bytes),
            Cell::Slot { slot, position } => {
                let range = self.slot_range(slot as usize);
                self.layout.import_slot(&mut self.slots[range], position as usize, bytes);
            }
        }
        Ok(())
    }

    /// Ranges in the pool of the keys and values of every head of a layer's page.
    fn page_ranges(&self, layer: usize, page: usize) -> impl Iterator<Item = [Range<usize>; 2]> {
        let (layout, pages) = (&self.layout, self.layers[layer]);
        (0..layout.kv_layers[layer].kv_heads).map(move |head| head_ranges(layout, layer, pages, page, head))
    }

    /// One page of every layer of a group in the contract's layout: all heads' keys, then all heads' values.
    fn export_page(&self, group: usize, page: usize, out: &mut Vec<u8>) {
        let elem = self.layout.kv_types.k;
        for &layer in &self.layout.kv_groups[group].layers {
            let head_dim = self.layout.kv_layers[layer].head_dim;
            for [keys, _] in self.page_ranges(layer, page) {
                transpose_keys(&self.pool[keys], elem, head_dim, KeyOrder::Positions, out);
            }
            for [_, values] in self.page_ranges(layer, page) {
                out.extend_from_slice(&self.pool[values]);
            }
        }
    }

    /// Overwrites a page.
    fn import_page(&mut self, group: usize, page: usize, bytes: &[u8]) {
        let elem = self.layout.kv_types.k;
        let (mut rest, mut transposed) = (bytes, Vec::new());
        for &layer in &self.layout.kv_groups[group].layers {
            let head_dim = self.layout.kv_layers[layer].head_dim;
            let ranges: Vec<_> = self.page_ranges(layer, page).collect();
            for [keys, _] in &ranges {
                let own = rest.split_off(..keys.len()).expect("the length was checked");
                transposed.clear();
                transpose_keys(own, elem, head_dim, KeyOrder::Channels, &mut transposed);
                self.pool[keys.clone()].copy_from_slice(&transposed);
            }
            for [_, values] in ranges {
                let own = rest.split_off(..values.len()).expect("the length was checked");
                self.pool[values].copy_from_slice(own);
            }
        }
    }

    /// Copies a cell to another of its kind.
    pub fn copy(&mut self, from: Cell, to: Cell) {
        match (from, to) {
            (Cell::Page { group, page: from }, Cell::Page { group: other, page: to }) => {
                assert_eq!(group, other, "pages of one group have one size");
                for &layer in &self.layout.kv_groups[group as usize].layers {
                    let ranges =
                        |page: u32| self.page_ranges(layer, page as usize).flatten().collect::<Vec<_>>();
                    let pairs = ranges(from).into_iter().zip(ranges(to));
                    for (from, to) in pairs.collect::<Vec<_>>() {
                        self.pool.copy_within(from, to.start);
                    }
                }
            }
            (Cell::Slot { slot: from, .. }, Cell::Slot { slot: to, .. }) => {
                let (from, to) = (self.slot_range(from as usize), self.slot_range(to as usize));
                self.slots.copy_within(from, to.start);
            }
            _ => unreachable!("a page is no slot"),
        }
    }
}

/// Ranges in the pool of the keys and values of one head of a layer's page.
fn head_ranges(
    layout: &CacheLayout,
    layer: usize,
    pages: LayerPages,
    page: usize,
    head: usize,
) -> [Range<usize>; 2] {
    let (types, dims) = (layout.kv_types, layout.kv_layers[layer]);
    let (keys, values) = (types.k.head_bytes(dims.head_dim), types.v.head_bytes(dims.head_dim));
    assert!(page < pages.count && head < dims.kv_heads, "page {page} or head {head} of layer {layer}");
    let start = pages.base + (head * pages.count + page) * (keys + values);
    [start..start + keys, start + keys..start + keys + values]
}

/// The outer dimension of a head's keys.
#[derive(Clone, Copy, PartialEq)]
enum KeyOrder {
    /// `[position][channel]`, as in the contract.
    Positions,
    /// `[channel][position]`, as in the pool.
    Channels,
}

/// Appends a head's keys, codes and then scales, transposed to this order from the other.
fn transpose_keys(head: &[u8], elem: KvElem, head_dim: usize, order: KeyOrder, out: &mut Vec<u8>) {
    let (codes, scales) = head.split_at(PAGE_TOKENS * head_dim * elem.code_bytes());
    let shape = |channels: usize| match order {
        KeyOrder::Positions => (channels, PAGE_TOKENS),
        KeyOrder::Channels => (PAGE_TOKENS, channels),
    };
    transpose(codes, shape(head_dim), elem.code_bytes(), out);
    transpose(scales, shape(elem.scales(head_dim)), 2, out);
}

/// Appends the transpose of a `rows` by `cols` matrix of elements of `width` bytes.
fn transpose(matrix: &[u8], (rows, cols): (usize, usize), width: usize, out: &mut Vec<u8>) {
    for col in 0..cols {
        for row in 0..rows {
            out.extend_from_slice(&matrix[(row * cols + col) * width..][..width]);
        }
    }
}

/// The caches as threads of a running step see them.
pub(crate) struct CacheViews<'a> {
    layout: &'a CacheLayout,
    scales: &'a [KvScale],
    pool: SharedSlice<'a, u8>,
    layers: &'a [LayerPages],
    slots: SharedSlice<'a, f32>,
    parts: &'a [(usize, SlotLayout)],
    slot_len: usize,
}

impl<'a> CacheViews<'a> {
    /// Element types of the pages.
    pub fn kv_types(&self) -> KvTypes {
        self.layout.kv_types
    }

    /// Scales of an attention layer's 8-bit floats.
    pub fn kv_scale(&self, layer: usize) -> KvScale {
        self.scales[layer]
    }

    /// The page lists that an attention layer reads.
    pub fn page_lists<'s>(&self, step: &StepInputs<'s>, layer: usize) -> &'s [u32] {
        step.group_pages(self.layers[layer].group, self.layout.kv_groups.len())
    }

    /// Layout of a state layer's part of a slot.
    pub fn slot_layout(&self, layer: usize) -> &'a SlotLayout {
        &self.parts[layer].1
    }

    fn head_ranges(&self, layer: usize, page: usize, head: usize) -> [Range<usize>; 2] {
        head_ranges(self.layout, layer, self.layers[layer], page, head)
    }

    /// Keys `[channel][position]` and values `[position][channel]` of one head of a page.
    ///
    /// # Safety
    /// No other thread writes them while the result is borrowed.
    pub unsafe fn page(&self, layer: usize, page: usize, head: usize) -> (&'a [u8], &'a [u8]) {
        let [keys, values] = self.head_ranges(layer, page, head);
        // SAFETY: guaranteed by the caller.
        unsafe { (self.pool.read(keys), self.pool.read(values)) }
    }

    /// The same to write.
    ///
    /// # Safety
    /// No other thread touches this head of this page while the result is borrowed.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn page_mut(&self, layer: usize, page: usize, head: usize) -> (&'a mut [u8], &'a mut [u8]) {
        let [keys, values] = self.head_ranges(layer, page, head);
        // SAFETY: guaranteed by the caller, and the two do not overlap.
        unsafe { (self.pool.write(keys), self.pool.write(values)) }
    }

    fn slot_range(&self, slot: usize, layer: usize, range: Range<usize>) -> Range<usize> {
        let (part, layout) = &self.parts[layer];
        assert!(range.end <= layout.len, "outside the layer's part of the slot");
        let start = slot * self.slot_len + part;
        start + range.start..start + range.end
    }

    /// Floats of a layer's part of a slot.
    ///
    /// # Safety
    /// No other thread writes them while the result is borrowed.
    pub unsafe fn slot(&self, slot: usize, layer: usize, range: Range<usize>) -> &'a [f32] {
        // SAFETY: guaranteed by the caller.
        unsafe { self.slots.read(self.slot_range(slot, layer, range)) }
    }

    /// The same to write.
    ///
    /// # Safety
    /// No other thread, and no other borrow in this one, touches them while the result is borrowed.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slot_mut(&self, slot: usize, layer: usize, range: Range<usize>) -> &'a mut [f32] {
        // SAFETY: guaranteed by the caller.
        unsafe { self.slots.write(self.slot_range(slot, layer, range)) }
    }

    /// Has floats of a layer's part of a slot brought into cache.
    #[inline(always)]
    pub fn prefetch_slot<S: Simd>(&self, slot: usize, layer: usize, range: Range<usize>) {
        self.slots.prefetch::<S>(self.slot_range(slot, layer, range));
    }

    /// Where a head's state at the start of the chunk that holds `position` begins, in bytes from that of all slots.
    pub fn state_begin(&self, slot: usize, layer: usize, position: usize, head: usize) -> usize {
        let words = self.slot_layout(layer).state_at(position, head);
        self.slot_range(slot, layer, words).start * size_of::<f32>()
    }

    /// A head's state at the start of the chunk that holds `position`.
    ///
    /// # Safety
    /// No other thread writes it while the result is borrowed.
    pub unsafe fn state(&self, slot: usize, layer: usize, position: usize, head: usize) -> &'a [u8] {
        let layout = self.slot_layout(layer);
        // SAFETY: guaranteed by the caller; a head's words are its own.
        let words = unsafe { self.slot(slot, layer, layout.state_at(position, head)) };
        // SAFETY: all of the words' bytes, of which every one is initialised.
        let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 4) };
        &bytes[..layout.head_elems() * layout.elem.bytes()]
    }

    /// The same to write.
    ///
    /// # Safety
    /// No other thread, and no other borrow in this one, touches it while the result is borrowed.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn state_mut(&self, slot: usize, layer: usize, position: usize, head: usize) -> &'a mut [u8] {
        let layout = self.slot_layout(layer);
        // SAFETY: guaranteed by the caller; a head's words are its own.
        let words = unsafe { self.slot_mut(slot, layer, layout.state_at(position, head)) };
        // SAFETY: all of the words' bytes, taken over from `words`; every bit pattern is a word.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), words.len() * 4) };
        &mut bytes[..layout.head_elems() * layout.elem.bytes()]
    }
}
