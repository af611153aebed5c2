//! `ssm_step`: `ssm_conv`, `ssm_dt`, `ssm_scan` and `gated_group_norm` of one token per sequence.
//!
//! An item is a group of a segment: its heads, its B and C and its norm are independent of other groups. If there are
//! fewer groups than threads, an item is a part of a group's heads, and the thread that finishes the last part
//! normalises the group and stores its columns of B and C, because they overwrite ring entries that all parts read.
//!
//! It calls the same functions as the four ops, so it gives the same bits, and quantises the group if the next call
//! wants that. Bytes: the state once (N elements per channel), the ring of the chunk so far, and 8 per column of the
//! projection.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use mambo_kernel::{Operand, SSM_CHUNK, Segment, SsmDims};

use super::gated_group_norm::gate_and_normalize;
use super::quantize::round_blocks;
use super::ssm_conv::{Filter, MAX_TAPS};
use super::ssm_dt::step_sizes;
use super::ssm_head::{Chunk, chunk_floats};
use super::ssm_scan::SlotPart;
use super::{Cx, Scratch, ScratchNeed, Work, most_parts};
use crate::simd::Simd;

pub(crate) struct SsmStep {
    pub x: Operand,
    pub out: Operand,
    /// Where the quantised output goes, if groups are whole blocks.
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

/// A group of a row, or a part of its heads.
#[derive(Clone)]
struct Group<'a> {
    row: usize,
    position: usize,
    slot: SlotPart<'a>,
    heads: Range<usize>,
    channels: Range<usize>,
    /// Columns within B, and within C, of all groups.
    state: Range<usize>,
}

impl<'a> Group<'a> {
    fn new(step: &SsmStep, cx: &'a Cx, segment: &Segment, index: usize) -> Self {
        let dims = step.dims;
        let per_group = dims.heads / dims.groups;
        let heads = index * per_group..(index + 1) * per_group;
        Group {
            row: segment.first_row as usize,
            position: segment.position as usize,
            slot: SlotPart::new(cx, segment, step.layer),
            channels: heads.start * dims.head_dim..heads.end * dims.head_dim,
            heads,
            state: index * dims.state..(index + 1) * dims.state,
        }
    }

    /// Part `index` of `parts`.
    fn part(&self, dims: &SsmDims, index: usize, parts: usize) -> Self {
        let (first, count) = (self.heads.start, self.heads.len());
        let heads = first + count * index / parts..first + count * (index + 1) / parts;
        let channels = heads.start * dims.head_dim..heads.end * dims.head_dim;
        Group { heads, channels, ..self.clone() }
    }

    /// Columns of its B and C in xBC.
    fn b_and_c(&self, dims: &SsmDims) -> [Range<usize>; 2] {
        let starts = [dims.inner(), dims.inner() + dims.group_state()];
        starts.map(|at| at + self.state.start..at + self.state.end)
    }
}

impl SsmStep {
    /// Convolves a range of channels of a row's xBC.
    ///
    /// # Safety
    /// No thread writes those channels of the ring concurrently.
    #[inline(always)]
    unsafe fn convolve<S: Simd>(&self, group: &Group, xbc: &[f32], at: Range<usize>, out: &mut [f32]) {
        let taps = self.dims.taps;
        let mut columns = [&[][..]; MAX_TAPS];
        for (k, column) in columns[..taps - 1].iter_mut().enumerate() {
            if let Some(p) = (group.position + k + 1).checked_sub(taps) {
                // SAFETY: guaranteed by the caller.
                *column = unsafe { group.slot.conv_column(p, &at) };
            }
        }
        columns[taps - 1] = &xbc[at.clone()];
        self.filter.apply::<S>(&columns[..taps], at, out);
    }

    /// Computes a part of a group: outputs before the norm, states, and its own columns of the rings. Leaves B of the
    /// group in `own_b`.
    #[inline(always)]
    fn scan<S: Simd>(&self, cx: &Cx, part: &Group, own_b: &mut [f32], floats: &mut [f32]) {
        let dims = self.dims;
        let (x, out) = (cx.view(&self.x), cx.view(&self.out));
        let (xbc, dt) = x.row(part.row)[dims.inner()..].split_at(dims.conv_dim());
        let Group { position, slot, heads, channels, .. } = part;
        let (own_x, floats) = floats.split_at_mut(channels.len());
        let (own_c, floats) = floats.split_at_mut(dims.state);
        let (own_dt, floats) = floats.split_at_mut(heads.len());
        let [b, c] = part.b_and_c(&dims);
        // SAFETY: x of these heads belongs to this item, and B and C are written only when the whole group is done.
        unsafe {
            self.convolve::<S>(part, xbc, channels.clone(), own_x);
            self.convolve::<S>(part, xbc, b, own_b);
            self.convolve::<S>(part, xbc, c, own_c);
            slot.store_conv_column(*position, channels, &xbc[channels.clone()]);
        }
        step_sizes::<S>(&dt[heads.clone()], &self.dt_bias[heads.clone()], own_dt);

        let start = position - position % SSM_CHUNK;
        let now = position - start;
        let mut chunk = Chunk::new(now, now + 1);
        // SAFETY: these heads' columns belong to this item; earlier columns of B are not written in this step.
        unsafe {
            slot.store_ring(*position, [channels.clone(), 0..0, heads.clone()], [own_x, &[], own_dt]);
            slot.load_ring(&mut chunk, start, &[channels.clone(), part.state.clone(), heads.clone()]);
        }
        (chunk.x[now], chunk.b[now], chunk.c[now], chunk.dt[now]) = (own_x, own_b, own_c, own_dt);
        chunk.products::<S>(&mut floats[..SSM_CHUNK * SSM_CHUNK]);
        let mut outs: [&mut [f32]; SSM_CHUNK] = std::array::from_fn(|_| &mut [][..]);
        // SAFETY: these channels of the row belong to this item.
        outs[now] = unsafe { out.cols_mut(part.row, channels.clone()) };
        for (index, head) in heads.clone().enumerate() {
            // SAFETY: a head of a slot belongs to one item.
            unsafe { slot.head::<S>(&chunk, start, (index, head), [&self.a, &self.d], floats, &mut outs) };
        }
    }

    /// Finishes a group of which all parts are done.
    #[inline(always)]
    fn finish<S: Simd>(&self, cx: &Cx, group: &Group, own_b: &[f32], floats: &mut [f32]) {
        let dims = self.dims;
        let (x, out) = (cx.view(&self.x), cx.view(&self.out));
        let (z, rest) = x.row(group.row).split_at(dims.inner());
        let xbc = &rest[..dims.conv_dim()];
        let Group { row, position, slot, channels, .. } = group;
        let y = &mut floats[..channels.len()];
        let [b, c] = group.b_and_c(&dims);
        // SAFETY: all parts are done, so no other thread touches the group any more.
        let out = unsafe {
            slot.store_ring(*position, [0..0, group.state.clone(), 0..0], [&[], own_b, &[]]);
            slot.store_conv_column(*position, &b, &xbc[b.clone()]);
            slot.store_conv_column(*position, &c, &xbc[c.clone()]);
            out.cols_mut(*row, channels.clone())
        };
        y.copy_from_slice(out);
        gate_and_normalize::<S>(y, &z[channels.clone()], &self.norm[channels.clone()], self.eps, out);
        if let Some(rounded) = &self.rounded {
            // SAFETY: as above.
            unsafe { round_blocks::<S>(out, &cx.view(rounded), *row, channels.start) };
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
        let (own_b, floats) = scratch.floats.split_at_mut(dims.state);
        while let Some(item) = cx.next(0, groups * parts) {
            let (index, part) = (item / parts, item % parts);
            let group = Group::new(self, cx, &segments[index / dims.groups], index % dims.groups);
            self.scan::<S>(cx, &group.part(&dims, part, parts), own_b, floats);
            if parts == 1 || cx.is_last_part(1, (index, groups), parts) {
                self.finish::<S>(cx, &group, own_b, floats);
            }
        }
    }

    fn scratch(&self, _: usize) -> ScratchNeed {
        let d = self.dims;
        let own = d.inner() / d.groups + 2 * d.state + d.heads / d.groups;
        ScratchNeed { floats: own + chunk_floats(d.state), ..ScratchNeed::default() }
    }
}
