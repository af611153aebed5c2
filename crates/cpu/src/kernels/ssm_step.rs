//! `ssm_step`: `ssm_conv`, `ssm_dt`, `ssm_scan` and `gated_group_norm` of one token per sequence.
//!
//! An item is a group of a segment: its heads, its B and C and its norm need nothing of another group.
//! It calls the same functions as the four ops, so it gives the same bits, and rounds the group where that is
//! wanted next. Bytes: the state once
//! (N elements per channel), the ring of the chunk so far, and 8 per column of the projection.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use mambo_kernel::{Operand, SSM_CHUNK, Segment, SsmDims};

use super::gated_group_norm::gate_and_normalize;
use super::quantize::round_blocks;
use super::ssm_conv::{ConvRing, Filter, MAX_TAPS};
use super::ssm_dt::step_sizes;
use super::ssm_head::{Chunk, chunk_floats};
use super::ssm_scan::SlotPart;
use super::{Cx, Scratch, ScratchNeed, Work};
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

impl SsmStep {
    /// Convolves a range of channels of the row's xBC and stores its raw column.
    #[inline(always)]
    fn convolve<S: Simd>(
        &self,
        part: &SlotPart,
        position: usize,
        xbc: &[f32],
        at: Range<usize>,
        out: &mut [f32],
    ) {
        let SlotPart { caches, slot, layer, layout } = *part;
        let ring = ConvRing { caches, slot, layer, layout };
        let taps = self.dims.taps;
        let raw = &xbc[at.clone()];
        let mut columns = [&[][..]; MAX_TAPS];
        for (k, column) in columns[..taps - 1].iter_mut().enumerate() {
            if let Some(p) = (position + k + 1).checked_sub(taps) {
                // SAFETY: these channels belong to this item, which stores the new column below.
                *column = unsafe { ring.column(p, &at) };
            }
        }
        columns[taps - 1] = raw;
        self.filter.apply::<S>(&columns[..taps], at.clone(), out);
        // SAFETY: as above; the old columns have been read.
        unsafe { ring.store(position, &at, raw) };
    }

    #[inline(always)]
    fn group<S: Simd>(&self, cx: &Cx, segment: &Segment, group: usize, floats: &mut [f32]) {
        let dims = self.dims;
        let row = segment.first_row as usize;
        let position = segment.position as usize;
        let (x, out) = (cx.view(&self.x), cx.view(&self.out));
        let part = SlotPart::new(cx, segment, self.layer);
        let (inner, width) = (dims.inner(), dims.group_state());
        let (z, rest) = x.row(row).split_at(inner);
        let (xbc, dt) = rest.split_at(dims.conv_dim());

        let per_group = dims.heads / dims.groups;
        let heads = group * per_group..(group + 1) * per_group;
        let channels = heads.start * dims.head_dim..heads.end * dims.head_dim;
        let b_cols = group * dims.state..(group + 1) * dims.state;
        let (own_x, floats) = floats.split_at_mut(channels.len());
        let (own_b, floats) = floats.split_at_mut(dims.state);
        let (own_c, floats) = floats.split_at_mut(dims.state);
        let (own_dt, floats) = floats.split_at_mut(per_group);
        let (own_y, floats) = floats.split_at_mut(channels.len());
        self.convolve::<S>(&part, position, xbc, channels.clone(), own_x);
        self.convolve::<S>(&part, position, xbc, inner + b_cols.start..inner + b_cols.end, own_b);
        let c_at = inner + width;
        self.convolve::<S>(&part, position, xbc, c_at + b_cols.start..c_at + b_cols.end, own_c);
        step_sizes::<S>(&dt[heads.clone()], &self.dt_bias[heads.clone()], own_dt);

        let cols = [channels.clone(), b_cols, heads.clone()];
        let start = position - position % SSM_CHUNK;
        let now = position - start;
        let mut chunk = Chunk::new(now, now + 1);
        // SAFETY: the group's columns of the ring belong to this item.
        unsafe {
            part.store_ring(position, cols.clone(), [own_x, own_b, own_dt]);
            part.load_ring(&mut chunk, start, &cols);
        }
        (chunk.x[now], chunk.b[now], chunk.c[now], chunk.dt[now]) = (own_x, own_b, own_c, own_dt);
        chunk.products::<S>(&mut floats[..SSM_CHUNK * SSM_CHUNK]);
        let mut outs: [&mut [f32]; SSM_CHUNK] = std::array::from_fn(|_| &mut [][..]);
        outs[now] = &mut *own_y;
        for (index, head) in heads.enumerate() {
            // SAFETY: a head of a slot belongs to one item.
            unsafe {
                part.head::<S>(&chunk, start, (index, head), [&self.a, &self.d], floats, &mut outs);
            }
        }
        // SAFETY: the group's channels of the row belong to this item.
        let out = unsafe { out.cols_mut(row, channels.clone()) };
        gate_and_normalize::<S>(own_y, &z[channels.clone()], &self.norm[channels.clone()], self.eps, out);
        if let Some(rounded) = &self.rounded {
            // SAFETY: as above.
            unsafe { round_blocks::<S>(out, &cx.view(rounded), row, channels.start) };
        }
    }
}

impl Work for SsmStep {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, scratch: &mut Scratch) {
        let (segments, groups) = (cx.step.segments, self.dims.groups);
        while let Some(item) = cx.next(0, segments.len() * groups) {
            self.group::<S>(cx, &segments[item / groups], item % groups, &mut scratch.floats);
        }
    }

    fn scratch(&self, _: usize) -> ScratchNeed {
        let d = self.dims;
        let own = 2 * d.inner() / d.groups + 2 * d.state + d.heads / d.groups;
        ScratchNeed { floats: own + chunk_floats(d.state), ..ScratchNeed::default() }
    }
}
