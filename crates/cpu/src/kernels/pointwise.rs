//! `add`, `relu2`, `bias`, `moe_bias` and `soft_cap`: elementwise ops. An item is a row.
#![allow(unsafe_code)]

use std::sync::Arc;

use mambo_kernel::{Op, OpKind, Operand};

use super::declaration::{Binding, Declaration};
use super::{Cx, Scratch, Work};
use crate::isa::Isa;
use crate::simd::{Math, Simd, part, part_mut, vectors};

pub(crate) struct Add {
    pub a: Operand,
    pub b: Operand,
    pub out: Operand,
}

#[inline(always)]
fn add_rows<S: Simd>(a: &[f32], b: &[f32], out: &mut [f32]) {
    for i in 0..vectors(a.len()) {
        let sum = S::add(S::load_part(part(a, i)), S::load_part(part(b, i)));
        S::store_part(sum, part_mut(out, i));
    }
}

impl Work for Add {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let (a, b, out) = (cx.view(&self.a), cx.view(&self.b), cx.view(&self.out));
        for row in cx.own(a.rows()) {
            // SAFETY: a row belongs to one item.
            add_rows::<S>(a.row(row), b.row(row), unsafe { out.cols_mut(row, 0..a.cols()) });
        }
    }
}

pub(crate) struct Relu2 {
    pub x: Operand,
    pub out: Operand,
}

impl Work for Relu2 {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let (x, out) = (cx.view(&self.x), cx.view(&self.out));
        for row in cx.own(x.rows()) {
            let x = x.row(row);
            // SAFETY: a row belongs to one item.
            let out = unsafe { out.cols_mut(row, 0..x.len()) };
            for i in 0..vectors(x.len()) {
                S::store_part(S::relu2(S::load_part(part(x, i))), part_mut(out, i));
            }
        }
    }
}

pub(crate) struct Bias {
    pub x: Operand,
    pub out: Operand,
    /// `[experts][columns]`, or a vector for all rows.
    pub bias: Arc<Vec<f32>>,
    /// Expert ids, where a row has its expert's vector.
    pub ids: Option<Operand>,
}

impl Work for Bias {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let (x, out) = (cx.view(&self.x), cx.view(&self.out));
        let ids = self.ids.map(|ids| cx.view(&ids));
        let cols = x.cols();
        for row in cx.own(x.rows()) {
            let expert = ids.as_ref().map_or(0, |ids| {
                let per_token = ids.cols();
                ids.index_row(row / per_token)[row % per_token] as usize
            });
            let bias = &self.bias[expert * cols..(expert + 1) * cols];
            // SAFETY: a row belongs to one item.
            add_rows::<S>(x.row(row), bias, unsafe { out.cols_mut(row, 0..cols) });
        }
    }
}

pub(crate) struct SoftCap {
    pub x: Operand,
    pub out: Operand,
    pub cap: f32,
}

impl Work for SoftCap {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let (x, out) = (cx.view(&self.x), cx.view(&self.out));
        for row in cx.own(x.rows()) {
            let x = x.row(row);
            // SAFETY: a row belongs to one item.
            let out = unsafe { out.cols_mut(row, 0..x.len()) };
            for i in 0..vectors(x.len()) {
                S::store_part(S::soft_cap(S::load_part(part(x, i)), self.cap), part_mut(out, i));
            }
        }
    }
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let add = |b: &Binding| b.kernel(Add { a: b.x(), b: b.input(1), out: b.out() });
    let relu2 = |b: &Binding| b.kernel(Relu2 { x: b.x(), out: b.out() });
    let bias = |b: &Binding| {
        let bias = b.vector(0, b.x().cols)?;
        b.kernel(Bias { x: b.x(), out: b.out(), bias, ids: None })
    };
    let moe_bias = |b: &Binding| match b.call.op {
        Op::MoeBias { experts, .. } => {
            let (bias, ids) = (b.vector(0, experts * b.x().cols)?, Some(b.input(1)));
            b.kernel(Bias { x: b.x(), out: b.out(), bias, ids })
        }
        _ => b.wrong_op(),
    };
    let soft_cap = |b: &Binding| match b.call.op {
        Op::SoftCap { cap } => b.kernel(SoftCap { x: b.x(), out: b.out(), cap }),
        _ => b.wrong_op(),
    };
    vec![
        Declaration::new(isa, OpKind::Add, "f32", add),
        Declaration::new(isa, OpKind::Relu2, "f32", relu2),
        Declaration::new(isa, OpKind::Bias, "f32", bias),
        Declaration::new(isa, OpKind::MoeBias, "f32", moe_bias),
        Declaration::new(isa, OpKind::SoftCap, "f32", soft_cap),
    ]
}
