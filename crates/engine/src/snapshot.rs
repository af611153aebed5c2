//! A sequence's memory at one position, outside the pools: recurrent slot and KV pages together.
//!
//! Either without the other is useless for a hybrid model, so they are never apart.

use mambo_kernel::{KvTypes, StateElem};

/// What a sequence remembers after its first `tokens`.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The tokens that ran.
    pub(crate) tokens: Vec<u32>,
    /// The furthest position the slot had run when it was copied.
    pub(crate) furthest: usize,
    /// What the bytes of the pages are; types of one size differ in nothing else.
    pub(crate) kv_types: KvTypes,
    /// What the states in the slot are.
    pub(crate) state_elem: StateElem,
    /// The recurrent slot.
    pub(crate) slot: Vec<f32>,
    /// The KV pages that hold those tokens.
    pub(crate) pages: Vec<Vec<u8>>,
}

impl Snapshot {
    /// The tokens that ran.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether a prompt can go on from here: it starts with the snapshot's tokens, and at least one token is
    /// left to run, or there would be no logits to sample from.
    pub fn begins(&self, prompt: &[u32]) -> bool {
        self.tokens.len() < prompt.len() && prompt.starts_with(&self.tokens)
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.slot.len() * 4 + self.pages.iter().map(Vec::len).sum::<usize>()
    }
}
