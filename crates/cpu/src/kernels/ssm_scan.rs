//! `ssm_scan`: the Mamba-2 recurrence over segments of any length, chunk by chunk (`ssm_head.rs`).
//!
//! An item is a segment and some heads of one group; how heads are grouped into items does not affect the arithmetic.
//! The ring is written after all items have read it. Per head and full chunk: 3·32·N·P fused multiply-adds, and the
//! state is read and written once.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use mambo_kernel::{Op, OpKind, Operand, SSM_CHUNK, Segment, SlotLayout, SsmDims, StateElem};

use super::declaration::{Binding, Declaration};
use super::ssm_head::{Chunk, Head, HeadPlace, chunk_floats};
use super::{Cx, Scratch, ScratchNeed, Work};
use crate::cache::CacheViews;
use crate::isa::{Isa, Vectorized};
use crate::shared::View;
use crate::simd::Simd;
use crate::stored::{Bf16, F16, F32, StoredState};

/// Items into which storing a segment's ring entries is divided.
pub(super) const STORE_PARTS: usize = 4;

pub(crate) struct SsmScan {
    pub xbc: Operand,
    pub dt: Operand,
    pub out: Operand,
    pub a: Arc<Vec<f32>>,
    pub d: Arc<Vec<f32>>,
    pub dims: SsmDims,
    pub layer: usize,
}

/// The head whose turn it is.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    /// Its index among the chunk's heads.
    pub index: usize,
    /// Among all heads.
    pub head: usize,
    /// See [`Head::ahead`].
    pub ahead: Option<usize>,
}

/// One layer of a slot.
#[derive(Clone, Copy)]
pub(super) struct SlotPart<'a> {
    pub caches: &'a CacheViews<'a>,
    pub slot: usize,
    pub layer: usize,
    pub layout: &'a SlotLayout,
}

impl<'a> SlotPart<'a> {
    pub fn new(cx: &'a Cx, segment: &Segment, layer: usize) -> Self {
        let slot = segment.slot as usize;
        SlotPart { caches: cx.caches, slot, layer, layout: cx.caches.slot_layout(layer) }
    }

    fn entry(&self, start: usize, width: usize, position: usize, cols: Range<usize>) -> Range<usize> {
        let at = start + position % self.layout.ring_capacity * width;
        at + cols.start..at + cols.end
    }

    /// Ring columns of a position: x, B and dt.
    pub fn ring(&self, position: usize, [x, b, dt]: [Range<usize>; 3]) -> [Range<usize>; 3] {
        let (layout, dims) = (self.layout, self.layout.dims);
        [
            self.entry(layout.ring_x, dims.inner(), position, x),
            self.entry(layout.ring_b, dims.group_state(), position, b),
            self.entry(layout.ring_dt, dims.heads, position, dt),
        ]
    }

    fn conv_range(&self, position: usize, channels: &Range<usize>) -> Range<usize> {
        let start = self.layout.conv + position % self.layout.conv_capacity * self.layout.dims.conv_dim();
        start + channels.start..start + channels.end
    }

    /// Channels of an earlier input column that the convolution needs.
    ///
    /// # Safety
    /// No thread writes those channels of that column while they are borrowed.
    pub unsafe fn conv_column(&self, position: usize, channels: &Range<usize>) -> &'a [f32] {
        // SAFETY: guaranteed by the caller.
        unsafe { self.caches.slot(self.slot, self.layer, self.conv_range(position, channels)) }
    }

    /// Stores channels of an input column.
    ///
    /// # Safety
    /// No other thread, and no borrow in this one, touches those channels of that column concurrently.
    pub unsafe fn store_conv_column(&self, position: usize, channels: &Range<usize>, column: &[f32]) {
        let range = self.conv_range(position, channels);
        // SAFETY: guaranteed by the caller.
        unsafe { self.caches.slot_mut(self.slot, self.layer, range) }.copy_from_slice(column);
    }

    /// Fills in the positions of a chunk that came before `new`.
    ///
    /// # Safety
    /// No thread writes those ring entries while the chunk borrows them.
    pub unsafe fn load_ring(&self, chunk: &mut Chunk<'a>, start: usize, cols: &[Range<usize>; 3]) {
        for s in 0..chunk.new {
            let [x, b, dt] = self.ring(start + s, cols.clone());
            // SAFETY: guaranteed by the caller.
            unsafe {
                chunk.x[s] = self.caches.slot(self.slot, self.layer, x);
                chunk.b[s] = self.caches.slot(self.slot, self.layer, b);
                chunk.dt[s] = self.caches.slot(self.slot, self.layer, dt);
            }
        }
    }

    /// Has a share of the positions of a chunk before `position` brought into cache, and with the first share the
    /// columns that the convolution needs.
    #[inline(always)]
    pub fn prefetch<S: Simd>(
        &self,
        position: usize,
        (share, shares): (usize, usize),
        cols: &[Range<usize>; 3],
        conv: &[Range<usize>; 3],
    ) {
        let known = position % SSM_CHUNK;
        for s in known * share / shares..known * (share + 1) / shares {
            for range in self.ring(position - known + s, cols.clone()) {
                self.caches.prefetch_slot::<S>(self.slot, self.layer, range);
            }
        }
        if share == 0 {
            for position in position.saturating_sub(self.layout.dims.taps - 1)..position {
                for channels in conv {
                    let range = self.conv_range(position, channels);
                    self.caches.prefetch_slot::<S>(self.slot, self.layer, range);
                }
            }
        }
    }

    /// Bytes from a head's state to another slot's in the chunks that hold these positions; they wrap where that one
    /// lies before.
    #[inline(always)]
    pub fn bytes_to_state(&self, other: &SlotPart, heads: [usize; 2], positions: [usize; 2]) -> usize {
        let own = self.caches.state_begin(self.slot, self.layer, positions[0], heads[0]);
        other.caches.state_begin(other.slot, other.layer, positions[1], heads[1]).wrapping_sub(own)
    }

    /// Stores a position's x, B and dt.
    ///
    /// # Safety
    /// No other thread touches those ring columns concurrently.
    pub unsafe fn store_ring(&self, position: usize, cols: [Range<usize>; 3], values: [&[f32]; 3]) {
        for (range, values) in self.ring(position, cols).into_iter().zip(values) {
            // SAFETY: guaranteed by the caller.
            unsafe { self.caches.slot_mut(self.slot, self.layer, range) }.copy_from_slice(values);
        }
    }

    /// A head's state at the end of the chunk that starts at `start`, to write: what it holds is the state at that
    /// start. And the seed of its random bits.
    ///
    /// # Safety
    /// No other thread, and no borrow in this one, touches this head's states concurrently.
    pub unsafe fn next_state(&self, start: usize, head: usize) -> (&'a mut [u8], u32) {
        let end = start + SSM_CHUNK;
        // SAFETY: guaranteed by the caller.
        let next = unsafe { self.caches.state_mut(self.slot, self.layer, end, head) };
        if self.layout.chunks > 1 && start > 0 {
            // SAFETY: as above; a different state than `next`.
            next.copy_from_slice(unsafe { self.caches.state(self.slot, self.layer, start, head) });
        }
        (next, self.layout.state_seed(end, head))
    }

    /// Outputs of one head's new positions, and its next state if the chunk is complete.
    ///
    /// # Safety
    /// No other thread touches this head's states concurrently.
    #[inline(always)]
    pub unsafe fn head<S: Simd>(
        &self,
        chunk: &Chunk,
        start: usize,
        turn: Turn,
        weights: [&[f32]; 2],
        floats: &mut [f32],
        out: &mut [&mut [f32]; SSM_CHUNK],
    ) {
        S::call(OneHead { part: self, chunk, start, turn, weights, floats, out });
    }

    /// The same with states of one type.
    ///
    /// # Safety
    /// As for [`SlotPart::head`].
    #[inline(always)]
    unsafe fn head_in<S: Simd, E: StoredState>(
        &self,
        chunk: &Chunk,
        start: usize,
        Turn { index, head, ahead }: Turn,
        [a, d]: [&[f32]; 2],
        floats: &mut [f32],
        out: &mut [&mut [f32]; SSM_CHUNK],
    ) {
        let dims = self.layout.dims;
        let (products, rest) = floats.split_at_mut(SSM_CHUNK * SSM_CHUNK);
        let (weights, rest) = rest.split_at_mut(SSM_CHUNK * SSM_CHUNK);
        let scaled = &mut rest[..SSM_CHUNK * dims.state];
        let place = HeadPlace { index, head_dim: dims.head_dim };
        let mut own = Head { place, a: a[head], d: d[head], state: None, ahead };
        if start > 0 {
            // SAFETY: guaranteed by the caller; the borrow ends before the state is written.
            own.state = Some(unsafe { self.caches.state(self.slot, self.layer, start, head) });
        }
        chunk.outputs::<S, E>(&own, products, weights, out);
        own.state = None;
        if chunk.end == SSM_CHUNK {
            // SAFETY: as above.
            let (next, seed) = unsafe { self.next_state(start, head) };
            chunk.advance::<S, E>(&own, start == 0, seed, next, scaled);
        }
    }
}

/// The call of [`SlotPart::head`]: most of the code of `ssm_scan` and of `ssm_step`.
struct OneHead<'a, 'c, 'o> {
    part: &'a SlotPart<'a>,
    chunk: &'a Chunk<'c>,
    start: usize,
    turn: Turn,
    weights: [&'a [f32]; 2],
    floats: &'a mut [f32],
    out: &'a mut [&'o mut [f32]; SSM_CHUNK],
}

impl Vectorized for OneHead<'_, '_, '_> {
    type Output = ();
    type Home = SsmScan;

    #[inline(always)]
    fn run<S: Simd>(self) {
        let OneHead { part, chunk, start, turn, weights, floats, out } = self;
        // SAFETY: guaranteed by the caller of `SlotPart::head`.
        unsafe {
            match part.layout.elem {
                StateElem::F32 => part.head_in::<S, F32>(chunk, start, turn, weights, floats, out),
                StateElem::F16 => part.head_in::<S, F16>(chunk, start, turn, weights, floats, out),
                StateElem::BF16 => part.head_in::<S, Bf16>(chunk, start, turn, weights, floats, out),
            }
        }
    }
}

impl SsmScan {
    #[inline(always)]
    fn heads<S: Simd>(&self, cx: &Cx, segment: &Segment, heads: Range<usize>, floats: &mut [f32]) {
        let dims = self.dims;
        let (xbc, dt, out) = (cx.view(&self.xbc), cx.view(&self.dt), cx.view(&self.out));
        let part = SlotPart::new(cx, segment, self.layer);
        let group = heads.start / (dims.heads / dims.groups);
        let channels = heads.start * dims.head_dim..heads.end * dims.head_dim;
        let b_cols = group * dims.state..(group + 1) * dims.state;
        let (b_at, c_at) = (dims.inner(), dims.inner() + dims.group_state());
        let cols = [channels.clone(), b_cols.clone(), heads.clone()];
        let (first, begin) = (segment.first_row as usize, segment.position as usize);
        let end = begin + segment.rows as usize;
        let mut position = begin;
        while position < end {
            let start = position - position % SSM_CHUNK;
            let stop = end.min(start + SSM_CHUNK);
            let mut chunk = Chunk::new(position - start, stop - start);
            // SAFETY: the ring is written in the next phase. Only the first chunk has earlier positions.
            unsafe { part.load_ring(&mut chunk, start, &cols) };
            let mut outs: [&mut [f32]; SSM_CHUNK] = std::array::from_fn(|_| &mut [][..]);
            for s in chunk.new..chunk.end {
                let row = first + start + s - begin;
                let values = xbc.row(row);
                chunk.x[s] = &values[channels.clone()];
                chunk.b[s] = &values[b_at + b_cols.start..b_at + b_cols.end];
                chunk.c[s] = &values[c_at + b_cols.start..c_at + b_cols.end];
                chunk.dt[s] = &dt.row(row)[heads.clone()];
                // SAFETY: these heads' channels of the row belong to this item.
                outs[s] = unsafe { out.cols_mut(row, channels.clone()) };
            }
            chunk.products::<S>(&chunk.c, &mut floats[..SSM_CHUNK * SSM_CHUNK]);
            for (index, head) in heads.clone().enumerate() {
                let weights = [&self.a[..], &self.d[..]];
                let turn = Turn { index, head, ahead: None };
                // SAFETY: a head of a slot belongs to one item.
                unsafe { part.head::<S>(&chunk, start, turn, weights, floats, &mut outs) };
            }
            position = stop;
        }
    }

    fn store(&self, cx: &Cx, segment: &Segment, share: usize, xbc: &View, dt: &View) {
        let part = SlotPart::new(cx, segment, self.layer);
        let (inner, width) = (self.dims.inner(), self.dims.group_state());
        let rows = segment.rows as usize;
        for t in rows.saturating_sub(part.layout.ring_capacity)..rows {
            if t % STORE_PARTS == share {
                let row = segment.first_row as usize + t;
                let values = xbc.row(row);
                let cols = [0..inner, 0..width, 0..self.dims.heads];
                // SAFETY: nothing reads these entries any more, and a position belongs to one item.
                unsafe {
                    part.store_ring(
                        segment.position as usize + t,
                        cols,
                        [&values[..inner], &values[inner..inner + width], dt.row(row)],
                    );
                }
            }
        }
    }
}

/// How the heads of a segment are divided into items: some heads of one group each.
pub(super) struct HeadItems {
    per_group: usize,
    /// Items of a group.
    splits: usize,
    /// Heads of an item.
    heads: usize,
    /// Items of a segment.
    pub count: usize,
}

impl HeadItems {
    pub fn of(cx: &Cx, dims: &SsmDims) -> HeadItems {
        let per_group = dims.heads / dims.groups;
        // The heads of an item share products of their group, but every thread should have an item.
        let wanted = (2 * cx.threads).div_ceil((cx.step.segments.len() * dims.groups).max(1));
        let heads = per_group.div_ceil(wanted.clamp(1, per_group));
        let splits = per_group.div_ceil(heads);
        HeadItems { per_group, splits, heads, count: dims.groups * splits }
    }

    /// The heads of an item of a segment.
    pub fn heads(&self, item: usize) -> Range<usize> {
        let (group, split) = (item / self.splits, item % self.splits);
        let first = group * self.per_group + split * self.heads;
        first..((group + 1) * self.per_group).min(first + self.heads)
    }
}

impl Work for SsmScan {
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
        let (xbc, dt) = (cx.view(&self.xbc), cx.view(&self.dt));
        while let Some(item) = cx.next(1, segments.len() * STORE_PARTS) {
            self.store(cx, &segments[item / STORE_PARTS], item % STORE_PARTS, &xbc, &dt);
        }
    }

    fn scratch(&self, _: usize) -> ScratchNeed {
        ScratchNeed { floats: chunk_floats(self.dims.state), ..ScratchNeed::default() }
    }
}

/// Operations per second of one thread; a step of one token is bound by reading the state.
pub(super) const FLOPS: f64 = 100e9;

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| match b.call.op {
        Op::SsmScan(dims) => {
            let (a, d) = (b.vector(0, dims.heads)?, b.vector(1, dims.heads)?);
            b.kernel(SsmScan { xbc: b.x(), dt: b.input(1), out: b.out(), a, d, dims, layer: b.layer() })
        }
        _ => b.wrong_op(),
    };
    vec![Declaration::new(isa, OpKind::SsmScan, "f32", bind).shared().at(FLOPS)]
}
