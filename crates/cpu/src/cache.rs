//! KV pages and recurrent slots in memory.
//!
//! A layer's pool is `[page][kv_head]` of keys `[channel][position]` and then `[page][kv_head]` of values
//! `[position][channel]`: with keys turned, a vector holds one channel of sixteen positions, and no sum
//! runs across lanes. Snapshots turn them back to the contract's order.
#![allow(unsafe_code)]

use std::ops::Range;

use mambo_kernel::{AttentionDims, BackendError, CacheLayout, KvElem, PAGE_TOKENS, SlotLayout};

use crate::check::Marks;
use crate::memory::Buffer;
use crate::shared::Shared;

/// The caches of one model.
pub(crate) struct Caches {
    layout: CacheLayout,
    pool: Buffer<u8>,
    /// Where each layer's pages start in the pool.
    bases: Vec<usize>,
    slots: Buffer<f32>,
    /// Where each layer's part of a slot starts, and its layout.
    parts: Vec<(usize, SlotLayout)>,
    slot_len: usize,
    marks: Marks,
}

/// Bytes of one half (K or V) of one head of a page.
pub(crate) fn half_bytes(dims: &AttentionDims, elem: KvElem) -> usize {
    PAGE_TOKENS * dims.head_dim * elem.bytes()
}

/// Bytes of a layer's page.
pub(crate) fn page_bytes(dims: &AttentionDims, elem: KvElem) -> usize {
    2 * dims.kv_heads * half_bytes(dims, elem)
}

impl Caches {
    /// Allocates zeroed caches.
    pub fn new(layout: &CacheLayout) -> Result<Self, BackendError> {
        let mut pool_bytes = 0;
        let mut bases = Vec::new();
        for dims in &layout.kv_layers {
            bases.push(pool_bytes);
            pool_bytes += (page_bytes(dims, layout.kv_elem) * layout.pages).next_multiple_of(64);
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
            bases,
            slots: Buffer::zeroed(slot_len * layout.slots, "recurrent slots")?,
            layout: layout.clone(),
            parts,
            slot_len,
            marks: Marks::new(layout),
        })
    }

    /// Caches of a model that has none.
    pub fn empty() -> Result<Self, BackendError> {
        Caches::new(&CacheLayout {
            kv_layers: Vec::new(),
            kv_elem: KvElem::F32,
            pages: 0,
            state_layers: Vec::new(),
            slots: 0,
            rollback: mambo_kernel::Rollback::None,
        })
    }

    /// What they hold, and the marks a step is checked with.
    pub fn layout_and_marks(&mut self) -> (&CacheLayout, &mut Marks) {
        (&self.layout, &mut self.marks)
    }

    /// Views for the members of a running step.
    pub fn views(&mut self) -> CacheViews<'_> {
        CacheViews {
            elem: self.layout.kv_elem,
            pool: Shared::new(&mut self.pool),
            bases: &self.bases,
            slots: Shared::new(&mut self.slots),
            parts: &self.parts,
            slot_len: self.slot_len,
        }
    }

    fn slot_range(&self, slot: usize) -> Range<usize> {
        slot * self.slot_len..(slot + 1) * self.slot_len
    }

    /// A copy of a slot.
    pub fn snapshot_slot(&self, slot: usize) -> Vec<f32> {
        self.slots[self.slot_range(slot)].to_vec()
    }

    /// Overwrites a slot.
    pub fn restore_slot(&mut self, slot: usize, snapshot: &[f32]) -> Result<(), BackendError> {
        if snapshot.len() != self.slot_len {
            let (got, want) = (snapshot.len() * 4, self.slot_len * 4);
            return Err(BackendError::SnapshotSize { got, want });
        }
        let range = self.slot_range(slot);
        self.slots[range].copy_from_slice(snapshot);
        Ok(())
    }

    /// One page of every layer, keys and values as `[kv_head][position][channel]`.
    pub fn snapshot_page(&self, page: usize) -> Vec<u8> {
        let elem = self.layout.kv_elem;
        let mut out = Vec::with_capacity(self.layout.kv_bytes_per_token() * PAGE_TOKENS);
        for (dims, base) in self.layout.kv_layers.iter().zip(&self.bases) {
            let size = page_bytes(dims, elem);
            let (keys, values) = self.pool[base + page * size..][..size].split_at(size / 2);
            for head in keys.chunks_exact(half_bytes(dims, elem)) {
                turn(head, (dims.head_dim, PAGE_TOKENS), elem.bytes(), &mut out);
            }
            out.extend_from_slice(values);
        }
        out
    }

    /// Overwrites a page.
    pub fn restore_page(&mut self, page: usize, bytes: &[u8]) -> Result<(), BackendError> {
        let elem = self.layout.kv_elem;
        let want = self.layout.kv_bytes_per_token() * PAGE_TOKENS;
        if bytes.len() != want {
            return Err(BackendError::SnapshotSize { got: bytes.len(), want });
        }
        let mut rest = bytes;
        for (dims, base) in self.layout.kv_layers.iter().zip(&self.bases) {
            let size = page_bytes(dims, elem);
            let (own, after) = rest.split_at(size);
            let (keys, values) = own.split_at(size / 2);
            let mut turned = Vec::with_capacity(size);
            for head in keys.chunks_exact(half_bytes(dims, elem)) {
                turn(head, (PAGE_TOKENS, dims.head_dim), elem.bytes(), &mut turned);
            }
            turned.extend_from_slice(values);
            self.pool[base + page * size..][..size].copy_from_slice(&turned);
            rest = after;
        }
        Ok(())
    }
}

/// Appends the transpose of a `rows` by `cols` matrix of elements of `width` bytes.
fn turn(matrix: &[u8], (rows, cols): (usize, usize), width: usize, out: &mut Vec<u8>) {
    for col in 0..cols {
        for row in 0..rows {
            out.extend_from_slice(&matrix[(row * cols + col) * width..][..width]);
        }
    }
}

/// The caches as members of a running step see them.
pub(crate) struct CacheViews<'a> {
    elem: KvElem,
    pool: Shared<'a, u8>,
    bases: &'a [usize],
    slots: Shared<'a, f32>,
    parts: &'a [(usize, SlotLayout)],
    slot_len: usize,
}

impl<'a> CacheViews<'a> {
    /// Element type of the pages.
    pub fn elem(&self) -> KvElem {
        self.elem
    }

    /// Layout of a state layer's part of a slot.
    pub fn slot_layout(&self, layer: usize) -> &'a SlotLayout {
        &self.parts[layer].1
    }

    fn half(
        &self,
        layer: usize,
        dims: &AttentionDims,
        page: usize,
        half: usize,
        head: usize,
    ) -> Range<usize> {
        let size = half_bytes(dims, self.elem);
        let start =
            self.bases[layer] + page * page_bytes(dims, self.elem) + (half * dims.kv_heads + head) * size;
        start..start + size
    }

    /// Keys `[channel][position]` and values `[position][channel]` of one head of a page.
    ///
    /// # Safety
    /// No other member writes them now.
    pub unsafe fn page(
        &self,
        layer: usize,
        dims: &AttentionDims,
        page: usize,
        head: usize,
    ) -> (&'a [u8], &'a [u8]) {
        let half = |which| self.half(layer, dims, page, which, head);
        // SAFETY: the caller vouches for it.
        unsafe { (self.pool.read(half(0)), self.pool.read(half(1))) }
    }

    /// The same to write.
    ///
    /// # Safety
    /// No other member touches this head of this page now.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn page_mut(
        &self,
        layer: usize,
        dims: &AttentionDims,
        page: usize,
        head: usize,
    ) -> (&'a mut [u8], &'a mut [u8]) {
        let half = |which| self.half(layer, dims, page, which, head);
        // SAFETY: the caller vouches for it, and the two halves do not overlap.
        unsafe { (self.pool.write(half(0)), self.pool.write(half(1))) }
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
    /// No other member writes them now.
    pub unsafe fn slot(&self, slot: usize, layer: usize, range: Range<usize>) -> &'a [f32] {
        // SAFETY: the caller vouches for it.
        unsafe { self.slots.read(self.slot_range(slot, layer, range)) }
    }

    /// The same to write.
    ///
    /// # Safety
    /// No other member, and no other borrow of this one, touches them now.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slot_mut(&self, slot: usize, layer: usize, range: Range<usize>) -> &'a mut [f32] {
        // SAFETY: the caller vouches for it.
        unsafe { self.slots.write(self.slot_range(slot, layer, range)) }
    }
}
