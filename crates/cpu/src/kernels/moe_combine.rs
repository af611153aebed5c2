//! `moe_combine`: `y[t] = Σ_j w[t,j]·x[t,j]`, j ascending, plus the residual if there is one. An item is
//! a block of columns of a token; 4 bytes per value of x.
#![allow(unsafe_code)]

use mambo_kernel::{Op, OpKind, Operand};

use super::declaration::{Binding, Declaration};
use super::{Cx, Scratch, Work};
use crate::isa::Isa;
use crate::simd::{LANES, Simd};

/// Columns of an item.
const BLOCK: usize = 1024;

pub(crate) struct MoeCombine {
    pub x: Operand,
    pub weights: Operand,
    pub residual: Option<Operand>,
    pub out: Operand,
    pub top_k: usize,
}

impl Work for MoeCombine {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let (x, weights, out) = (cx.view(&self.x), cx.view(&self.weights), cx.view(&self.out));
        let residual = self.residual.as_ref().map(|r| cx.view(r));
        let cols = out.cols();
        let blocks = cols.div_ceil(BLOCK);
        for item in cx.own(out.rows() * blocks) {
            let (row, first) = (item / blocks, item % blocks * BLOCK);
            let end = cols.min(first + BLOCK);
            let weights = &weights.row(row)[..self.top_k];
            for start in (first..end).step_by(LANES) {
                let range = start..end.min(start + LANES);
                let mut y = S::zero();
                for (j, &w) in weights.iter().enumerate() {
                    let x = &x.row(row * self.top_k + j)[range.clone()];
                    y = S::fma(S::splat(w), S::load_part(x), y);
                }
                if let Some(residual) = &residual {
                    y = S::add(y, S::load_part(&residual.row(row)[range.clone()]));
                }
                // SAFETY: a column of a row belongs to one item.
                S::store_part(y, unsafe { out.cols_mut(row, range) });
            }
        }
    }
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| match b.call.op {
        Op::MoeCombine { top_k, residual } => {
            let residual = residual.then(|| b.input(2));
            b.kernel(MoeCombine { x: b.x(), weights: b.input(1), residual, out: b.out(), top_k })
        }
        _ => b.wrong_op(),
    };
    vec![Declaration::new(isa, OpKind::MoeCombine, "f32", bind)]
}
