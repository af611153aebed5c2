//! `rms_norm`: `y = x / sqrt(mean(x²) + eps) · weight`, also quantised if the next call wants that. An item is a row;
//! 8 bytes per value.
#![allow(unsafe_code)]

use std::sync::Arc;

use mambo_kernel::{Op, OpKind, Operand};

use super::declaration::{Binding, Declaration};
use super::quantize::round_row;
use super::{Cx, Scratch, Work};
use crate::isa::Isa;
use crate::simd::{Simd, part, part_mut, square_sum, vectors};

pub(crate) struct RmsNorm {
    pub x: Operand,
    pub out: Operand,
    /// Where the quantised output goes.
    pub rounded: Option<Operand>,
    pub weight: Arc<Vec<f32>>,
    pub eps: f32,
}

/// Divides a row by its root mean square and multiplies it by the weight.
#[inline(always)]
pub(super) fn normalize<S: Simd>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mean = square_sum::<S>(x) / x.len() as f32;
    let factor = S::splat(1.0 / (mean + eps).sqrt());
    for i in 0..vectors(x.len()) {
        let y = S::mul(S::mul(S::load_part(part(x, i)), factor), S::load_part(part(weight, i)));
        S::store_part(y, part_mut(out, i));
    }
}

impl Work for RmsNorm {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let (x, out) = (cx.view(&self.x), cx.view(&self.out));
        let rounded = self.rounded.map(|operand| cx.view(&operand));
        for row in cx.own(x.rows()) {
            // SAFETY: a row belongs to one item.
            let y = unsafe { out.cols_mut(row, 0..x.cols()) };
            normalize::<S>(x.row(row), &self.weight, self.eps, y);
            if let Some(rounded) = &rounded {
                // SAFETY: as above.
                unsafe { round_row::<S>(y, rounded, row) };
            }
        }
    }
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| match b.call.op {
        Op::RmsNorm { eps } => {
            let (weight, rounded) = (b.vector(0, b.x().cols)?, b.call.rounded);
            b.kernel(RmsNorm { x: b.x(), out: b.out(), rounded, weight, eps })
        }
        _ => b.wrong_op(),
    };
    // Its items are whole rows, which every private type can be made of.
    vec![Declaration::new(isa, OpKind::RmsNorm, "f32", bind).offering(|row| row.rounding(|_, _| true))]
}
