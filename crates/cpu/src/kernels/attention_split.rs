//! Few queries with a long context: threads share its KV splits.
//!
//! An item is one split of a block of queries. Partial results go to scratch memory that threads share; after a barrier
//! each thread adds up the splits of its queries, in the order in which a single thread would. If the scratch memory
//! is too small for all splits, there are several passes. The last pass ends without a barrier, because the next call
//! that writes the shared scratch has one first (`Cx::shared_scratch`).
#![allow(unsafe_code)]

use std::ops::Range;

use super::Cx;
use super::attention::{Attention, QUERIES, Queries};
use super::attention_block::{Softmax, Total};
use crate::simd::Simd;

/// Partial results (splits of a query) and totals held at once per thread: enough to keep all threads busy between two
/// barriers.
const HELD: usize = 256;
/// Maximum of partial results and totals held at once.
const MOST_HELD: usize = 4096;
/// The phase whose counter hands out splits; keys are appended in the one before.
const PHASE: usize = 1;
/// Items per thread from which splitting is not worthwhile.
const ENOUGH: usize = 4;

/// Attention whose KV splits are divided among threads.
pub(super) struct SplitAttention<'a> {
    attention: &'a Attention,
    /// Queries of the step.
    queries: usize,
    /// Splits that any query sees.
    splits: Range<usize>,
    /// Splits per query and pass.
    at_once: usize,
}

impl<'a> SplitAttention<'a> {
    /// Floats of shared scratch.
    pub fn floats(head_dim: usize) -> usize {
        MOST_HELD * (head_dim + 2)
    }

    /// Splits the work if there would be too few items otherwise.
    #[inline(always)]
    pub fn of(attention: &'a Attention, cx: &Cx, rows: usize) -> Option<SplitAttention<'a>> {
        let queries = rows * attention.op.dims.q_heads;
        // A total and at least two splits per query must fit.
        let held = (HELD * cx.threads).min(MOST_HELD);
        if queries == 0 || 3 * queries > held {
            return None;
        }
        let (mut items, mut first, mut end) = (0, usize::MAX, 0);
        for segment in cx.step.segments {
            let blocks = attention.blocks(segment, QUERIES);
            items += blocks * attention.op.dims.kv_heads;
            first = attention.splits(&attention.block(segment, QUERIES, 0)).start.min(first);
            end = attention.splits(&attention.block(segment, QUERIES, blocks - 1)).end.max(end);
        }
        let splits = first.min(end)..end;
        let is_worth_it = cx.threads > 1 && splits.len() > 1 && items < ENOUGH * cx.threads;
        is_worth_it.then_some(SplitAttention { attention, queries, splits, at_once: held / queries - 1 })
    }

    /// Computes all queries.
    #[inline(always)]
    pub fn work<S: Simd>(&self, cx: &Cx, floats: &mut [f32]) {
        let (mut first, mut taken) = (self.splits.start, 0);
        while first < self.splits.end {
            let pass = first..self.splits.end.min(first + self.at_once);
            self.compute_splits::<S>(cx, &pass, taken, floats);
            cx.barrier();
            taken = cx.runs_taken(PHASE);
            for query in cx.own(self.queries) {
                self.add_up::<S>(cx, &pass, query);
            }
            first = pass.end;
            if first < self.splits.end {
                cx.barrier();
            }
        }
    }

    /// Blocks of queries, each with its splits of a pass.
    #[inline(always)]
    fn blocks<'b>(
        &self,
        cx: &Cx<'b>,
        pass: &Range<usize>,
    ) -> impl Iterator<Item = (Queries<'b>, Range<usize>)> {
        let (attention, pass) = (self.attention, pass.clone());
        cx.step.segments.iter().flat_map(move |segment| {
            let pass = pass.clone();
            (0..attention.blocks(segment, QUERIES) * attention.op.dims.kv_heads).map(move |item| {
                let block = attention.block(segment, QUERIES, item);
                let own = attention.splits(&block);
                (block, pass.start.max(own.start)..pass.end.min(own.end))
            })
        })
    }

    /// Computes the items of a pass in runs of consecutive ones, which are read as one stream; a slow or interrupted
    /// thread takes fewer of them.
    #[inline(always)]
    fn compute_splits<S: Simd>(&self, cx: &Cx, pass: &Range<usize>, taken: usize, floats: &mut [f32]) {
        let count = self.blocks(cx, pass).map(|(_, splits)| splits.len()).sum();
        while let Some(run) = cx.next_run_of_pass(PHASE, taken, count) {
            let mut first = 0;
            for (block, splits) in self.blocks(cx, pass) {
                let end = first + splits.len();
                for item in run.start.max(first)..run.end.min(end) {
                    self.compute_split::<S>(cx, pass, &block, splits.start + item - first, floats);
                }
                first = end;
            }
        }
    }

    /// Computes a split of a block of queries and stores the partial results.
    #[inline(always)]
    fn compute_split<S: Simd>(
        &self,
        cx: &Cx,
        pass: &Range<usize>,
        block: &Queries,
        split: usize,
        floats: &mut [f32],
    ) {
        let n = self.attention.op.dims.head_dim;
        let take = |i: usize, softmax: Softmax, sums: &[f32]| {
            let held = self.held(self.query(block, i), 1 + split - pass.start);
            // SAFETY: a split of a query belongs to one item, and there was a barrier since the memory was last read.
            let held = unsafe { cx.shared_scratch.write(held) };
            held[..n].copy_from_slice(sums);
            held[n..].copy_from_slice(&[softmax.reference, softmax.sum]);
        };
        self.attention.attend_split::<S>(cx, block, split, floats, take);
    }

    /// Adds the splits of a pass to a query's total, and writes the result after the last split.
    #[inline(always)]
    fn add_up<S: Simd>(&self, cx: &Cx, pass: &Range<usize>, query: usize) {
        let n = self.attention.op.dims.head_dim;
        let (row, head) = (query / self.attention.op.dims.q_heads, query % self.attention.op.dims.q_heads);
        let segments = cx.step.segments;
        let segment = &segments[segments.partition_point(|s| s.first_row as usize <= row) - 1];
        let position = segment.position as usize + row - segment.first_row as usize;
        let splits = self.attention.splits_at(position);
        // SAFETY: this query belongs to this thread alone.
        let (sums, rest) = unsafe { cx.shared_scratch.write(self.held(query, 0)) }.split_at_mut(n);
        let mut softmax = Softmax { reference: rest[0], sum: rest[1] };
        if pass.start == self.splits.start {
            sums.fill(0.0);
            softmax = Softmax::EMPTY;
        }
        let mut total = Total { softmax: &mut softmax, sums };
        for split in pass.start.max(splits.start)..pass.end.min(splits.end) {
            // SAFETY: written before the barrier.
            let held = unsafe { cx.shared_scratch.read(self.held(query, 1 + split - pass.start)) };
            total.add::<S>(Softmax { reference: held[n], sum: held[n + 1] }, &held[..n]);
        }
        rest.copy_from_slice(&[softmax.reference, softmax.sum]);
        if pass.contains(&(splits.end - 1)) {
            // SAFETY: as above.
            unsafe {
                self.attention.finish::<S>(cx, Total { softmax: &mut softmax, sums }, row, head);
            }
        }
    }

    /// Index in the step of a block's query.
    #[inline(always)]
    fn query(&self, block: &Queries, i: usize) -> usize {
        let (row, col) = self.attention.row_and_col(block, i);
        row * self.attention.op.dims.q_heads + col / self.attention.op.dims.head_dim
    }

    /// Where a query's total (`which` 0) or a split of the pass (from 1 on) is held.
    #[inline(always)]
    fn held(&self, query: usize, which: usize) -> Range<usize> {
        let floats = self.attention.op.dims.head_dim + 2;
        let at = (which * self.queries + query) * floats;
        at..at + floats
    }
}
