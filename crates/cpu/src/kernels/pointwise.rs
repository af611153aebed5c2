//! `add` and `relu2`: elementwise ops. An item is a row.
#![allow(unsafe_code)]

use mambo_kernel::{OpKind, Operand};

use super::declaration::{Binding, Declaration};
use super::{Cx, Scratch, Work};
use crate::isa::Isa;
use crate::simd::{Math, Simd, part, part_mut, vectors};

pub(crate) struct Add {
    pub a: Operand,
    pub b: Operand,
    pub out: Operand,
}

impl Work for Add {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let (a, b, out) = (cx.view(&self.a), cx.view(&self.b), cx.view(&self.out));
        for row in cx.own(a.rows()) {
            let (a, b) = (a.row(row), b.row(row));
            // SAFETY: a row belongs to one item.
            let out = unsafe { out.cols_mut(row, 0..a.len()) };
            for i in 0..vectors(a.len()) {
                let sum = S::add(S::load_part(part(a, i)), S::load_part(part(b, i)));
                S::store_part(sum, part_mut(out, i));
            }
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

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let add = |b: &Binding| b.kernel(Add { a: b.x(), b: b.input(1), out: b.out() });
    let relu2 = |b: &Binding| b.kernel(Relu2 { x: b.x(), out: b.out() });
    vec![Declaration::new(isa, OpKind::Add, "f32", add), Declaration::new(isa, OpKind::Relu2, "f32", relu2)]
}
