//! `embed`: rows of a table by token id, decoded from the stored type. An item is a row.
#![allow(unsafe_code)]

use std::sync::Arc;

use mambo_kernel::{OpKind, Operand};
use mambo_tensor::{DType, decode_row};

use super::declaration::{Binding, Declaration, WeightForm};
use super::{Cx, Scratch, Work};
use crate::isa::Isa;
use crate::memory::Buffer;
use crate::simd::Simd;

/// A table in its stored type.
pub(crate) struct Table {
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
    pub row_bytes: usize,
    /// Runs of rows with the same factor: the row after the run, and the factor.
    pub scales: Vec<(usize, f32)>,
    pub data: Buffer<u8>,
}

pub(crate) struct Embed {
    pub ids: Operand,
    pub out: Operand,
    pub table: Arc<Table>,
}

impl Work for Embed {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let (ids, out) = (cx.view(&self.ids), cx.view(&self.out));
        let table = &*self.table;
        for row in cx.own(ids.rows()) {
            let id = ids.index_row(row)[0] as usize;
            assert!(id < table.rows, "token id {id} is beyond the {} rows of the embedding", table.rows);
            let bytes = &table.data[id * table.row_bytes..][..table.row_bytes];
            // SAFETY: a row belongs to one item.
            let out = unsafe { out.cols_mut(row, 0..table.cols) };
            decode_row(table.dtype, bytes, out).expect("the table's rows were checked when it was loaded");
            let part = table.scales.partition_point(|&(end, _)| end <= id);
            let scale = table.scales[part].1;
            if scale != 1.0 {
                out.iter_mut().for_each(|v| *v *= scale);
            }
        }
    }
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| b.kernel(Embed { ids: b.x(), out: b.out(), table: b.table(0, b.out().cols)? });
    vec![Declaration::new(isa, OpKind::Embed, "f32", bind).holding(WeightForm::Table)]
}
