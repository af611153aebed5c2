//! `head_norm`: `rms_norm` of every head of a row with one weight, also quantised if the next call wants that. An item
//! is a row; 8 bytes per value.
#![allow(unsafe_code)]

use std::sync::Arc;

use mambo_kernel::{Op, OpKind, Operand};

use super::declaration::{Binding, Declaration};
use super::quantize::round_row;
use super::rms_norm::normalize;
use super::{Cx, Scratch, Work};
use crate::isa::Isa;
use crate::simd::Simd;

pub(crate) struct HeadNorm {
    pub x: Operand,
    pub out: Operand,
    /// Where the quantised output goes.
    pub rounded: Option<Operand>,
    /// As long as a head.
    pub weight: Arc<Vec<f32>>,
    pub eps: f32,
}

impl Work for HeadNorm {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let (x, out) = (cx.view(&self.x), cx.view(&self.out));
        let rounded = self.rounded.map(|operand| cx.view(&operand));
        let size = self.weight.len();
        for row in cx.own(x.rows()) {
            // SAFETY: a row belongs to one item.
            let y = unsafe { out.cols_mut(row, 0..x.cols()) };
            for (x, y) in x.row(row).chunks_exact(size).zip(y.chunks_exact_mut(size)) {
                normalize::<S>(x, &self.weight, self.eps, y);
            }
            if let Some(rounded) = &rounded {
                // SAFETY: as above.
                unsafe { round_row::<S>(y, rounded, row) };
            }
        }
    }
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| match b.call.op {
        Op::HeadNorm { head_dim, eps } => {
            let (weight, rounded) = (b.vector(0, head_dim)?, b.call.rounded);
            b.kernel(HeadNorm { x: b.x(), out: b.out(), rounded, weight, eps })
        }
        _ => b.wrong_op(),
    };
    // Its items are whole rows, which every private type can be made of.
    vec![Declaration::new(isa, OpKind::HeadNorm, "f32", bind).offering(|row| row.rounding(|_, _| true))]
}
