//! Few queries with a long past: members share its stretches.
//!
//! An item is one stretch of a block of queries. What it finds goes to memory that members share, where
//! the queries' owners then add it to the totals, stretch after stretch as one member alone would. Where
//! memory is too small for all stretches there are several rounds. The last one ends without a barrier: whoever
//! writes the shared memory next has met the others before (`Cx::common`).
#![allow(unsafe_code)]

use std::ops::Range;

use super::Cx;
use super::attention::{Attention, QUERIES, Queries};
use super::attention_block::{Softmax, Total, finish};
use crate::simd::Simd;

/// Stretches of a query, and totals, that are held at once for each member: as many as keep all busy between two
/// meetings.
const HELD: usize = 256;
/// Most that are held.
const MOST_HELD: usize = 4096;
/// The phase whose counter hands out stretches; keys are appended in the one before.
const PHASE: usize = 1;
/// Items for each member that make splitting superfluous.
const ENOUGH: usize = 4;

/// Attention of which members share the stretches.
pub(super) struct Split<'a> {
    attention: &'a Attention,
    /// Queries of the step.
    queries: usize,
    /// Stretches of the longest past.
    stretches: usize,
    /// Stretches of each query in a round.
    at_once: usize,
}

impl<'a> Split<'a> {
    /// Floats of what is held in common.
    pub fn floats(head_dim: usize) -> usize {
        MOST_HELD * (head_dim + 2)
    }

    /// Splits the work if there is too little of it otherwise.
    #[inline(always)]
    pub fn of(attention: &'a Attention, cx: &Cx, rows: usize) -> Option<Split<'a>> {
        let queries = rows * attention.dims.q_heads;
        // A total and at least two stretches of each query have to be held.
        let held = (HELD * cx.members).min(MOST_HELD);
        if queries == 0 || 3 * queries > held {
            return None;
        }
        let (mut items, mut stretches) = (0, 0);
        for segment in cx.step.segments {
            let blocks = attention.blocks(segment, QUERIES);
            items += blocks * attention.dims.kv_heads;
            stretches = stretches.max(attention.stretches(&attention.block(segment, QUERIES, blocks - 1)));
        }
        let is_worth_it = cx.members > 1 && stretches > 1 && items < ENOUGH * cx.members;
        is_worth_it.then_some(Split { attention, queries, stretches, at_once: held / queries - 1 })
    }

    /// Computes all queries.
    #[inline(always)]
    pub fn work<S: Simd>(&self, cx: &Cx, floats: &mut [f32]) {
        let (mut first, mut turns) = (0, 0);
        while first < self.stretches {
            let round = first..self.stretches.min(first + self.at_once);
            self.share_stretches::<S>(cx, &round, turns, floats);
            cx.barrier();
            turns = cx.turns(PHASE);
            for query in cx.own(self.queries) {
                self.add_up::<S>(cx, &round, query);
            }
            first = round.end;
            if first < self.stretches {
                cx.barrier();
            }
        }
    }

    /// Blocks of queries, each with its stretches in a round.
    #[inline(always)]
    fn blocks<'b>(
        &self,
        cx: &Cx<'b>,
        round: &Range<usize>,
    ) -> impl Iterator<Item = (Queries<'b>, Range<usize>)> {
        let (attention, round) = (self.attention, round.clone());
        cx.step.segments.iter().flat_map(move |segment| {
            let round = round.clone();
            (0..attention.blocks(segment, QUERIES) * attention.dims.kv_heads).map(move |item| {
                let block = attention.block(segment, QUERIES, item);
                let end = round.end.min(attention.stretches(&block));
                (block, round.start..end)
            })
        })
    }

    /// Computes a round's items in runs of neighbours, which are one stream: a member that is slow, or disturbed, takes
    /// fewer of them.
    #[inline(always)]
    fn share_stretches<S: Simd>(&self, cx: &Cx, round: &Range<usize>, turns: usize, floats: &mut [f32]) {
        let count = self.blocks(cx, round).map(|(_, stretches)| stretches.len()).sum();
        while let Some(run) = cx.next_run_of_round(PHASE, turns, count) {
            let mut first = 0;
            for (block, stretches) in self.blocks(cx, round) {
                let end = first + stretches.len();
                for item in run.start.max(first)..run.end.min(end) {
                    self.take_stretch::<S>(cx, round, &block, stretches.start + item - first, floats);
                }
                first = end;
            }
        }
    }

    /// Computes a stretch of a block of queries and puts down what it finds.
    #[inline(always)]
    fn take_stretch<S: Simd>(
        &self,
        cx: &Cx,
        round: &Range<usize>,
        block: &Queries,
        stretch: usize,
        floats: &mut [f32],
    ) {
        let n = self.attention.dims.head_dim;
        let take = |i: usize, softmax: Softmax, sums: &[f32]| {
            let held = self.held(self.query(block, i), 1 + stretch - round.start);
            // SAFETY: a stretch of a query belongs to one item, and all members have met since the memory was last
            // read.
            let held = unsafe { cx.common.write(held) };
            held[..n].copy_from_slice(sums);
            held[n..].copy_from_slice(&[softmax.reference, softmax.sum]);
        };
        self.attention.attend_stretch::<S>(cx, block, stretch, floats, take);
    }

    /// Adds a round's stretches of a query to its total, and writes the result after the last.
    #[inline(always)]
    fn add_up<S: Simd>(&self, cx: &Cx, round: &Range<usize>, query: usize) {
        let n = self.attention.dims.head_dim;
        let (row, head) = (query / self.attention.dims.q_heads, query % self.attention.dims.q_heads);
        let segments = cx.step.segments;
        let segment = &segments[segments.partition_point(|s| s.first_row as usize <= row) - 1];
        let position = segment.position as usize + row - segment.first_row as usize;
        let stretches = self.attention.stretches_to(position);
        // SAFETY: this member alone has this query.
        let (sums, rest) = unsafe { cx.common.write(self.held(query, 0)) }.split_at_mut(n);
        let mut softmax = Softmax { reference: rest[0], sum: rest[1] };
        if round.start == 0 {
            sums.fill(0.0);
            softmax = Softmax::EMPTY;
        }
        let mut total = Total { softmax: &mut softmax, sums };
        for stretch in round.start..round.end.min(stretches) {
            // SAFETY: written before the barrier.
            let held = unsafe { cx.common.read(self.held(query, 1 + stretch - round.start)) };
            total.add::<S>(Softmax { reference: held[n], sum: held[n + 1] }, &held[..n]);
        }
        rest.copy_from_slice(&[softmax.reference, softmax.sum]);
        if round.contains(&(stretches - 1)) {
            let out = cx.view(&self.attention.out);
            // SAFETY: as above.
            let out = unsafe { out.cols_mut(row, head * n..(head + 1) * n) };
            finish::<S>(sums, softmax.sum, out);
        }
    }

    /// Number of a block's query in the step.
    #[inline(always)]
    fn query(&self, block: &Queries, i: usize) -> usize {
        let (row, col) = self.attention.place(block, i);
        row * self.attention.dims.q_heads + col / self.attention.dims.head_dim
    }

    /// Where a query's total (0) or a stretch of the round (from 1 on) is held.
    #[inline(always)]
    fn held(&self, query: usize, which: usize) -> Range<usize> {
        let floats = self.attention.dims.head_dim + 2;
        let at = (which * self.queries + query) * floats;
        at..at + floats
    }
}
