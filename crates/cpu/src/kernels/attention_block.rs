//! The arithmetic of one key block of attention: scores, online softmax, weighted values.
//!
//! Keys are `[channel][32 positions]`, values `[32 positions][channel]`. A lane is a position of the scores and a
//! channel of the output, so every sum stays in one lane and runs in ascending order. Queries are processed a few at a
//! time only to share loads.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

use mambo_kernel::PAGE_TOKENS;

use super::attention::QUERIES;
use super::each_row::each_row;
use crate::simd::{LANES, Math, Simd, part, part_mut, vectors};
use crate::stored::Stored;

/// Queries that share loads.
pub(super) const SHARED: usize = 4;
/// Vectors of positions in a key block.
const KEY_VECTORS: usize = PAGE_TOKENS / LANES;

/// How far a score may exceed its query's reference before the reference is raised: raising it costs time, and e⁸ is
/// well within range.
const SLACK: f32 = 8.0;

/// What a query carries from block to block of a split.
#[derive(Clone, Copy)]
pub(super) struct Running {
    /// Subtracted from scores before the exponential.
    reference: f32,
    /// Sums of softmax weights, by lane.
    weight_sums: [f32; LANES],
}

impl Running {
    pub const START: Running = Running { reference: f32::NEG_INFINITY, weight_sums: [0.0; LANES] };

    /// The softmax after a split.
    #[inline(always)]
    pub fn end<S: Simd>(&self) -> Softmax {
        Softmax { reference: self.reference, sum: S::sum(S::load(&self.weight_sums)) }
    }
}

/// The softmax of some positions: `sum = Σ exp(score - reference)`.
#[derive(Clone, Copy)]
pub(super) struct Softmax {
    pub reference: f32,
    pub sum: f32,
}

impl Softmax {
    /// The softmax of no position.
    pub const EMPTY: Softmax = Softmax { reference: f32::NEG_INFINITY, sum: 0.0 };
}

/// A key block: keys and values as stored, or widened.
pub(super) struct Block<'a, T> {
    keys: &'a [u8],
    values: &'a [u8],
    head_dim: usize,
    /// Bound of the scores.
    soft_cap: Option<f32>,
    /// Stored keys and values to prefetch meanwhile.
    next: (&'a [u8], &'a [u8]),
    stored: PhantomData<T>,
}

impl<'a, T: Stored> Block<'a, T> {
    pub fn new(
        (keys, values): (&'a [u8], &'a [u8]),
        head_dim: usize,
        soft_cap: Option<f32>,
        next: (&'a [u8], &'a [u8]),
    ) -> Self {
        let len = PAGE_TOKENS * head_dim * T::BYTES;
        let (keys, values) = (&keys[..len], &values[..len]);
        Block { keys, values, head_dim, soft_cap, next, stored: PhantomData }
    }

    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Adds this block to `Q` queries. `queries` and `sums` are `[Q][head_dim]`, and query i sees the positions
    /// `seen[i]`, at least one.
    #[inline(always)]
    pub fn attend<S: Simd, const Q: usize>(
        &self,
        queries: &[f32],
        seen: [Range<usize>; Q],
        running: &mut [Running],
        sums: &mut [f32],
    ) {
        let mut scores = self.scores::<S, Q>(queries);
        if let Some(cap) = self.soft_cap {
            for score in scores.as_flattened_mut() {
                *score = S::soft_cap(*score, cap);
            }
        }
        let mut weights = [[0.0; PAGE_TOKENS]; Q];
        let mut kept = [0.0; Q];
        for i in 0..Q {
            kept[i] = softmax_block::<S>(&mut scores[i], &seen[i], &mut running[i], &mut weights[i]);
        }
        let weighted = Weighted::new(seen, &kept, &weights);
        let n = self.head_dim;
        let mut c = 0;
        while c + 4 * LANES <= n {
            self.add_values::<S, Q, 4>(c, &weighted, sums);
            c += 4 * LANES;
        }
        while c < n {
            self.add_values::<S, Q, 1>(c, &weighted, sums);
            c += LANES;
        }
    }

    /// q·k of all positions.
    #[inline(always)]
    fn scores<S: Simd, const Q: usize>(&self, queries: &[f32]) -> [[S::F; KEY_VECTORS]; Q] {
        let n = self.head_dim;
        let queries: [&[f32]; Q] = std::array::from_fn(|i| &queries[i * n..(i + 1) * n]);
        let mut scores = [[S::zero(); KEY_VECTORS]; Q];
        // A core has few outstanding cache misses: prefetches spread evenly over a block's work keep memory busy,
        // bursts do not. A channel of 16-bit keys, the usual type, is one cache line.
        let ahead = self.next.0.len() / n;
        for (c, keys) in self.keys.chunks_exact(PAGE_TOKENS * T::BYTES).enumerate() {
            S::prefetch(self.next.0, c * ahead);
            for (v, key) in keys.chunks_exact(LANES * T::BYTES).enumerate() {
                let key = T::load::<S>(key);
                each_row!(Q, i, {
                    // SAFETY: there are as many keys as channels, and each query has a value for each.
                    let query = unsafe { *queries[i].get_unchecked(c) };
                    scores[i][v] = S::fma(key, S::splat(query), scores[i][v]);
                });
            }
        }
        scores
    }

    /// Some channels of a position's values.
    #[inline(always)]
    fn values_of(&self, t: usize, c: usize, width: usize) -> &[u8] {
        &self.values[(t * self.head_dim + c) * T::BYTES..][..width * T::BYTES]
    }

    /// Adds some channels of one position's weighted values.
    #[inline(always)]
    fn add_position<S: Simd, const V: usize>(
        &self,
        t: usize,
        c: usize,
        width: usize,
        weight: f32,
        acc: &mut [S::F; V],
    ) {
        let values = self.values_of(t, c, width);
        for v in 0..V {
            let value = T::load_part::<S>(stored_part::<T>(values, v));
            acc[v] = S::fma(S::splat(weight), value, acc[v]);
        }
    }

    /// Scales the sums of some channels by `kept` and adds the weighted values.
    #[inline(always)]
    fn add_values<S: Simd, const Q: usize, const V: usize>(
        &self,
        c: usize,
        weighted: &Weighted<Q>,
        sums: &mut [f32],
    ) {
        let n = self.head_dim;
        // Several vectors are whole ones. Where the compiler does not know that, sums are kept in memory.
        let width = if V > 1 { V * LANES } else { LANES.min(n - c) };
        let Weighted { seen, common, kept, weights } = weighted;
        let mut acc = [[S::zero(); V]; Q];
        each_row!(Q, i, {
            let sums = &sums[i * n + c..][..width];
            for v in 0..V {
                acc[i][v] = S::mul(S::splat(kept[i]), S::load_part(part(sums, v)));
            }
        });
        if common.start > 0 {
            // Windows of earlier queries reach further back.
            each_row!(Q, i, {
                for t in seen[i].start..common.start.min(seen[i].end) {
                    self.add_position::<S, V>(t, c, width, weights[i][t], &mut acc[i]);
                }
            });
        }
        let (fetched, ahead) = (self.next.1.len() / n * c, self.next.1.len() * width / (n * PAGE_TOKENS));
        let shared = &self.values[common.start * n * T::BYTES..common.end * n * T::BYTES];
        for (t, values) in (common.start..).zip(shared.chunks_exact(n * T::BYTES)) {
            // The cache lines of 16-bit values.
            for line in (0..V * LANES * 2).step_by(64) {
                S::prefetch(self.next.1, fetched + t * ahead + line);
            }
            // Sliced in two steps: that way the compiler knows the length and omits bounds checks per vector.
            let values = &values[c * T::BYTES..][..width * T::BYTES];
            for v in 0..V {
                let value = T::load_part::<S>(stored_part::<T>(values, v));
                each_row!(Q, i, {
                    // SAFETY: a block has as many positions as there are weights.
                    let weight = unsafe { *weights[i].get_unchecked(t) };
                    acc[i][v] = S::fma(S::splat(weight), value, acc[i][v]);
                });
            }
        }
        each_row!(Q, i, {
            for v in 0..V {
                S::store_part(acc[i][v], part_mut(&mut sums[i * n + c..][..width], v));
            }
        });
        // Later queries see more of the block.
        for i in 0..Q {
            let sums = &mut sums[i * n + c..][..width];
            for t in common.end..seen[i].end {
                let values = self.values_of(t, c, width);
                for v in 0..V {
                    let value = T::load_part::<S>(stored_part::<T>(values, v));
                    let sum = S::fma(S::splat(weights[i][t]), value, S::load_part(part(sums, v)));
                    S::store_part(sum, part_mut(sums, v));
                }
            }
        }
    }
}

/// How a block's values are added to `Q` queries.
struct Weighted<'a, const Q: usize> {
    /// Positions that each query sees.
    seen: [Range<usize>; Q],
    /// Positions that all of them see.
    common: Range<usize>,
    /// Factors on what was summed before.
    kept: &'a [f32; Q],
    weights: &'a [[f32; PAGE_TOKENS]; Q],
}

impl<'a, const Q: usize> Weighted<'a, Q> {
    #[inline(always)]
    fn new(seen: [Range<usize>; Q], kept: &'a [f32; Q], weights: &'a [[f32; PAGE_TOKENS]; Q]) -> Self {
        let (mut start, mut end) = (0, PAGE_TOKENS);
        for seen in &seen {
            start = seen.start.max(start);
            end = seen.end.min(end);
        }
        Weighted { seen, common: start..end.max(start), kept, weights }
    }
}

/// The part of stored values that vector `i` covers.
#[inline(always)]
fn stored_part<T: Stored>(values: &[u8], i: usize) -> &[u8] {
    let bytes = LANES * T::BYTES;
    &values[i * bytes..values.len().min((i + 1) * bytes)]
}

/// Writes the softmax weights of a block's scores, adds them to the query's sums, and returns the factor on what was
/// summed before. At least one position is seen; the weights of masked ones are zero.
#[inline(always)]
fn softmax_block<S: Simd>(
    scores: &mut [S::F; KEY_VECTORS],
    seen: &Range<usize>,
    running: &mut Running,
    weights: &mut [f32; PAGE_TOKENS],
) -> f32 {
    debug_assert!(!seen.is_empty(), "no position is seen");
    let masked = S::splat(f32::NEG_INFINITY);
    if seen.end < PAGE_TOKENS {
        for v in 0..KEY_VECTORS {
            scores[v] = S::first(seen.end.saturating_sub(v * LANES), scores[v], masked);
        }
    }
    if seen.start > 0 {
        for v in 0..KEY_VECTORS {
            scores[v] = S::first(seen.start.saturating_sub(v * LANES), masked, scores[v]);
        }
    }
    let mut largest = S::splat(f32::NEG_INFINITY);
    for v in 0..KEY_VECTORS {
        largest = S::max(scores[v], largest);
    }
    let mut weight_sums = S::load(&running.weight_sums);
    let mut kept = 1.0;
    if S::any_gt(largest, S::splat(running.reference + SLACK)) {
        let reference = S::max_lane(largest);
        kept = S::exp1(running.reference - reference);
        weight_sums = S::mul(S::splat(kept), weight_sums);
        running.reference = reference;
    }
    for v in 0..KEY_VECTORS {
        let weight = S::exp_of_small(S::sub(scores[v], S::splat(running.reference)));
        S::store_part(weight, part_mut(weights, v));
        weight_sums = S::add(weight_sums, weight);
    }
    S::store(weight_sums, &mut running.weight_sums);
    kept
}

/// The splits of a query added up so far.
pub(super) struct Total<'a> {
    pub softmax: &'a mut Softmax,
    /// Weighted values, relative to the reference so far.
    pub sums: &'a mut [f32],
}

impl Total<'_> {
    /// Adds the next split. Adding the first one leaves its bits unchanged.
    #[inline(always)]
    pub fn add<S: Simd>(&mut self, next: Softmax, sums: &[f32]) {
        let old = *self.softmax;
        let reference = old.reference.max(next.reference);
        let (kept, taken) = (S::exp1(old.reference - reference), S::exp1(next.reference - reference));
        for v in 0..vectors(sums.len()) {
            let before = S::mul(S::splat(kept), S::load_part(part(self.sums, v)));
            let after = S::fma(S::splat(taken), S::load_part(part(sums, v)), before);
            S::store_part(after, part_mut(self.sums, v));
        }
        *self.softmax = Softmax { reference, sum: old.sum * kept + next.sum * taken };
    }

    /// Adds a score without a value.
    #[inline(always)]
    pub fn add_sink<S: Simd>(&mut self, sink: f32) {
        let old = *self.softmax;
        let reference = old.reference.max(sink);
        let kept = S::exp1(old.reference - reference);
        for v in 0..vectors(self.sums.len()) {
            let sum = S::mul(S::splat(kept), S::load_part(part(self.sums, v)));
            S::store_part(sum, part_mut(self.sums, v));
        }
        *self.softmax = Softmax { reference, sum: old.sum * kept + S::exp1(sink - reference) };
    }
}

/// Divides the sums by the softmax's total.
#[inline(always)]
pub(super) fn finish<S: Simd>(sums: &[f32], total: f32, out: &mut [f32]) {
    let total = S::splat(total);
    for i in 0..vectors(sums.len()) {
        S::store_part(S::div(S::load_part(part(sums, i)), total), part_mut(out, i));
    }
}

/// How many of the remaining queries are processed together: registers allow one more than usual, so that no single
/// query is left over.
#[inline(always)]
pub(super) fn group_size<S: Simd>(left: usize) -> usize {
    match left {
        ..SHARED => 1,
        left if left == SHARED + 1 && S::ROWS == 8 => SHARED + 1,
        _ => SHARED,
    }
}

/// Adds a page to a block of queries; query i sees its positions `seen(i)`.
#[inline(always)]
pub(super) fn attend_page<S: Simd, T: Stored>(
    page: Block<T>,
    count: usize,
    seen: impl Fn(usize) -> Range<usize>,
    (queries, running, sums): (&[f32], &mut [Running; QUERIES], &mut [f32]),
) {
    let n = page.head_dim();
    // Queries are in order of position: those before this page come first, those whose window has left it last.
    let mut i = (0..count).find(|&i| seen(i).end > 0).unwrap_or(count);
    let count = (i..count).rfind(|&i| !seen(i).is_empty()).map_or(i, |last| last + 1);
    while i < count {
        let (queries, running, sums) = (&queries[i * n..], &mut running[i..], &mut sums[i * n..]);
        let size = group_size::<S>(count - i);
        match size {
            1 => page.attend::<S, 1>(queries, [seen(i)], running, sums),
            SHARED => {
                page.attend::<S, SHARED>(queries, std::array::from_fn(|j| seen(i + j)), running, sums);
            }
            _ => {
                page.attend::<S, { SHARED + 1 }>(queries, std::array::from_fn(|j| seen(i + j)), running, sums)
            }
        }
        i += size;
    }
}
