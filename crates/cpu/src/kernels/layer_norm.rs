//! `layer_norm`: `y = (x − mean(x)) · w / sqrt(var(x) + eps) + b`, also quantised if the next call wants that. An item
//! is a row; 8 bytes per value.
#![allow(unsafe_code)]

use std::sync::Arc;

use mambo_kernel::{Op, OpKind, Operand};

use super::declaration::{Binding, Declaration};
use super::quantize::round_row;
use super::{Cx, Scratch, Work};
use crate::isa::Isa;
use crate::simd::{Math, Simd, part, part_mut, square_sum, vectors};

pub(crate) struct LayerNorm {
    pub x: Operand,
    pub out: Operand,
    /// Where the quantised output goes.
    pub rounded: Option<Operand>,
    pub weight: Arc<Vec<f32>>,
    pub bias: Arc<Vec<f32>>,
    pub eps: f32,
}

impl LayerNorm {
    /// The norm of one row, which passes through `out` with its mean taken away.
    #[inline(always)]
    fn normalize<S: Simd>(&self, x: &[f32], out: &mut [f32]) {
        let count = x.len() as f32;
        let mean = S::splat(S::total(x) / count);
        for i in 0..vectors(x.len()) {
            S::store_part(S::sub(S::load_part(part(x, i)), mean), part_mut(out, i));
        }
        let factor = S::splat(1.0 / (square_sum::<S>(out) / count + self.eps).sqrt());
        for i in 0..vectors(x.len()) {
            let (weight, bias) = (S::load_part(part(&self.weight, i)), S::load_part(part(&self.bias, i)));
            let y = S::fma(S::mul(S::load_part(part(out, i)), factor), weight, bias);
            S::store_part(y, part_mut(out, i));
        }
    }
}

impl Work for LayerNorm {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let (x, out) = (cx.view(&self.x), cx.view(&self.out));
        let rounded = self.rounded.map(|operand| cx.view(&operand));
        for row in cx.own(x.rows()) {
            // SAFETY: a row belongs to one item.
            let y = unsafe { out.cols_mut(row, 0..x.cols()) };
            self.normalize::<S>(x.row(row), y);
            if let Some(rounded) = &rounded {
                // SAFETY: as above.
                unsafe { round_row::<S>(y, rounded, row) };
            }
        }
    }
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| match b.call.op {
        Op::LayerNorm { eps } => {
            let (cols, rounded) = (b.x().cols, b.call.rounded);
            let (weight, bias) = (b.vector(0, cols)?, b.vector(1, cols)?);
            b.kernel(LayerNorm { x: b.x(), out: b.out(), rounded, weight, bias, eps })
        }
        _ => b.wrong_op(),
    };
    // Its items are whole rows, which every private type can be made of.
    vec![Declaration::new(isa, OpKind::LayerNorm, "f32", bind).offering(|row| row.rounding(|_, _| true))]
}
