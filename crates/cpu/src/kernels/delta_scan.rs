//! `delta_scan`: the gated delta rule over segments of any length, chunk by chunk (`delta_head.rs`).
//!
//! An item is a segment and some heads of one group, as in `ssm_scan`. It writes its heads' u and g into the ring as it
//! goes: nobody else reads them. All heads of a group read its k, so that is stored after all items have read it. Per
//! head and full chunk: 3·32·N·P fused multiply-adds, and the state is read and written once.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use mambo_kernel::{Op, OpKind, Operand, SSM_CHUNK, Segment, SsmDims, StateElem};

use super::declaration::{Binding, Declaration};
use super::delta_head::{DeltaHead, DeltaRows, SQUARE, head_floats};
use super::ssm_head::{Chunk, HeadPlace};
use super::ssm_scan::{FLOPS, HeadItems, STORE_PARTS, SlotPart};
use super::{Cx, Scratch, ScratchNeed, Work};
use crate::isa::Isa;
use crate::shared::View;
use crate::simd::{Math, Simd, part, part_mut, square_sum, vectors};
use crate::stored::{Bf16, F16, F32, StoredState};

/// Added to the squares of q and k.
const NORM_EPS: f32 = 1e-6;

pub(crate) struct DeltaScan {
    pub qkv: Operand,
    pub strength: Operand,
    pub decay: Operand,
    pub out: Operand,
    pub a: Arc<Vec<f32>>,
    pub dt_bias: Arc<Vec<f32>>,
    pub dims: SsmDims,
    pub layer: usize,
}

/// The call's inputs and output.
struct Views<'a> {
    qkv: View<'a>,
    strength: View<'a>,
    decay: View<'a>,
    out: View<'a>,
}

/// Scratch memory of an item.
struct DeltaScratch<'a> {
    /// Normalised k and q of the new positions, `[chunk][state]`.
    keys: &'a mut [f32],
    queries: &'a mut [f32],
    /// β, `[chunk][heads]`.
    strengths: &'a mut [f32],
    /// Products k·k and k·q.
    products: &'a mut [f32],
    /// k scaled for the state, `[chunk][state]`.
    scaled: &'a mut [f32],
    head: &'a mut [f32],
}

impl<'a> DeltaScratch<'a> {
    fn of(floats: &'a mut [f32], dims: &SsmDims) -> DeltaScratch<'a> {
        let rows = SSM_CHUNK * dims.state;
        let (keys, rest) = floats.split_at_mut(rows);
        let (queries, rest) = rest.split_at_mut(rows);
        let (scaled, rest) = rest.split_at_mut(rows);
        let (strengths, rest) = rest.split_at_mut(SSM_CHUNK * (dims.heads / dims.groups));
        let (products, rest) = rest.split_at_mut(2 * SQUARE);
        DeltaScratch {
            keys,
            queries,
            strengths,
            products,
            scaled,
            head: &mut rest[..head_floats(dims.head_dim)],
        }
    }

    fn floats(dims: &SsmDims) -> usize {
        let per_group = dims.heads / dims.groups;
        SSM_CHUNK * (3 * dims.state + per_group) + 2 * SQUARE + head_floats(dims.head_dim)
    }
}

/// `x / sqrt((|x|² + ε) · factor)`.
#[inline(always)]
fn normalize<S: Simd>(x: &[f32], factor: f32, out: &mut [f32]) {
    let scale = S::splat(1.0 / ((square_sum::<S>(x) + NORM_EPS) * factor).sqrt());
    for i in 0..vectors(x.len()) {
        S::store_part(S::mul(S::load_part(part(x, i)), scale), part_mut(out, i));
    }
}

impl DeltaScan {
    /// Columns of a group's q (0) or k (1) in a row of q, k and v.
    fn group_cols(&self, which: usize, group: usize) -> Range<usize> {
        let start = which * self.dims.group_state() + group * self.dims.state;
        start..start + self.dims.state
    }

    fn views<'a>(&self, cx: &Cx<'a>) -> Views<'a> {
        Views {
            qkv: cx.view(&self.qkv),
            strength: cx.view(&self.strength),
            decay: cx.view(&self.decay),
            out: cx.view(&self.out),
        }
    }

    /// The decays g and write strengths β of some heads in a row.
    #[inline(always)]
    fn gates<S: Simd>(
        &self,
        views: &Views,
        row: usize,
        heads: &Range<usize>,
        g: &mut [f32],
        beta: &mut [f32],
    ) {
        let (decay, strength) =
            (&views.decay.row(row)[heads.clone()], &views.strength.row(row)[heads.clone()]);
        let (a, bias) = (&self.a[heads.clone()], &self.dt_bias[heads.clone()]);
        for i in 0..vectors(decay.len()) {
            let sum = S::add(S::load_part(part(decay, i)), S::load_part(part(bias, i)));
            S::store_part(S::mul(S::load_part(part(a, i)), S::softplus(sum)), part_mut(g, i));
            S::store_part(S::sigmoid(S::load_part(part(strength, i))), part_mut(beta, i));
        }
    }

    #[inline(always)]
    fn heads<S: Simd>(&self, cx: &Cx, segment: &Segment, heads: Range<usize>, floats: &mut [f32]) {
        let views = self.views(cx);
        let slot = SlotPart::new(cx, segment, self.layer);
        let begin = segment.position as usize;
        let end = begin + segment.rows as usize;
        let mut position = begin;
        while position < end {
            let stop = end.min(position - position % SSM_CHUNK + SSM_CHUNK);
            let first_row = segment.first_row as usize + position - begin;
            let mut scratch = DeltaScratch::of(floats, &self.dims);
            self.chunk::<S>(&views, &slot, position..stop, first_row, &heads, &mut scratch);
            position = stop;
        }
    }

    /// Some positions of one chunk, the first of them in the given row.
    #[inline(always)]
    fn chunk<S: Simd>(
        &self,
        views: &Views,
        slot: &SlotPart,
        positions: Range<usize>,
        first_row: usize,
        heads: &Range<usize>,
        scratch: &mut DeltaScratch,
    ) {
        let (dims, count) = (self.dims, heads.len());
        let group = heads.start / (dims.heads / dims.groups);
        let (n, channels) = (dims.state, heads.start * dims.head_dim..heads.end * dims.head_dim);
        let (q_cols, k_cols) = (self.group_cols(0, group), self.group_cols(1, group));
        let v_at = 2 * dims.group_state();
        let new = positions.start % SSM_CHUNK;
        let start = positions.start - new;
        for s in new..positions.end - start {
            let qkv = views.qkv.row(first_row + s - new);
            normalize::<S>(&qkv[k_cols.clone()], 1.0, &mut scratch.keys[s * n..(s + 1) * n]);
            normalize::<S>(&qkv[q_cols.clone()], n as f32, &mut scratch.queries[s * n..(s + 1) * n]);
        }
        let mut chunk = Chunk::new(new, positions.end - start);
        let mut rows = DeltaRows {
            v: [&[]; SSM_CHUNK],
            u: std::array::from_fn(|_| &mut [][..]),
            out: std::array::from_fn(|_| &mut [][..]),
        };
        for s in 0..chunk.end {
            let [x, b, dt] = slot.ring(start + s, [channels.clone(), q_cols.clone(), heads.clone()]);
            // SAFETY: these heads' u and g belong to this item, and a position has entries of its own.
            let g = unsafe {
                rows.u[s] = slot.caches.slot_mut(slot.slot, slot.layer, x);
                slot.caches.slot_mut(slot.slot, slot.layer, dt)
            };
            if s >= new {
                let row = first_row + s - new;
                self.gates::<S>(views, row, heads, g, &mut scratch.strengths[s * count..(s + 1) * count]);
                chunk.b[s] = &scratch.keys[s * n..(s + 1) * n];
                chunk.c[s] = &scratch.queries[s * n..(s + 1) * n];
                rows.v[s] = &views.qkv.row(row)[v_at + channels.start..v_at + channels.end];
                // SAFETY: these heads' channels of the row belong to this item.
                rows.out[s] = unsafe { views.out.cols_mut(row, channels.clone()) };
            } else {
                // SAFETY: k of earlier positions is overwritten in the next phase, if at all.
                chunk.b[s] = unsafe { slot.caches.slot(slot.slot, slot.layer, b) };
            }
            chunk.dt[s] = g;
        }
        let (of_k, of_q) = scratch.products.split_at_mut(SQUARE);
        chunk.products::<S>(&chunk.b, of_k);
        chunk.products::<S>(&chunk.c, of_q);
        for (index, head) in heads.clone().enumerate() {
            let place = HeadPlace { index, head_dim: dims.head_dim };
            let (_, c) = chunk.decays(index, 1.0);
            let strengths = std::array::from_fn(|s| scratch.strengths[s * count + index]);
            let own = DeltaHead { place, state: None, c, strengths };
            let room = (&*scratch.products, &mut *scratch.scaled, &mut *scratch.head);
            // SAFETY: a head of a slot belongs to one item.
            unsafe {
                match slot.layout.elem {
                    StateElem::F32 => self.head::<S, F32>(slot, (start, head), own, &chunk, &mut rows, room),
                    StateElem::F16 => self.head::<S, F16>(slot, (start, head), own, &chunk, &mut rows, room),
                    StateElem::BF16 => {
                        self.head::<S, Bf16>(slot, (start, head), own, &chunk, &mut rows, room)
                    }
                }
            }
        }
    }

    /// One head of the chunk at `start`, with states of one type.
    ///
    /// # Safety
    /// No other thread touches this head's states concurrently.
    #[inline(always)]
    unsafe fn head<'a, S: Simd, E: StoredState>(
        &self,
        slot: &SlotPart<'a>,
        (start, head): (usize, usize),
        mut own: DeltaHead<'a>,
        chunk: &Chunk,
        rows: &mut DeltaRows,
        (products, scaled, floats): (&[f32], &mut [f32], &mut [f32]),
    ) {
        if start > 0 {
            // SAFETY: guaranteed by the caller; the borrow ends before the state is written.
            own.state = Some(unsafe { slot.caches.state(slot.slot, slot.layer, start, head) });
        }
        own.outputs::<S, E>(chunk, products, rows, floats);
        own.state = None;
        if chunk.end == SSM_CHUNK {
            let (b, c, dt) = (chunk.b, chunk.c, chunk.dt);
            let full =
                Chunk { new: chunk.new, end: chunk.end, x: std::array::from_fn(|s| &*rows.u[s]), b, c, dt };
            // SAFETY: as above.
            let next = unsafe { slot.next_state(start, head) };
            own.advance::<S, E>(&full, start == 0, next, scaled);
        }
    }

    /// Stores a share of a segment's k.
    #[inline(always)]
    fn store<S: Simd>(&self, cx: &Cx, segment: &Segment, share: usize, qkv: &View) {
        let slot = SlotPart::new(cx, segment, self.layer);
        let (n, rows) = (self.dims.state, segment.rows as usize);
        for t in rows.saturating_sub(slot.layout.ring_capacity)..rows {
            if t % STORE_PARTS == share {
                let position = segment.position as usize + t;
                let [_, b, _] = slot.ring(position, [0..0, 0..self.dims.group_state(), 0..0]);
                // SAFETY: nothing reads these entries any more, and a position belongs to one item.
                let keys = unsafe { slot.caches.slot_mut(slot.slot, slot.layer, b) };
                let qkv = qkv.row(segment.first_row as usize + t);
                for (group, key) in keys.chunks_exact_mut(n).enumerate() {
                    normalize::<S>(&qkv[self.group_cols(1, group)], 1.0, key);
                }
            }
        }
    }
}

impl Work for DeltaScan {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, scratch: &mut Scratch) {
        let segments = cx.step.segments;
        let items = HeadItems::of(cx, &self.dims);
        while let Some(item) = cx.next(0, segments.len() * items.count) {
            let heads = items.heads(item % items.count);
            self.heads::<S>(cx, &segments[item / items.count], heads, &mut scratch.floats);
        }
        // A single new position never overwrites a ring entry of its own chunk; a longer segment may.
        if segments.iter().any(|s| s.rows > 1) {
            cx.barrier();
        }
        let qkv = cx.view(&self.qkv);
        while let Some(item) = cx.next(1, segments.len() * STORE_PARTS) {
            self.store::<S>(cx, &segments[item / STORE_PARTS], item % STORE_PARTS, &qkv);
        }
    }

    fn scratch(&self, _: usize) -> ScratchNeed {
        ScratchNeed { floats: DeltaScratch::floats(&self.dims), ..ScratchNeed::default() }
    }
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| match b.call.op {
        Op::DeltaScan(dims) => {
            let (a, dt_bias) = (b.vector(0, dims.heads)?, b.vector(1, dims.heads)?);
            let (strength, decay) = (b.input(1), b.input(2));
            let (qkv, out, layer) = (b.x(), b.out(), b.layer());
            b.kernel(DeltaScan { qkv, strength, decay, out, a, dt_bias, dims, layer })
        }
        _ => b.wrong_op(),
    };
    vec![Declaration::new(isa, OpKind::DeltaScan, "f32", bind).shared().at(FLOPS)]
}
