//! `ssm_dt`: `softplus(dt + bias)`, the identity above 20. An item is a row.
#![allow(unsafe_code)]

use std::sync::Arc;

use mambo_kernel::{OpKind, Operand};

use super::declaration::{Binding, Declaration};
use super::{Cx, Scratch, Work};
use crate::isa::Isa;
use crate::simd::{Math, Simd, part, part_mut, vectors};

pub(crate) struct SsmDt {
    pub dt: Operand,
    pub out: Operand,
    pub bias: Arc<Vec<f32>>,
}

/// Step sizes of one row, or of some of its heads.
#[inline(always)]
pub(super) fn step_sizes<S: Simd>(dt: &[f32], bias: &[f32], out: &mut [f32]) {
    for i in 0..vectors(dt.len()) {
        let sum = S::add(S::load_part(part(dt, i)), S::load_part(part(bias, i)));
        S::store_part(S::softplus(sum), part_mut(out, i));
    }
}

impl Work for SsmDt {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let (dt, out) = (cx.view(&self.dt), cx.view(&self.out));
        for row in cx.own(dt.rows()) {
            // SAFETY: a row belongs to one item.
            let out = unsafe { out.cols_mut(row, 0..dt.cols()) };
            step_sizes::<S>(dt.row(row), &self.bias, out);
        }
    }
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| b.kernel(SsmDt { dt: b.x(), out: b.out(), bias: b.vector(0, b.x().cols)? });
    vec![Declaration::new(isa, OpKind::SsmDt, "f32", bind)]
}
