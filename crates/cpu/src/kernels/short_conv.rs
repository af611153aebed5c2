//! `short_conv`: with the input `[b c x]`, `y[t] = c[t] · (bias + Σ_k w[·,k]·(b·x)[t−K+1+k])`, columns before the
//! sequence zero.
//!
//! The products b·x before the segment are read from the slot's ring, and the segment's last ones are stored there. An
//! item is a block of channels of a segment, as in `ssm_conv`. Per output: 16 bytes, 2K + 2 FLOPs.
#![allow(unsafe_code)]

use std::ops::Range;

use mambo_kernel::{Op, OpKind, Operand, Segment, Site};

use super::declaration::{Binding, Declaration};
use super::ssm_conv::{BLOCK, Filter, MAX_TAPS};
use super::ssm_scan::SlotPart;
use super::{Cx, Scratch, ScratchNeed, Work};
use crate::isa::Isa;
use crate::shared::View;
use crate::simd::{Simd, part, part_mut, vectors};

pub(crate) struct ShortConv {
    pub bcx: Operand,
    pub out: Operand,
    pub filter: Filter,
    pub layer: usize,
    pub taps: usize,
}

impl ShortConv {
    /// Some channels of a row's b (0), c (1) or x (2).
    #[inline(always)]
    fn third<'a>(&self, bcx: &View<'a>, row: usize, which: usize, channels: &Range<usize>) -> &'a [f32] {
        let start = which * self.out.cols;
        &bcx.row(row)[start + channels.start..start + channels.end]
    }

    /// The products b·x of a row.
    #[inline(always)]
    fn column<S: Simd>(&self, bcx: &View, row: usize, channels: &Range<usize>, out: &mut [f32]) {
        let (b, x) = (self.third(bcx, row, 0, channels), self.third(bcx, row, 2, channels));
        for i in 0..vectors(b.len()) {
            S::store_part(S::mul(S::load_part(part(b, i)), S::load_part(part(x, i))), part_mut(out, i));
        }
    }

    /// `recent` has room for as many columns as there are taps; that of position p stands at `p mod taps`.
    #[inline(always)]
    fn segment<S: Simd>(&self, cx: &Cx, segment: &Segment, channels: Range<usize>, recent: &mut [f32]) {
        let (bcx, out) = (cx.view(&self.bcx), cx.view(&self.out));
        let slot = SlotPart::new(cx, segment, self.layer);
        let (first, start) = (segment.first_row as usize, segment.position as usize);
        let (rows, width) = (segment.rows as usize, channels.len());
        let place = |position: usize| position % self.taps * width..(position % self.taps + 1) * width;
        for position in (start + 1).saturating_sub(self.taps)..start {
            // SAFETY: the item owns these channels and writes them below, after all reads.
            recent[place(position)].copy_from_slice(unsafe { slot.conv_column(position, &channels) });
        }
        for t in 0..rows {
            self.column::<S>(&bcx, first + t, &channels, &mut recent[place(start + t)]);
            let mut columns = [&[][..]; MAX_TAPS];
            for (k, column) in columns[..self.taps].iter_mut().enumerate() {
                if let Some(position) = (start + t + k + 1).checked_sub(self.taps) {
                    *column = &recent[place(position)];
                }
            }
            let c = self.third(&bcx, first + t, 1, &channels);
            // SAFETY: these channels of the row belong to this item.
            let out = unsafe { out.cols_mut(first + t, channels.clone()) };
            for i in 0..vectors(width) {
                let c = part(c, i);
                let sum = self.filter.sum::<S>(&columns[..self.taps], channels.start, i, c.len());
                S::store_part(S::mul(S::load_part(c), sum), part_mut(out, i));
            }
        }
        for t in rows.saturating_sub(slot.layout.conv_capacity)..rows {
            let column = &mut recent[..width];
            self.column::<S>(&bcx, first + t, &channels, column);
            // SAFETY: as above; the ring is no longer borrowed.
            unsafe { slot.store_conv_column(start + t, &channels, column) };
        }
    }
}

impl Work for ShortConv {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, scratch: &mut Scratch) {
        let total = self.out.cols;
        let blocks = total.div_ceil(BLOCK);
        while let Some(item) = cx.next(0, cx.step.segments.len() * blocks) {
            let first = item % blocks * BLOCK;
            let channels = first..total.min(first + BLOCK);
            self.segment::<S>(cx, &cx.step.segments[item / blocks], channels, &mut scratch.floats);
        }
    }

    fn scratch(&self, _: usize) -> ScratchNeed {
        ScratchNeed { floats: self.taps * BLOCK.min(self.out.cols), ..ScratchNeed::default() }
    }
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| match b.call.op {
        Op::ShortConv(d) => {
            let weight = b.vector(0, d.conv_dim() * d.taps)?;
            let filter = Filter::new(&weight, b.vector(1, d.conv_dim())?);
            b.kernel(ShortConv { bcx: b.x(), out: b.out(), filter, layer: b.layer(), taps: d.taps })
        }
        _ => b.wrong_op(),
    };
    let accepts = |site: &Site| matches!(site.op, Op::ShortConv(dims) if dims.taps <= MAX_TAPS);
    let declaration = Declaration::new(isa, OpKind::ShortConv, "f32", bind).shared();
    vec![declaration.offering(|row| row.accepting(accepts))]
}
