//! `ssm_step`: `ssm_conv`, `ssm_dt`, `ssm_scan` and `gated_group_norm` of segments of up to a chunk.
//!
//! An item is a group of a segment: its heads, its B and C and its norm are independent of other groups. If there are
//! fewer groups than threads, an item is a part of a group's heads, and the thread that finishes the last part
//! normalises the group and stores its columns of B and C, because they overwrite ring entries that all parts read.
//!
//! It calls the same functions as the four ops, so it gives the same bits, and quantises the group if a later call
//! reads it so. Bytes: the state once (N elements per channel), the ring of the chunk so far, and 8 per column of the
//! projection.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use mambo_kernel::{Elem, Op, OpKind, Operand, Phase, SSM_CHUNK, Segment, Site, SsmDims};

use super::declaration::{Binding, Declaration};
use super::gated_group_norm::gate_and_normalize;
use super::quantize::{can_round_groups, round_blocks};
use super::ssm_conv::{Filter, MAX_TAPS};
use super::ssm_dt::step_sizes;
use super::ssm_head::{Chunk, chunk_floats};
use super::ssm_scan::{FLOPS, SlotPart, Turn};
use super::{Cx, Scratch, ScratchNeed, Work, most_parts};
use crate::isa::Isa;
use crate::shared::View;
use crate::simd::Simd;

pub(crate) struct SsmStep {
    pub x: Operand,
    pub out: Operand,
    /// Where the rounded form goes, if groups are whole blocks.
    pub rounded: Option<Operand>,
    pub filter: Filter,
    pub dt_bias: Arc<Vec<f32>>,
    pub a: Arc<Vec<f32>>,
    pub d: Arc<Vec<f32>>,
    pub norm: Arc<Vec<f32>>,
    pub dims: SsmDims,
    pub eps: f32,
    pub layer: usize,
}

/// A group of a segment, or a part of its heads.
#[derive(Clone)]
struct Group<'a> {
    first_row: usize,
    rows: usize,
    position: usize,
    slot: SlotPart<'a>,
    heads: Range<usize>,
    channels: Range<usize>,
    /// Columns among all groups' B, and C.
    state: Range<usize>,
}

/// What the convolution and the step sizes give for the rows of a part, by row.
struct Convolved<'f> {
    x: &'f mut [f32],
    b: &'f mut [f32],
    c: &'f mut [f32],
    dt: &'f mut [f32],
}

impl<'a> Group<'a> {
    fn new(step: &SsmStep, cx: &'a Cx, segment: &Segment, index: usize) -> Self {
        let dims = step.dims;
        let per_group = dims.heads / dims.groups;
        let heads = index * per_group..(index + 1) * per_group;
        Group {
            first_row: segment.first_row as usize,
            rows: segment.rows as usize,
            position: segment.position as usize,
            slot: SlotPart::new(cx, segment, step.layer),
            channels: heads.start * dims.head_dim..heads.end * dims.head_dim,
            heads,
            state: index * dims.state..(index + 1) * dims.state,
        }
    }

    /// One of so many parts.
    fn part(&self, dims: &SsmDims, index: usize, parts: usize) -> Self {
        let (first, count) = (self.heads.start, self.heads.len());
        let heads = first + count * index / parts..first + count * (index + 1) / parts;
        let channels = heads.start * dims.head_dim..heads.end * dims.head_dim;
        Group { heads, channels, ..self.clone() }
    }

    /// Has what its heads read of the rings brought into cache, a share with every head of the item `before` it, and
    /// says how far its state of that head is from the one that is read there.
    #[inline(always)]
    fn prefetch<S: Simd>(
        &self,
        dims: &SsmDims,
        (before, start): (&Group, usize),
        index: usize,
    ) -> Option<usize> {
        let cols = [self.channels.clone(), self.state.clone(), self.heads.clone()];
        let [b, c] = self.b_and_c(dims);
        let conv = [self.channels.clone(), b, c];
        self.slot.prefetch::<S>(self.position, (index, before.heads.len()), &cols, &conv);
        let heads = [before.heads.start + index, self.heads.start + index];
        let is_read = self.position >= SSM_CHUNK;
        is_read.then(|| before.slot.bytes_to_state(&self.slot, heads, [start, self.position]))
    }

    /// Where its B and C are in xBC.
    fn b_and_c(&self, dims: &SsmDims) -> [Range<usize>; 2] {
        let starts = [dims.inner(), dims.inner() + dims.group_state()];
        starts.map(|at| at + self.state.start..at + self.state.end)
    }
}

/// The columns xBC of a row of the input projection.
#[inline(always)]
fn xbc<'a>(x: &View<'a>, row: usize, dims: &SsmDims) -> &'a [f32] {
    &x.row(row)[dims.inner()..][..dims.conv_dim()]
}

impl SsmStep {
    /// Convolves a range of channels of one row's xBC.
    ///
    /// # Safety
    /// No thread writes those channels of the ring now.
    #[inline(always)]
    unsafe fn convolve<S: Simd>(
        &self,
        group: &Group,
        x: &View,
        row: usize,
        channels: Range<usize>,
        out: &mut [f32],
    ) {
        let taps = self.dims.taps;
        let mut columns = [&[][..]; MAX_TAPS];
        for (k, column) in columns[..taps].iter_mut().enumerate() {
            match (group.position + row + k + 1).checked_sub(taps) {
                None => {}
                Some(p) if p >= group.position => {
                    let row = group.first_row + p - group.position;
                    *column = &xbc(x, row, &self.dims)[channels.clone()];
                }
                // SAFETY: guaranteed by the caller.
                Some(p) => *column = unsafe { group.slot.conv_column(p, &channels) },
            }
        }
        self.filter.apply::<S>(&columns[..taps], channels, out);
    }

    /// Convolution and step sizes of all rows of a part.
    #[inline(always)]
    fn inputs<S: Simd>(&self, x: &View, part: &Group, into: &mut Convolved) {
        let dims = self.dims;
        let Group { heads, channels, .. } = part;
        let [b, c] = part.b_and_c(&dims);
        for row in 0..part.rows {
            let cols = |width: usize| row * width..(row + 1) * width;
            // SAFETY: x of these heads belongs to this item and is stored below; B and C are stored when all of the
            // group is done.
            unsafe {
                self.convolve::<S>(part, x, row, channels.clone(), &mut into.x[cols(channels.len())]);
                self.convolve::<S>(part, x, row, b.clone(), &mut into.b[cols(dims.state)]);
                self.convolve::<S>(part, x, row, c.clone(), &mut into.c[cols(dims.state)]);
            }
            let dt = &x.row(part.first_row + row)[dims.inner() + dims.conv_dim()..];
            step_sizes::<S>(
                &dt[heads.clone()],
                &self.dt_bias[heads.clone()],
                &mut into.dt[cols(heads.len())],
            );
        }
        for row in part.rows.saturating_sub(part.slot.layout.conv_capacity)..part.rows {
            let column = &xbc(x, part.first_row + row, &dims)[channels.clone()];
            // SAFETY: as above; nothing borrows the ring any more.
            unsafe { part.slot.store_conv_column(part.position + row, channels, column) };
        }
    }

    /// Computes a part of a group: its outputs before the norm, its states, and its own columns of the rings. B of
    /// the group is left in `own_b`. What this thread reads `next` is brought into cache meanwhile.
    #[inline(always)]
    fn scan<S: Simd>(
        &self,
        cx: &Cx,
        part: &Group,
        next: Option<&Group>,
        own_b: &mut [f32],
        floats: &mut [f32],
    ) {
        let dims = self.dims;
        let (x, out) = (cx.view(&self.x), cx.view(&self.out));
        let &Group { rows, position, slot, ref heads, ref channels, .. } = part;
        let (own_x, floats) = floats.split_at_mut(rows * channels.len());
        let (own_c, floats) = floats.split_at_mut(rows * dims.state);
        let (own_dt, floats) = floats.split_at_mut(rows * heads.len());
        self.inputs::<S>(&x, part, &mut Convolved { x: own_x, b: own_b, c: own_c, dt: own_dt });
        let (own_x, own_b, own_c, own_dt) = (&*own_x, &*own_b, &*own_c, &*own_dt);

        let mut done = 0;
        while done < rows {
            let start = position + done - (position + done) % SSM_CHUNK;
            let new = position + done - start;
            let end = SSM_CHUNK.min(new + rows - done);
            let mut chunk = Chunk::new(new, end);
            if done == 0 {
                // SAFETY: these heads' columns belong to this item; earlier columns of B are not written in this step.
                unsafe {
                    slot.load_ring(&mut chunk, start, &[channels.clone(), part.state.clone(), heads.clone()]);
                }
            }
            let mut outs: [&mut [f32]; SSM_CHUNK] = std::array::from_fn(|_| &mut [][..]);
            for s in new..end {
                let row = done + s - new;
                chunk.x[s] = &own_x[row * channels.len()..][..channels.len()];
                chunk.b[s] = &own_b[row * dims.state..][..dims.state];
                chunk.c[s] = &own_c[row * dims.state..][..dims.state];
                chunk.dt[s] = &own_dt[row * heads.len()..][..heads.len()];
                // SAFETY: these channels of the row belong to this item.
                outs[s] = unsafe { out.cols_mut(part.first_row + row, channels.clone()) };
            }
            chunk.products::<S>(&chunk.c, &mut floats[..SSM_CHUNK * SSM_CHUNK]);
            for (index, head) in heads.clone().enumerate() {
                let ahead = next.and_then(|next| next.prefetch::<S>(&dims, (part, start), index));
                let turn = Turn { index, head, ahead };
                // SAFETY: a head of a slot belongs to one item.
                unsafe { slot.head::<S>(&chunk, start, turn, [&self.a, &self.d], floats, &mut outs) };
            }
            done += end - new;
        }
        for row in rows.saturating_sub(slot.layout.ring_capacity)..rows {
            let x = &own_x[row * channels.len()..][..channels.len()];
            let dt = &own_dt[row * heads.len()..][..heads.len()];
            // SAFETY: these heads' columns belong to this item, which has read them.
            unsafe { slot.store_ring(position + row, [channels.clone(), 0..0, heads.clone()], [x, &[], dt]) };
        }
    }

    /// Completes a group of which all parts are done.
    #[inline(always)]
    fn finish<S: Simd>(&self, cx: &Cx, group: &Group, own_b: &[f32], floats: &mut [f32]) {
        let dims = self.dims;
        let (x, out) = (cx.view(&self.x), cx.view(&self.out));
        let &Group { rows, position, slot, ref channels, .. } = group;
        let [b, c] = group.b_and_c(&dims);
        for row in 0..rows {
            let at = group.first_row + row;
            let xbc = xbc(&x, at, &dims);
            // SAFETY: no other thread touches the group any more.
            let out = unsafe {
                let own_b = &own_b[row * dims.state..][..dims.state];
                slot.store_ring(position + row, [0..0, group.state.clone(), 0..0], [&[], own_b, &[]]);
                if row + slot.layout.conv_capacity >= rows {
                    slot.store_conv_column(position + row, &b, &xbc[b.clone()]);
                    slot.store_conv_column(position + row, &c, &xbc[c.clone()]);
                }
                out.cols_mut(at, channels.clone())
            };
            let y = &mut floats[..channels.len()];
            y.copy_from_slice(out);
            let z = &x.row(at)[channels.clone()];
            gate_and_normalize::<S>(y, z, &self.norm[channels.clone()], self.eps, out);
            if let Some(rounded) = &self.rounded {
                // SAFETY: as above.
                unsafe { round_blocks::<S>(out, &cx.view(rounded), at, channels.start) };
            }
        }
    }
}

impl Work for SsmStep {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, scratch: &mut Scratch) {
        let (segments, dims) = (cx.step.segments, self.dims);
        let groups = segments.len() * dims.groups;
        let wanted = cx.threads.div_ceil(groups.max(1));
        let parts = wanted.min(dims.heads / dims.groups).min(most_parts(groups)).max(1);
        let (own_b, floats) = scratch.floats.split_at_mut(SSM_CHUNK * dims.state);
        let group = |index: usize| Group::new(self, cx, &segments[index / dims.groups], index % dims.groups);
        if parts == 1 {
            while let Some(run) = cx.next_run(0, groups) {
                for index in run.clone() {
                    let own = group(index);
                    let next = (index + 1 < run.end).then(|| group(index + 1));
                    self.scan::<S>(cx, &own, next.as_ref(), own_b, floats);
                    self.finish::<S>(cx, &own, own_b, floats);
                }
            }
            return;
        }
        while let Some(item) = cx.next(0, groups * parts) {
            let (index, part) = (item / parts, item % parts);
            let group = group(index);
            self.scan::<S>(cx, &group.part(&dims, part, parts), None, own_b, floats);
            if cx.is_last_part(1, (index, groups), parts) {
                self.finish::<S>(cx, &group, own_b, floats);
            }
        }
    }

    fn scratch(&self, _: usize) -> ScratchNeed {
        let d = self.dims;
        let own = SSM_CHUNK * (d.inner() / d.groups + 2 * d.state + d.heads / d.groups);
        ScratchNeed { floats: own + chunk_floats(d.state), ..ScratchNeed::default() }
    }
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| match b.call.op {
        Op::SsmStep { dims, eps } => {
            let weight = b.vector(0, dims.conv_dim() * dims.taps)?;
            b.kernel(SsmStep {
                x: b.x(),
                out: b.out(),
                rounded: b.call.rounded,
                filter: Filter::new(&weight, b.vector(1, dims.conv_dim())?),
                dt_bias: b.vector(2, dims.heads)?,
                a: b.vector(3, dims.heads)?,
                d: b.vector(4, dims.heads)?,
                norm: b.vector(5, dims.inner())?,
                dims,
                eps,
                layer: b.layer(),
            })
        }
        _ => b.wrong_op(),
    };
    let accepts = |site: &Site| match site.op {
        Op::SsmStep { dims, .. } => site.phase != Phase::Prefill && dims.taps <= MAX_TAPS,
        _ => false,
    };
    let rounds = |site: &Site, to: Elem| match site.op {
        Op::SsmStep { dims, .. } => can_round_groups(dims.inner(), dims.groups, to),
        _ => false,
    };
    let declaration = Declaration::new(isa, OpKind::SsmStep, "f32", bind).shared().at(FLOPS);
    vec![declaration.offering(|row| row.accepting(accepts).rounding(rounds))]
}
