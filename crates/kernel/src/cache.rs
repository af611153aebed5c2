//! The two kinds of memory a sequence carries, described as data: KV pages and recurrent slots.
//!
//! The layouts here are part of the contract: a snapshot has them on every backend, so one taken on one can be
//! restored on another. A backend may use another layout internally.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::cache_elem::{KvScale, KvTypes, StateElem};
use crate::dims::{AttentionDims, SsmDims};
use crate::rounding::state_seed;

/// Positions per chunk of the scan. A chunk starts at a multiple of this, so that the arithmetic of a
/// token depends on its position and not on how the prompt was cut.
pub const SSM_CHUNK: usize = 32;

/// Positions per KV page; also the key block of attention's online softmax.
pub const PAGE_TOKENS: usize = 32;

/// How far back a recurrent slot can be rolled without a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rollback {
    /// Not at all.
    #[default]
    None,
    /// Up to [`SSM_CHUNK`] tokens: the slot keeps the state and inputs of the previous chunk too.
    OneChunk,
}

impl Rollback {
    /// Tokens that can be taken back by moving the cursor.
    pub fn tokens(self) -> usize {
        (self.chunks() - 1) * SSM_CHUNK
    }

    /// Chunks whose state and inputs a slot holds.
    pub fn chunks(self) -> usize {
        match self {
            Rollback::None => 1,
            Rollback::OneChunk => 2,
        }
    }
}

/// Attention layers that see equally far back, and the pages they share: a page holds [`PAGE_TOKENS`] positions of each
/// of them. Sequences hold pages of every group, and of a group with a window no more than their next tokens see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// Positions that a token sees in these layers, itself included; all where none.
    pub window: Option<usize>,
    /// The layers, indices into [`CacheLayout::kv_layers`], ascending.
    pub layers: Vec<usize>,
    /// Pages in the pool; every layer of the group has this many.
    pub pages: usize,
}

impl KvGroup {
    /// The groups of layers with these windows, without pages yet: those that see everything first, then by window. The
    /// order is part of the contract, because page lists and snapshots follow it.
    pub fn by_window(windows: impl IntoIterator<Item = Option<usize>>) -> Vec<KvGroup> {
        let mut groups: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
        for (layer, window) in windows.into_iter().enumerate() {
            groups.entry(window).or_default().push(layer);
        }
        groups.into_iter().map(|(window, layers)| KvGroup { window, layers, pages: 0 }).collect()
    }

    /// The index in a page list of the first page that a token at this position, or any after it, reads.
    pub fn first_page(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window) / PAGE_TOKENS)
    }
}

/// Everything the caches of one loaded model hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheLayout {
    /// Attention layers, in layer order; an MTP head's attention comes last.
    pub kv_layers: Vec<AttentionDims>,
    /// Element types of the pages.
    pub kv_types: KvTypes,
    /// Scales of 8-bit floats by attention layer; 1 where the list ends.
    pub kv_scales: Vec<KvScale>,
    /// The page pools; every attention layer is in one of them.
    pub kv_groups: Vec<KvGroup>,
    /// Recurrent layers, in layer order.
    pub state_layers: Vec<SsmDims>,
    /// Element type of the states in the slots.
    pub state_elem: StateElem,
    /// Recurrent slots: sequences that can be resident at once.
    pub slots: usize,
    /// How far slots roll back.
    pub rollback: Rollback,
}

impl CacheLayout {
    /// Bytes one position takes over all attention layers.
    pub fn kv_bytes_per_token(&self) -> usize {
        self.kv_layers.iter().map(|a| self.kv_types.token_bytes(a)).sum()
    }

    /// Bytes of a page of a group.
    pub fn page_bytes(&self, group: usize) -> usize {
        let layers = self.kv_groups[group].layers.iter();
        layers.map(|layer| self.kv_types.page_bytes(&self.kv_layers[*layer])).sum()
    }

    /// Bytes of all page pools.
    pub fn kv_bytes(&self) -> usize {
        let pool = |group: usize| self.page_bytes(group).saturating_mul(self.kv_groups[group].pages);
        (0..self.kv_groups.len()).map(pool).fold(0, usize::saturating_add)
    }

    /// Pages of all pools.
    pub fn pages(&self) -> usize {
        self.kv_groups.iter().map(|group| group.pages).fold(0, usize::saturating_add)
    }

    /// The group of an attention layer.
    pub fn kv_group(&self, layer: usize) -> usize {
        let group = self.kv_groups.iter().position(|group| group.layers.contains(&layer));
        group.expect("every attention layer is in a group")
    }

    /// The scales of an attention layer.
    pub fn kv_scale(&self, layer: usize) -> KvScale {
        self.kv_scales.get(layer).copied().unwrap_or_default()
    }

    /// Offsets within the part of a slot that belongs to one state layer.
    pub fn slot_layout(&self, layer: usize) -> SlotLayout {
        SlotLayout::new(self.state_layers[layer], self.rollback, self.state_elem, layer)
    }

    /// Bytes of one slot over all state layers.
    pub fn slot_bytes(&self) -> usize {
        (0..self.state_layers.len()).map(|layer| self.slot_layout(layer).len * 4).sum()
    }
}

/// Layout of one layer's part of a recurrent slot; offsets and sizes count words of four bytes, which hold
/// one f32 or, in states of a narrower type, two elements.
///
/// Positions index the rings (`position mod capacity`), chunks index the states (`chunk mod chunks`).
/// Nothing needs clearing when a slot is reused: the state of chunk 0 is zero by definition, and so
/// is every column before position 0; kernels never read either from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    /// Sizes of the mixer.
    pub dims: SsmDims,
    /// Index among the state layers, which the random bits of rounding depend on.
    pub layer: usize,
    /// Element type of the states.
    pub elem: StateElem,
    /// States held: the state *at the start* of a chunk, `[heads]` of `[state][head_dim]`.
    pub chunks: usize,
    /// Offset of the states.
    pub state: usize,
    /// Words from one head's state to the next; each starts on a cache line.
    pub head_stride: usize,
    /// Offset of the ring of raw xBC columns, `[conv_capacity][conv_dim]`.
    pub conv: usize,
    /// Columns in that ring.
    pub conv_capacity: usize,
    /// Offset of the ring of x after convolution, `[ring_capacity][inner]`.
    pub ring_x: usize,
    /// Offset of the ring of B after convolution, `[ring_capacity][groups·state]`.
    pub ring_b: usize,
    /// Offset of the ring of dt after softplus, `[ring_capacity][heads]`.
    pub ring_dt: usize,
    /// Positions in the three rings; 0 where the mixer has no state.
    pub ring_capacity: usize,
    /// Length of the whole part.
    pub len: usize,
}

impl SlotLayout {
    /// The layout for one mixer, which is state layer `layer`.
    pub fn new(dims: SsmDims, rollback: Rollback, elem: StateElem, layer: usize) -> Self {
        let chunks = rollback.chunks();
        // A mixer without a state needs no more than the convolution's columns.
        let ring_capacity = if dims.state == 0 { 0 } else { SSM_CHUNK * chunks };
        let conv_capacity = dims.taps - 1 + rollback.tokens();
        // Sixteen words are a cache line and a vector: every part starts on one.
        let line = |words: usize| words.next_multiple_of(16);
        let mut end = 0;
        let mut part = |len: usize| {
            let start = end;
            end += line(len);
            start
        };
        let head_stride = line((dims.state * dims.head_dim * elem.bytes()).div_ceil(4));
        let state = part(chunks * dims.heads * head_stride);
        let conv = part(conv_capacity * dims.conv_dim());
        let ring_x = part(ring_capacity * dims.inner());
        let ring_b = part(ring_capacity * dims.group_state());
        let ring_dt = part(ring_capacity * dims.heads);
        SlotLayout {
            dims,
            layer,
            elem,
            chunks,
            state,
            head_stride,
            conv,
            conv_capacity,
            ring_x,
            ring_b,
            ring_dt,
            ring_capacity,
            len: end,
        }
    }

    /// Elements of one head's state.
    pub fn head_elems(&self) -> usize {
        self.dims.state * self.dims.head_dim
    }

    /// The words of a head's state at the start of the chunk that holds `position`.
    pub fn state_at(&self, position: usize, head: usize) -> Range<usize> {
        let chunk = position / SSM_CHUNK % self.chunks;
        let start = self.state + (chunk * self.dims.heads + head) * self.head_stride;
        start..start + (self.head_elems() * self.elem.bytes()).div_ceil(4)
    }

    /// Seed of the random bits that round a head's state at the start of the chunk that holds `position`.
    pub fn state_seed(&self, position: usize, head: usize) -> u32 {
        state_seed(self.layer, head, position / SSM_CHUNK)
    }

    /// A head's state at the start of the chunk that holds `position`.
    pub fn load_state(&self, part: &[f32], position: usize, head: usize) -> Vec<f32> {
        self.elem.load(&part[self.state_at(position, head)], self.head_elems())
    }

    /// Rounds and stores a head's state at the start of the chunk that holds `position`.
    pub fn store_state(&self, part: &mut [f32], position: usize, head: usize, state: &[f32]) {
        let seed = self.state_seed(position, head);
        self.elem.store(seed, state, &mut part[self.state_at(position, head)]);
    }
}
