//! Cells: the units in which caches are copied, exported and imported. Their bytes are part of the contract, so
//! that a snapshot can move between backends; a backend may lay out its own memory differently.
//!
//! A page is, for every attention layer of its group, all heads' keys and then all heads' values, each as
//! [`crate::KvElem::head_bytes`] says. A slot at a position is, for every state layer, what the next token needs:
//! the state at the start of the position's chunk (unless that is the first), the last `taps - 1` raw columns of the
//! convolution, and x, B and dt of the chunk so far. At a multiple of [`SSM_CHUNK`] that is the state and the
//! convolution's tail alone. All numbers are little-endian.

use std::fmt;

use crate::cache::{CacheLayout, SSM_CHUNK, SlotLayout};

/// A unit of cache memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// One KV page of every attention layer of a group.
    Page {
        /// Index into [`CacheLayout::kv_groups`].
        group: u32,
        /// The page's number in the group's pool.
        page: u32,
    },
    /// A recurrent slot that has run so many tokens.
    Slot {
        /// Its index.
        slot: u32,
        /// Tokens it has run.
        position: u32,
    },
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cell::Page { group, page } => write!(f, "KV page {page} of group {group}"),
            Cell::Slot { slot, position } => write!(f, "recurrent slot {slot} at position {position}"),
        }
    }
}

impl CacheLayout {
    /// Bytes of an exported cell.
    pub fn cell_bytes(&self, cell: Cell) -> usize {
        match cell {
            Cell::Page { group, .. } => self.page_bytes(group as usize),
            Cell::Slot { position, .. } => {
                let parts = (0..self.state_layers.len()).map(|layer| self.slot_layout(layer));
                parts
                    .map(|part| part_ranges(part, position as usize).map(|r| r.len()).sum::<usize>() * 4)
                    .sum()
            }
        }
    }

    /// The words of a state layer's part that a slot's cell at a position holds, in the cell's order.
    pub fn slot_ranges(&self, layer: usize, position: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        part_ranges(self.slot_layout(layer), position)
    }

    /// Appends the cell of a slot whose words are laid out as [`SlotLayout`] says.
    pub fn export_slot(&self, words: &[f32], position: usize, into: &mut Vec<u8>) {
        for (part, words) in self.slot_parts(words.len()).map(|(part, range)| (part, &words[range])) {
            for words in part_ranges(part, position).map(|range| &words[range]) {
                let start = into.len();
                into.resize(start + size_of_val(words), 0);
                let bytes = into[start..].as_chunks_mut().0;
                bytes.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
            }
        }
    }

    /// Fills such a slot from the bytes of a cell, of which there are [`CacheLayout::cell_bytes`].
    pub fn import_slot(&self, words: &mut [f32], position: usize, bytes: &[u8]) {
        let mut rest = bytes.as_chunks().0;
        for (part, range) in self.slot_parts(words.len()) {
            let words = &mut words[range];
            for range in part_ranges(part, position) {
                let values = rest.split_off(..range.len()).expect("a cell has all bytes of its ranges");
                words[range]
                    .iter_mut()
                    .zip(values)
                    .for_each(|(word, bytes)| *word = f32::from_le_bytes(*bytes));
            }
        }
    }

    /// The values that the bytes of a slot's cell stand for: every layer's states, then the rest.
    pub fn slot_values(&self, position: usize, bytes: &[u8]) -> Vec<f32> {
        let words: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let (mut values, mut rest) = (Vec::new(), &words[..]);
        for layer in 0..self.state_layers.len() {
            let part = self.slot_layout(layer);
            for range in part_ranges(part, position) {
                let (own, after) = rest.split_at(range.len());
                match range.start < part.conv {
                    true => values.extend(part.elem.load(own, part.head_elems())),
                    false => values.extend_from_slice(own),
                }
                rest = after;
            }
        }
        values
    }

    /// Every state layer's layout with its words in a slot of so many.
    fn slot_parts(&self, words: usize) -> impl Iterator<Item = (SlotLayout, std::ops::Range<usize>)> {
        let mut start = 0;
        (0..self.state_layers.len()).map(move |layer| {
            let part = self.slot_layout(layer);
            let range = start..start + part.len;
            start = range.end;
            assert!(range.end <= words, "a slot of {words} words ends within layer {layer}");
            (part, range)
        })
    }
}

/// The words of one layer's part that a slot at a position needs, in the contract's order.
fn part_ranges(part: SlotLayout, position: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let dims = part.dims;
    let chunk_start = position - position % SSM_CHUNK;
    let heads = if chunk_start > 0 && dims.state > 0 { dims.heads } else { 0 };
    let states = (0..heads).map(move |head| part.state_at(chunk_start, head));
    let row = move |base: usize, entry: usize, width: usize| base + entry * width..base + (entry + 1) * width;
    let columns = (position.saturating_sub(dims.taps - 1)..position)
        .map(move |p| row(part.conv, p % part.conv_capacity, dims.conv_dim()));
    let ring = [(part.ring_x, dims.inner()), (part.ring_b, dims.group_state()), (part.ring_dt, dims.heads)];
    let ring = ring.into_iter().flat_map(move |(base, width)| {
        let positions = if part.ring_capacity == 0 { 0..0 } else { chunk_start..position };
        positions.map(move |p| row(base, p % part.ring_capacity, width))
    });
    states.chain(columns).chain(ring)
}
