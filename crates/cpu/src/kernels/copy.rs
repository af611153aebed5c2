//! `concat` and `gather_rows`: copies of rows. An item is an output row.
#![allow(unsafe_code)]

use mambo_kernel::{OpKind, Operand};

use super::declaration::{Binding, Declaration};
use super::{Cx, Scratch, Work};
use crate::isa::Isa;
use crate::simd::Simd;

pub(crate) struct Concat {
    pub a: Operand,
    pub b: Operand,
    pub out: Operand,
}

impl Work for Concat {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let (a, b, out) = (cx.view(&self.a), cx.view(&self.b), cx.view(&self.out));
        for row in cx.own(a.rows()) {
            // SAFETY: a row belongs to one item.
            let out = unsafe { out.cols_mut(row, 0..a.cols() + b.cols()) };
            let (left, right) = out.split_at_mut(a.cols());
            left.copy_from_slice(a.row(row));
            right.copy_from_slice(b.row(row));
        }
    }
}

pub(crate) struct GatherRows {
    pub x: Operand,
    pub wanted: Operand,
    pub out: Operand,
}

impl Work for GatherRows {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let (x, wanted, out) = (cx.view(&self.x), cx.view(&self.wanted), cx.view(&self.out));
        for row in cx.own(wanted.rows()) {
            let from = wanted.index_row(row)[0] as usize;
            // SAFETY: a row belongs to one item.
            unsafe { out.cols_mut(row, 0..x.cols()) }.copy_from_slice(x.row(from));
        }
    }
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let concat = |b: &Binding| b.kernel(Concat { a: b.x(), b: b.input(1), out: b.out() });
    let gather = |b: &Binding| b.kernel(GatherRows { x: b.x(), wanted: b.input(1), out: b.out() });
    vec![
        Declaration::new(isa, OpKind::Concat, "f32", concat),
        Declaration::new(isa, OpKind::GatherRows, "f32", gather),
    ]
}
