//! `attention`: appends k and v to the pages, then `y = Σ_s softmax_s(q·k_s/√d)·v_s` over all positions up
//! to the row's own, key block by key block from the sequence's start.
//!
//! First phase: an item is a key head of a segment. Second phase: an item is a block of queries (rows
//! times query heads) that share a key head. Pages are widened to f32 once per item. Bytes: the pages
//! once per item; FLOPs: 4 per query, position and channel.
#![allow(unsafe_code)]

use mambo_kernel::{AttentionDims, Operand, PAGE_TOKENS, Segment};

use super::attention_block::{Block, Running, SHARED, finish};
use super::kv_page::Half;
use super::{Cx, Scratch, ScratchNeed, Work};
use crate::shared::View;
use crate::simd::{Simd, part, part_mut, vectors};

/// Most queries of an item.
const QUERIES: usize = 32;

pub(crate) struct Attention {
    pub q: Operand,
    pub k: Operand,
    pub v: Operand,
    pub out: Operand,
    pub dims: AttentionDims,
    pub layer: usize,
}

/// Queries of one key head: query `i` is head `i mod share` of row `i / share`.
struct Queries {
    kv_head: usize,
    first: usize,
    count: usize,
}

impl Attention {
    /// How keys and values are stored.
    #[inline(always)]
    fn halves(&self, cx: &Cx) -> (Half, Half) {
        let (types, scale) = (cx.caches.kv_types(), cx.caches.kv_scale(self.layer));
        let head_dim = self.dims.head_dim;
        (Half { elem: types.k, scale: scale.k, head_dim }, Half { elem: types.v, scale: scale.v, head_dim })
    }

    /// Stores one head's keys and values of a segment.
    #[inline(always)]
    fn append<S: Simd>(&self, cx: &Cx, segment: &Segment, head: usize, k: &View, v: &View) {
        let n = self.dims.head_dim;
        let (key_half, value_half) = self.halves(cx);
        for t in 0..segment.rows as usize {
            let position = segment.position as usize + t;
            let page = cx.step.pages[segment.first_page as usize + position / PAGE_TOKENS] as usize;
            let at = position % PAGE_TOKENS;
            // SAFETY: a key head of a segment's pages belongs to one item.
            let (keys, values) = unsafe { cx.caches.page_mut(self.layer, &self.dims, page, head) };
            let row = segment.first_row as usize + t;
            let (k, v) = (&k.row(row)[head * n..(head + 1) * n], &v.row(row)[head * n..(head + 1) * n]);
            key_half.store_keys::<S>(k, at, keys);
            value_half.store_values::<S>(v, at, values);
        }
    }

    /// Computes a block of queries.
    #[inline(always)]
    fn attend<S: Simd>(&self, cx: &Cx, segment: &Segment, block: &Queries, floats: &mut [f32]) {
        let n = self.dims.head_dim;
        let share = self.dims.q_heads / self.dims.kv_heads;
        let (key_half, value_half) = self.halves(cx);
        let (q, out) = (cx.view(&self.q), cx.view(&self.out));
        let (keys, rest) = floats.split_at_mut(PAGE_TOKENS * n);
        let (values, rest) = rest.split_at_mut(PAGE_TOKENS * n);
        let (queries, rest) = rest.split_at_mut(QUERIES * n);
        let sums = &mut rest[..QUERIES * n];
        sums.fill(0.0);
        let mut running = [Running::START; QUERIES];
        // Row and first column of a query.
        let place = |i: usize| {
            let (row, head) = ((block.first + i) / share, block.kv_head * share + (block.first + i) % share);
            (row, head * n)
        };
        let scale = S::splat(1.0 / (n as f32).sqrt());
        for (i, query) in queries.chunks_exact_mut(n).take(block.count).enumerate() {
            let (row, col) = place(i);
            let from = &q.row(segment.first_row as usize + row)[col..col + n];
            for v in 0..vectors(n) {
                S::store_part(S::mul(S::load_part(part(from, v)), scale), part_mut(query, v));
            }
        }
        let position = |i: usize| segment.position as usize + place(i).0;
        let pages = &cx.step.pages[segment.first_page as usize..];
        for (index, &page) in pages[..=position(block.count - 1) / PAGE_TOKENS].iter().enumerate() {
            // SAFETY: pages were written before the barrier.
            let stored = unsafe { cx.caches.page(self.layer, &self.dims, page as usize, block.kv_head) };
            key_half.widen_keys::<S>(stored.0, keys);
            value_half.widen_values::<S>(stored.1, values);
            let key_block = Block { keys, values, head_dim: n };
            let start = index * PAGE_TOKENS;
            let seen = |i: usize| (position(i) + 1).saturating_sub(start).min(PAGE_TOKENS);
            // Queries stand in order of position: those before this block come first.
            let mut i = (0..block.count).find(|&i| seen(i) > 0).unwrap_or(block.count);
            while i + SHARED <= block.count {
                let seen: [usize; SHARED] = std::array::from_fn(|j| seen(i + j));
                key_block.attend::<S, SHARED>(
                    &queries[i * n..],
                    &seen,
                    &mut running[i..],
                    &mut sums[i * n..],
                );
                i += SHARED;
            }
            for i in i..block.count {
                key_block.attend::<S, 1>(
                    &queries[i * n..],
                    &[seen(i)],
                    &mut running[i..],
                    &mut sums[i * n..],
                );
            }
        }
        for (i, sums) in sums.chunks_exact(n).take(block.count).enumerate() {
            let (row, col) = place(i);
            // SAFETY: a head of a row belongs to one item.
            let out = unsafe { out.cols_mut(segment.first_row as usize + row, col..col + n) };
            finish::<S>(sums, running[i].sum, out);
        }
    }
}

impl Work for Attention {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, scratch: &mut Scratch) {
        let segments = cx.step.segments;
        let (k, v) = (cx.view(&self.k), cx.view(&self.v));
        let kv_heads = self.dims.kv_heads;
        while let Some(item) = cx.next(0, segments.len() * kv_heads) {
            self.append::<S>(cx, &segments[item / kv_heads], item % kv_heads, &k, &v);
        }
        cx.barrier();
        let share = self.dims.q_heads / kv_heads;
        let total = k.rows() * self.dims.q_heads;
        let size = total.div_ceil(cx.members).next_multiple_of(SHARED).min(QUERIES);
        let blocks = |segment: &Segment| (segment.rows as usize * share).div_ceil(size);
        let items = segments.iter().map(|s| blocks(s) * kv_heads).sum();
        let (mut segment, mut first_item) = (0, 0);
        while let Some(item) = cx.next(1, items) {
            // Items come in ascending order: walk on to the segment that has this one.
            while item >= first_item + blocks(&segments[segment]) * kv_heads {
                first_item += blocks(&segments[segment]) * kv_heads;
                segment += 1;
            }
            let own = &segments[segment];
            let (kv_head, block) = ((item - first_item) / blocks(own), (item - first_item) % blocks(own));
            let first = block * size;
            let count = size.min(own.rows as usize * share - first);
            self.attend::<S>(cx, own, &Queries { kv_head, first, count }, &mut scratch.floats);
        }
    }

    fn scratch(&self, _: usize) -> ScratchNeed {
        ScratchNeed { floats: 2 * (PAGE_TOKENS + QUERIES) * self.dims.head_dim, ..ScratchNeed::default() }
    }
}
