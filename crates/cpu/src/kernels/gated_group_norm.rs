//! `gated_group_norm`: `v = y·SiLU(z)`, then `rms_norm` of each group of channels, times a weight.
//! An item is a group of a row, which is also quantised if the next call wants that; 12 bytes per value.
#![allow(unsafe_code)]

use std::sync::Arc;

use mambo_kernel::{Elem, Op, OpKind, Operand, Site};

use super::declaration::{Binding, Declaration};
use super::quantize::{can_round_groups, round_blocks};
use super::rms_norm::normalize;
use super::{Cx, Scratch, ScratchNeed, Work};
use crate::isa::Isa;
use crate::simd::{Math, Simd, part, part_mut, vectors};

pub(crate) struct GatedGroupNorm {
    pub y: Operand,
    pub z: Operand,
    pub out: Operand,
    /// Where the quantised output goes, if groups are whole blocks.
    pub rounded: Option<Operand>,
    pub weight: Arc<Vec<f32>>,
    pub groups: usize,
    pub eps: f32,
}

/// Gates `y` in place and writes its norm.
#[inline(always)]
pub(super) fn gate_and_normalize<S: Simd>(
    y: &mut [f32],
    z: &[f32],
    weight: &[f32],
    eps: f32,
    out: &mut [f32],
) {
    for i in 0..vectors(y.len()) {
        let gated = S::mul(S::load_part(part(y, i)), S::silu(S::load_part(part(z, i))));
        S::store_part(gated, part_mut(y, i));
    }
    normalize::<S>(y, weight, eps, out);
}

impl Work for GatedGroupNorm {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, scratch: &mut Scratch) {
        let (y, z, out) = (cx.view(&self.y), cx.view(&self.z), cx.view(&self.out));
        let rounded = self.rounded.map(|operand| cx.view(&operand));
        let size = y.cols() / self.groups;
        let gated = &mut scratch.floats[..size];
        for item in cx.own(y.rows() * self.groups) {
            let (row, group) = (item / self.groups, item % self.groups);
            let cols = group * size..(group + 1) * size;
            gated.copy_from_slice(&y.row(row)[cols.clone()]);
            // SAFETY: a group of a row belongs to one item.
            let out = unsafe { out.cols_mut(row, cols.clone()) };
            let z = &z.row(row)[cols.clone()];
            gate_and_normalize::<S>(gated, z, &self.weight[cols.clone()], self.eps, out);
            if let Some(rounded) = &rounded {
                // SAFETY: as above.
                unsafe { round_blocks::<S>(out, rounded, row, cols.start) };
            }
        }
    }

    fn scratch(&self, _: usize) -> ScratchNeed {
        ScratchNeed { floats: self.y.cols / self.groups.max(1), ..ScratchNeed::default() }
    }
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| match b.call.op {
        Op::GatedGroupNorm { groups, eps } => {
            let (weight, rounded) = (b.vector(0, b.x().cols)?, b.call.rounded);
            b.kernel(GatedGroupNorm { y: b.x(), z: b.input(1), out: b.out(), rounded, weight, groups, eps })
        }
        _ => b.wrong_op(),
    };
    let rounds = |site: &Site, to: Elem| match site.op {
        Op::GatedGroupNorm { groups, .. } => can_round_groups(site.input_cols(), *groups, to),
        _ => false,
    };
    vec![Declaration::new(isa, OpKind::GatedGroupNorm, "f32", bind).offering(|row| row.rounding(rounds))]
}
