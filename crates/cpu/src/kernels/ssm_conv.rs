//! `ssm_conv`: `y[t,c] = SiLU(bias[c] + Σ_k w[c,k]·xBC[t−K+1+k, c])`, columns before the sequence zero.
//!
//! Columns before the segment are read from the slot's ring, and the segment's last ones are stored there. An item is a
//! block of channels of a segment, so that only one thread reads and writes a channel's history.
//! Per value: 8 bytes, 2K + 15 FLOPs.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use mambo_kernel::{Op, OpKind, Operand, Segment, Site};

use super::declaration::{Binding, Declaration};
use super::ssm_scan::SlotPart;
use super::{Cx, Scratch, Work};
use crate::isa::Isa;
use crate::simd::{LANES, Math, Simd};

/// Channels of an item.
pub(super) const BLOCK: usize = 512;
/// Maximum taps of a convolution.
pub(crate) const MAX_TAPS: usize = 16;

/// Taps and bias of a convolution.
pub(crate) struct Filter {
    /// `[taps][channels]`.
    taps: Vec<f32>,
    bias: Arc<Vec<f32>>,
}

impl Filter {
    /// Transposes `[channels][taps]`, so that a vector holds one tap of sixteen channels.
    pub fn new(weight: &[f32], bias: Arc<Vec<f32>>) -> Filter {
        let channels = bias.len();
        let count = weight.len() / channels;
        let mut taps = vec![0.0; weight.len()];
        for (c, row) in weight.chunks(count).enumerate() {
            for (k, &w) in row.iter().enumerate() {
                taps[k * channels + c] = w;
            }
        }
        Filter { taps, bias }
    }

    /// The given channels of one output row, with SiLU. `columns` are the input columns of those channels, oldest
    /// first; those before the sequence are empty.
    #[inline(always)]
    pub fn apply<S: Simd>(&self, columns: &[&[f32]], channels: Range<usize>, out: &mut [f32]) {
        for (i, out) in out.chunks_mut(LANES).enumerate() {
            S::store_part(S::silu(self.sum::<S>(columns, channels.start, i, out.len())), out);
        }
    }

    /// Vector `i` of the channels from `first` on, `width` of them, without SiLU.
    #[inline(always)]
    pub fn sum<S: Simd>(&self, columns: &[&[f32]], first: usize, i: usize, width: usize) -> S::F {
        let (total, at) = (self.bias.len(), first + i * LANES);
        let here = at..at + width;
        let mut y = S::load_part(&self.bias[here.clone()]);
        for (k, column) in columns.iter().enumerate() {
            if !column.is_empty() {
                let w = S::load_part(&self.taps[k * total + here.start..k * total + here.end]);
                y = S::fma(w, S::load_part(&column[i * LANES..i * LANES + width]), y);
            }
        }
        y
    }
}

pub(crate) struct SsmConv {
    pub x: Operand,
    pub out: Operand,
    pub filter: Filter,
    pub layer: usize,
    pub taps: usize,
}

impl SsmConv {
    #[inline(always)]
    fn segment<S: Simd>(&self, cx: &Cx, segment: &Segment, channels: Range<usize>) {
        let (x, out) = (cx.view(&self.x), cx.view(&self.out));
        let slot = SlotPart::new(cx, segment, self.layer);
        let (first, start) = (segment.first_row as usize, segment.position as usize);
        let rows = segment.rows as usize;
        for t in 0..rows {
            let mut columns = [&[][..]; MAX_TAPS];
            for (k, column) in columns[..self.taps].iter_mut().enumerate() {
                // Position that the tap reads.
                match (start + t + k + 1).checked_sub(self.taps) {
                    None => {}
                    Some(p) if p >= start => *column = &x.row(first + p - start)[channels.clone()],
                    // SAFETY: the item owns these channels and writes them below, after all reads.
                    Some(p) => *column = unsafe { slot.conv_column(p, &channels) },
                }
            }
            // SAFETY: these channels of the row belong to this item.
            let out = unsafe { out.cols_mut(first + t, channels.clone()) };
            self.filter.apply::<S>(&columns[..self.taps], channels.clone(), out);
        }
        for t in rows.saturating_sub(slot.layout.conv_capacity)..rows {
            // SAFETY: as above; the ring is no longer borrowed.
            unsafe { slot.store_conv_column(start + t, &channels, &x.row(first + t)[channels.clone()]) };
        }
    }
}

impl Work for SsmConv {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let total = self.x.cols;
        let blocks = total.div_ceil(BLOCK);
        while let Some(item) = cx.next(0, cx.step.segments.len() * blocks) {
            let first = item % blocks * BLOCK;
            self.segment::<S>(cx, &cx.step.segments[item / blocks], first..total.min(first + BLOCK));
        }
    }
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| match b.call.op {
        Op::SsmConv(d) => {
            let weight = b.vector(0, d.conv_dim() * d.taps)?;
            let filter = Filter::new(&weight, b.vector(1, d.conv_dim())?);
            b.kernel(SsmConv { x: b.x(), out: b.out(), filter, layer: b.layer(), taps: d.taps })
        }
        _ => b.wrong_op(),
    };
    let accepts = |site: &Site| matches!(site.op, Op::SsmConv(dims) if dims.taps <= MAX_TAPS);
    let declaration = Declaration::new(isa, OpKind::SsmConv, "f32", bind).shared();
    vec![declaration.offering(|row| row.accepting(accepts))]
}
