//! `attention`: appends k and v to the pages, then `y = Σ_s softmax_s(score(q·k_s·scale))·v_s` over the positions up to
//! the row's own, or over a window of them. Scores may be capped, and every head may have a sink.
//!
//! Positions are processed in KV splits of fixed length: block by block within a split, and split by split into the
//! total. The result does not depend on which thread computes a split, so threads can share a few queries over a long
//! context (`attention_split.rs`). Splits and pages before a window are skipped, so a row's sums depend on its position
//! alone; a sink is added after the last split. Otherwise an item is a block of queries (rows times query heads) that share a key
//! head, with their whole context. Pages are widened to f32 once per item, or while they are read if there are few
//! queries. Bytes: the pages once per item; FLOPs: 4 per query, position and channel.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use mambo_kernel::{Elem, KvElem, Op, OpKind, Operand, PAGE_TOKENS, Segment, Site};

use super::attention_block::{Block, Running, SHARED, Softmax, Total, attend_page, finish, group_size};
use super::attention_split::SplitAttention;
use super::declaration::{Binding, Declaration};
use super::kv_page::HeadFormat;
use super::quantize::{can_round_groups, round_blocks};
use super::{Cx, Scratch, ScratchNeed, Work};
use crate::isa::{Isa, Vectorized};
use crate::shared::View;
use crate::simd::{Simd, part, part_mut, vectors};
use crate::stored::{F16, F32};

/// Maximum queries of an item.
pub(super) const QUERIES: usize = 32;
/// Pages of a KV split.
const SPLIT_PAGES: usize = 8;
/// Positions of a KV split.
const SPLIT_TOKENS: usize = SPLIT_PAGES * PAGE_TOKENS;

pub(crate) struct Attention {
    pub q: Operand,
    pub k: Operand,
    pub v: Operand,
    pub out: Operand,
    /// Where the quantised output goes.
    pub rounded: Option<Operand>,
    pub op: mambo_kernel::Attention,
    /// A score of each query head that takes part in its softmax, if heads have one.
    pub sinks: Option<Arc<Vec<f32>>>,
    pub layer: usize,
}

/// Queries of a segment that share a key head: with h = [`Attention::heads_per_kv`], query `i` is head `i mod h` of row
/// `i / h`.
pub(super) struct Queries<'a> {
    pub segment: &'a Segment,
    pub kv_head: usize,
    pub first: usize,
    pub count: usize,
}

/// Scratch memory of an item.
struct AttentionScratch<'a> {
    keys: &'a mut [f32],
    values: &'a mut [f32],
    /// Scaled queries.
    queries: &'a mut [f32],
    /// Weighted values of the current split.
    sums: &'a mut [f32],
    /// Weighted values of all splits before it.
    totals: &'a mut [f32],
}

impl<'a> AttentionScratch<'a> {
    fn of(floats: &'a mut [f32], head_dim: usize) -> AttentionScratch<'a> {
        let (keys, rest) = floats.split_at_mut(PAGE_TOKENS * head_dim);
        let (values, rest) = rest.split_at_mut(PAGE_TOKENS * head_dim);
        let (queries, rest) = rest.split_at_mut(QUERIES * head_dim);
        let (sums, rest) = rest.split_at_mut(QUERIES * head_dim);
        AttentionScratch { keys, values, queries, sums, totals: &mut rest[..QUERIES * head_dim] }
    }

    fn floats(head_dim: usize) -> usize {
        (2 * PAGE_TOKENS + 3 * QUERIES) * head_dim
    }
}

impl Attention {
    /// How keys and values are stored.
    #[inline(always)]
    fn formats(&self, cx: &Cx) -> (HeadFormat, HeadFormat) {
        let (types, scale) = (cx.caches.kv_types(), cx.caches.kv_scale(self.layer));
        let head_dim = self.op.dims.head_dim;
        (
            HeadFormat { elem: types.k, scale: scale.k, head_dim },
            HeadFormat { elem: types.v, scale: scale.v, head_dim },
        )
    }

    /// Appends one head's keys and values of a segment to its pages.
    #[inline(always)]
    fn append<S: Simd>(&self, cx: &Cx, segment: &Segment, head: usize, k: &View, v: &View) {
        let n = self.op.dims.head_dim;
        let (key_format, value_format) = self.formats(cx);
        let list = &cx.caches.page_lists(cx.step, self.layer)[segment.first_page as usize..];
        for t in 0..segment.rows as usize {
            let position = segment.position as usize + t;
            let page = list[position / PAGE_TOKENS] as usize;
            let at = position % PAGE_TOKENS;
            // SAFETY: a key head of a segment's pages belongs to one item.
            let (keys, values) = unsafe { cx.caches.page_mut(self.layer, page, head) };
            let row = segment.first_row as usize + t;
            let (k, v) = (&k.row(row)[head * n..(head + 1) * n], &v.row(row)[head * n..(head + 1) * n]);
            key_format.store_keys::<S>(k, at, keys);
            value_format.store_values::<S>(v, at, values);
        }
    }

    /// Query heads per key head.
    #[inline(always)]
    pub(super) fn heads_per_kv(&self) -> usize {
        self.op.dims.q_heads / self.op.dims.kv_heads
    }

    /// Row of the step and first column of a query.
    #[inline(always)]
    pub(super) fn row_and_col(&self, block: &Queries, i: usize) -> (usize, usize) {
        let (heads, at) = (self.heads_per_kv(), block.first + i);
        (
            block.segment.first_row as usize + at / heads,
            (block.kv_head * heads + at % heads) * self.op.dims.head_dim,
        )
    }

    /// Position of a query.
    #[inline(always)]
    fn position(&self, block: &Queries, i: usize) -> usize {
        block.segment.position as usize + (block.first + i) / self.heads_per_kv()
    }

    /// Splits that a query at a position sees.
    #[inline(always)]
    pub(super) fn splits_at(&self, position: usize) -> Range<usize> {
        self.op.first_seen(position) / SPLIT_TOKENS..position / SPLIT_TOKENS + 1
    }

    /// Splits that a block's queries see.
    #[inline(always)]
    pub(super) fn splits(&self, block: &Queries) -> Range<usize> {
        let first = self.splits_at(self.position(block, 0)).start;
        first..self.splits_at(self.position(block, block.count - 1)).end
    }

    /// Positions within a page that a query sees.
    #[inline(always)]
    fn seen(&self, block: &Queries, i: usize, page: usize) -> Range<usize> {
        let position = self.position(block, i);
        let within = |at: usize| at.saturating_sub(page * PAGE_TOKENS).min(PAGE_TOKENS);
        within(self.op.first_seen(position))..within(position + 1)
    }

    /// Scales the queries of a block.
    #[inline(always)]
    fn scale_queries<S: Simd>(&self, cx: &Cx, block: &Queries, scratch: &mut AttentionScratch) {
        let n = self.op.dims.head_dim;
        let q = cx.view(&self.q);
        let scale = S::splat(self.op.scale);
        for (i, query) in scratch.queries.chunks_exact_mut(n).take(block.count).enumerate() {
            let (row, col) = self.row_and_col(block, i);
            let from = &q.row(row)[col..col + n];
            for v in 0..vectors(n) {
                S::store_part(S::mul(S::load_part(part(from, v)), scale), part_mut(query, v));
            }
        }
    }

    /// One KV split of scaled queries, into the scratch's sums.
    #[inline(always)]
    fn split<S: Simd>(
        &self,
        cx: &Cx,
        block: &Queries,
        split: usize,
        scratch: &mut AttentionScratch,
    ) -> [Running; QUERIES] {
        let n = self.op.dims.head_dim;
        let (key_format, value_format) = self.formats(cx);
        let AttentionScratch { keys, values, queries, sums, .. } = scratch;
        sums[..block.count * n].fill(0.0);
        let mut running = [Running::START; QUERIES];
        let last = self.position(block, block.count - 1) / PAGE_TOKENS;
        let first = (split * SPLIT_PAGES).max(self.op.first_seen(self.position(block, 0)) / PAGE_TOKENS);
        let end = ((split + 1) * SPLIT_PAGES).min(last + 1);
        let list = &cx.caches.page_lists(cx.step, self.layer)[block.segment.first_page as usize..];
        let page = |index: usize| {
            // SAFETY: pages were written before the barrier.
            unsafe { cx.caches.page(self.layer, list[index] as usize, block.kv_head) }
        };
        for index in first..end {
            let stored = page(index);
            // The next split is usually this thread's too; prefetching what is already in cache costs nothing.
            let next = if index < last { page(index + 1) } else { stored };
            let seen = |i: usize| self.seen(block, i, index);
            let state = (&**queries, &mut running, &mut **sums);
            let is_read_once = group_size::<S>(block.count) == block.count;
            if is_read_once && [key_format.elem, value_format.elem] == [KvElem::F16; 2] {
                // Widened in registers, not in memory.
                attend_page::<S, F16>(
                    Block::new(stored, n, self.op.soft_cap, next),
                    block.count,
                    seen,
                    state,
                );
            } else {
                key_format.widen_keys::<S>(stored.0, keys);
                value_format.widen_values::<S>(stored.1, values);
                let widened = (bytemuck::cast_slice(keys), bytemuck::cast_slice(values));
                attend_page::<S, F32>(
                    Block::new(widened, n, self.op.soft_cap, next),
                    block.count,
                    seen,
                    state,
                );
            }
        }
        running
    }

    /// Computes a block of queries.
    #[inline(always)]
    fn attend<S: Simd>(&self, cx: &Cx, block: &Queries, floats: &mut [f32]) {
        let n = self.op.dims.head_dim;
        let mut scratch = AttentionScratch::of(floats, n);
        self.scale_queries::<S>(cx, block, &mut scratch);
        let splits = self.splits(block);
        let running =
            S::call(OneSplit { attention: self, cx, block, split: splits.start, scratch: &mut scratch });
        let mut totals = [Softmax::EMPTY; QUERIES];
        for (total, running) in totals.iter_mut().zip(&running).take(block.count) {
            *total = running.end::<S>();
        }
        std::mem::swap(&mut scratch.sums, &mut scratch.totals);
        for split in splits.start + 1..splits.end {
            let running = S::call(OneSplit { attention: self, cx, block, split, scratch: &mut scratch });
            for (i, sums) in scratch.totals.chunks_exact_mut(n).take(block.count).enumerate() {
                if !self.splits_at(self.position(block, i)).contains(&split) {
                    continue;
                }
                let mut total = Total { softmax: &mut totals[i], sums };
                total.add::<S>(running[i].end::<S>(), &scratch.sums[i * n..(i + 1) * n]);
            }
        }
        for (i, sums) in scratch.totals.chunks_exact_mut(n).take(block.count).enumerate() {
            let (row, col) = self.row_and_col(block, i);
            let total = Total { softmax: &mut totals[i], sums };
            // SAFETY: a head of a row belongs to one item.
            unsafe { self.finish::<S>(cx, total, row, col / n) };
        }
    }

    /// Writes the output of a row's query head after its last split.
    ///
    /// # Safety
    /// No other thread touches this head of the row concurrently.
    #[inline(always)]
    pub(super) unsafe fn finish<S: Simd>(&self, cx: &Cx, mut total: Total, row: usize, head: usize) {
        if let Some(sinks) = &self.sinks {
            total.add_sink::<S>(sinks[head]);
        }
        let first = head * self.op.dims.head_dim;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { cx.view(&self.out).cols_mut(row, first..first + self.op.dims.head_dim) };
        finish::<S>(total.sums, total.softmax.sum, out);
        if let Some(rounded) = &self.rounded {
            // SAFETY: as above; a head is whole blocks.
            unsafe { round_blocks::<S>(out, &cx.view(rounded), row, first) };
        }
    }

    /// Computes one split of a block of queries and passes each query's partial result to `take`.
    #[inline(always)]
    pub(super) fn attend_split<S: Simd>(
        &self,
        cx: &Cx,
        block: &Queries,
        split: usize,
        floats: &mut [f32],
        mut take: impl FnMut(usize, Softmax, &[f32]),
    ) {
        let n = self.op.dims.head_dim;
        let mut scratch = AttentionScratch::of(floats, n);
        self.scale_queries::<S>(cx, block, &mut scratch);
        let running = S::call(OneSplit { attention: self, cx, block, split, scratch: &mut scratch });
        for (i, sums) in scratch.sums.chunks_exact(n).take(block.count).enumerate() {
            take(i, running[i].end::<S>(), sums);
        }
    }

    /// Block `item` of up to `size` queries of a segment; blocks of a key head are consecutive.
    #[inline(always)]
    pub(super) fn block<'a>(&self, segment: &'a Segment, size: usize, item: usize) -> Queries<'a> {
        let (count, blocks) = (segment.rows as usize * self.heads_per_kv(), self.blocks(segment, size));
        let first = item % blocks * size;
        Queries { segment, kv_head: item / blocks, first, count: size.min(count - first) }
    }

    /// Number of query blocks per key head of a segment.
    #[inline(always)]
    pub(super) fn blocks(&self, segment: &Segment, size: usize) -> usize {
        (segment.rows as usize * self.heads_per_kv()).div_ceil(size)
    }
}

/// A split of a block of queries, most of this kernel's code.
struct OneSplit<'a, 's> {
    attention: &'a Attention,
    cx: &'a Cx<'a>,
    block: &'a Queries<'a>,
    split: usize,
    scratch: &'a mut AttentionScratch<'s>,
}

impl Vectorized for OneSplit<'_, '_> {
    type Output = [Running; QUERIES];
    type Home = Attention;

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        self.attention.split::<S>(self.cx, self.block, self.split, self.scratch)
    }
}

impl Work for Attention {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, scratch: &mut Scratch) {
        let segments = cx.step.segments;
        let (k, v) = (cx.view(&self.k), cx.view(&self.v));
        let kv_heads = self.op.dims.kv_heads;
        while let Some(item) = cx.next(0, segments.len() * kv_heads) {
            self.append::<S>(cx, &segments[item / kv_heads], item % kv_heads, &k, &v);
        }
        cx.barrier();
        if let Some(split) = SplitAttention::of(self, cx, k.rows()) {
            return split.work::<S>(cx, &mut scratch.floats);
        }
        let total = k.rows() * self.op.dims.q_heads;
        let size = total.div_ceil(cx.threads).next_multiple_of(SHARED).min(QUERIES);
        let items_of = |segment: &Segment| self.blocks(segment, size) * kv_heads;
        let (mut segment, mut first_item) = (0, 0);
        while let Some(item) = cx.next(1, segments.iter().map(items_of).sum()) {
            // Items come in ascending order: advance to the segment of this one.
            while item >= first_item + items_of(&segments[segment]) {
                first_item += items_of(&segments[segment]);
                segment += 1;
            }
            let block = self.block(&segments[segment], size, item - first_item);
            self.attend::<S>(cx, &block, &mut scratch.floats);
        }
    }

    fn scratch(&self, _: usize) -> ScratchNeed {
        let head_dim = self.op.dims.head_dim;
        let (floats, shared) = (AttentionScratch::floats(head_dim), SplitAttention::floats(head_dim));
        ScratchNeed { floats, shared, ..ScratchNeed::default() }
    }
}

/// Operations per second of one thread, which has exponentials between its products.
const FLOPS: f64 = 20e9;

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| match b.call.op {
        Op::Attention(op) => {
            let sinks = if op.sinks { Some(b.vector(0, op.dims.q_heads)?) } else { None };
            let (q, k, v) = (b.x(), b.input(1), b.input(2));
            let (out, rounded, layer) = (b.out(), b.call.rounded, b.layer());
            b.kernel(Attention { q, k, v, out, rounded, op, sinks, layer })
        }
        _ => b.wrong_op(),
    };
    let rounds = |site: &Site, to: Elem| match site.op {
        Op::Attention(op) => can_round_groups(site.input_cols(), op.dims.q_heads, to),
        _ => false,
    };
    let declaration = Declaration::new(isa, OpKind::Attention, "f32", bind).shared().at(FLOPS);
    vec![declaration.offering(|row| row.rounding(rounds))]
}
