//! The two kinds of memory a sequence carries, described as data: KV pages and recurrent slots.
//!
//! The layouts here are part of the contract: kernels of every backend agree on them, so a snapshot
//! taken on one backend can be restored on another.

use crate::op::{AttentionDims, SsmDims};

/// Positions per chunk of the scan. A chunk starts at a multiple of this, so that the arithmetic of a
/// token depends on its position and not on how the prompt was cut.
pub const SSM_CHUNK: usize = 32;

/// Positions per KV page; also the key block of attention's online softmax.
pub const PAGE_TOKENS: usize = 32;

/// Element type of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvElem {
    /// 32-bit float: what checkpoints stored in f32 deserve.
    F32,
    /// 16-bit float.
    F16,
}

impl KvElem {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            KvElem::F32 => 4,
            KvElem::F16 => 2,
        }
    }

    /// The name in flags and printed plans.
    pub fn name(self) -> &'static str {
        match self {
            KvElem::F32 => "f32",
            KvElem::F16 => "f16",
        }
    }
}

/// How far back a recurrent slot can be rolled without a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rollback {
    /// Not at all.
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

/// Everything the caches of one loaded model hold.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheLayout {
    /// Attention layers, in layer order; an MTP head's attention comes last.
    pub kv_layers: Vec<AttentionDims>,
    /// Element type of the pages.
    pub kv_elem: KvElem,
    /// Pages in the pool; every layer has this many.
    pub pages: usize,
    /// Mamba-2 layers, in layer order.
    pub state_layers: Vec<SsmDims>,
    /// Recurrent slots: sequences that can be resident at once.
    pub slots: usize,
    /// How far slots roll back.
    pub rollback: Rollback,
}

impl CacheLayout {
    /// Bytes one position takes over all attention layers.
    pub fn kv_bytes_per_token(&self) -> usize {
        let elems: usize = self.kv_layers.iter().map(|a| 2 * a.kv_heads * a.head_dim).sum();
        elems * self.kv_elem.bytes()
    }

    /// Bytes of the whole page pool.
    pub fn kv_bytes(&self) -> usize {
        self.kv_bytes_per_token() * PAGE_TOKENS * self.pages
    }

    /// Where things stand in the part of a slot that belongs to one state layer.
    pub fn slot_layout(&self, layer: usize) -> SlotLayout {
        SlotLayout::new(self.state_layers[layer], self.rollback)
    }

    /// Bytes of one slot over all state layers.
    pub fn slot_bytes(&self) -> usize {
        self.state_layers.iter().map(|d| SlotLayout::new(*d, self.rollback).len * 4).sum()
    }
}

/// Layout of one layer's part of a recurrent slot; offsets and sizes count f32 values.
///
/// Positions index the rings (`position mod capacity`), chunks index the states (`chunk mod chunks`).
/// Nothing needs clearing when a slot is reused: the state of chunk 0 is zero by definition, and so
/// is every column before position 0; kernels never read either from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    /// Sizes of the mixer.
    pub dims: SsmDims,
    /// States held: the state *at the start* of a chunk, `[heads][state][head_dim]`.
    pub chunks: usize,
    /// Offset of the states; each is `heads·state·head_dim` long.
    pub state: usize,
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
    /// Positions in the three rings.
    pub ring_capacity: usize,
    /// Length of the whole part.
    pub len: usize,
}

impl SlotLayout {
    /// The layout for one mixer.
    pub fn new(dims: SsmDims, rollback: Rollback) -> Self {
        let chunks = rollback.chunks();
        let ring_capacity = SSM_CHUNK * chunks;
        let conv_capacity = dims.taps - 1 + rollback.tokens();
        // Sixteen floats are a cache line and a vector: every part starts on one.
        let mut end = 0;
        let mut part = |len: usize| {
            let start = end;
            end += len.next_multiple_of(16);
            start
        };
        let state = part(chunks * dims.heads * dims.state * dims.head_dim);
        let conv = part(conv_capacity * dims.conv_dim());
        let ring_x = part(ring_capacity * dims.inner());
        let ring_b = part(ring_capacity * dims.group_state());
        let ring_dt = part(ring_capacity * dims.heads);
        SlotLayout {
            dims,
            chunks,
            state,
            conv,
            conv_capacity,
            ring_x,
            ring_b,
            ring_dt,
            ring_capacity,
            len: end,
        }
    }

    /// Offset of the state at the start of the chunk that holds `position`.
    pub fn state_at(&self, position: usize) -> usize {
        let chunk = position / SSM_CHUNK % self.chunks;
        self.state + chunk * self.dims.heads * self.dims.state * self.dims.head_dim
    }
}
