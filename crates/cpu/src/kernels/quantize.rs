//! `quantize`: f32 rows to 8-bit rows, for every 32 values `scale = amax/127` and `code = round(x·127/amax)`, or to two
//! bf16 per value.
//!
//! An item is some blocks of a row. Bytes: 4 in and 1.5 or 4 out per value. Matmuls, and ops whose items are rows or
//! groups of columns, call the same functions on what they have just written.
#![allow(unsafe_code)]

use mambo_kernel::{Elem, Op, OpKind, Operand, Site};

use super::declaration::{Bind, Binding, Declaration};
use super::{Cx, Scratch, Work};
use crate::activation::{self, ANCHOR, BLOCK, PAIR_LEAST, Q8Block, q8_scale};
use crate::isa::Isa;
use crate::shared::{Form, View};
use crate::simd::{LANES, Simd};
use crate::stored::store_bf16;

/// Columns of an item: enough blocks to be worthwhile.
const COLUMNS: usize = 64 * BLOCK;

pub(crate) struct Quantize {
    pub x: Operand,
    pub out: Operand,
}

#[inline(always)]
fn abs<S: Simd>(v: S::F) -> S::F {
    S::from_bits(S::iand(S::bits(v), S::isplat(0x7fff_ffff)))
}

/// Magnitudes, of which NaN counts as infinite instead of getting lost in a maximum: it compares false. A function and
/// not a closure, which would not be inlined into code of another instruction set.
#[inline(always)]
fn size<S: Simd>(v: S::F) -> S::F {
    let infinity = S::splat(f32::INFINITY);
    S::select_gt(infinity, abs::<S>(v), abs::<S>(v), infinity)
}

/// Quantises one block, zero beyond the end of the values.
#[inline(always)]
fn quantize_block<S: Simd>(x: &[f32], out: &mut Q8Block) {
    let (low, high) = x.split_at(x.len().min(LANES));
    let v = [S::load_part(low), S::load_part(high)];
    let (scale, inverse) = q8_scale(S::max_lane(S::max(size::<S>(v[0]), size::<S>(v[1]))));
    let inverse = S::splat(inverse);
    let bytes: &mut [u8; BLOCK] = bytemuck::cast_mut(&mut out.codes);
    let (halves, _) = bytes.as_chunks_mut::<LANES>();
    let mut sums = [0; 2];
    for i in 0..2 {
        // The bound is the second argument: what is NaN becomes the bound, and the scale says that it is none.
        let code = S::max(S::mul(v[i], inverse), S::splat(-127.0));
        let code = S::to_int(S::min(code, S::splat(127.0)));
        S::store_i8(code, &mut halves[i]);
        sums[i] = S::sum_int(code);
    }
    out.scale = scale;
    let offset = -128 * (sums[0] + sums[1]);
    out.offset = offset as f32;
    out.half_offset = -128 * sums[0];
    out.start = ANCHOR.to_bits() as i32 + offset;
}

/// Quantises columns of a row to 8-bit blocks; the first column starts a block.
///
/// # Safety
/// No other thread touches these blocks concurrently.
#[inline(always)]
pub(super) unsafe fn round_blocks<S: Simd>(values: &[f32], out: &View, row: usize, first: usize) {
    // SAFETY: guaranteed by the caller.
    let blocks = unsafe { out.q8_blocks_mut(row, first / BLOCK, values.len().div_ceil(BLOCK)) };
    for (values, out) in values.chunks(BLOCK).zip(blocks) {
        quantize_block::<S>(values, out);
    }
}

/// Splits a row into two bf16 per value.
///
/// # Safety
/// No other thread touches the row concurrently.
#[inline(always)]
unsafe fn split_row<S: Simd>(values: &[f32], out: &View, row: usize) {
    // SAFETY: guaranteed by the caller.
    let [upper, lower] = unsafe { out.parts_row_mut(row) };
    let mut values = values.chunks(LANES);
    for (upper, lower) in upper.chunks_mut(LANES / 2).zip(lower.chunks_mut(LANES / 2)) {
        // Zero beyond the last value.
        let value = S::load_part(values.next().unwrap_or_default());
        let first = store_pairs::<S>(value, upper);
        store_pairs::<S>(S::sub(value, first), lower);
    }
}

/// Converts a row to the operand's element type.
///
/// # Safety
/// No other thread touches the row concurrently.
#[inline(always)]
pub(super) unsafe fn round_row<S: Simd>(values: &[f32], out: &View, row: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match out.form() {
            Form::Bf16x2 => split_row::<S>(values, out, row),
            _ => round_blocks::<S>(values, out, row, 0),
        }
    }
}

impl Work for Quantize {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let (x, out) = (cx.view(&self.x), cx.view(&self.out));
        let items = x.cols().div_ceil(COLUMNS);
        for item in cx.own(x.rows() * items) {
            let (row, first) = (item / items, item % items * COLUMNS);
            let cols = first..x.cols().min(first + COLUMNS);
            // SAFETY: these blocks of the row belong to one item.
            unsafe { round_blocks::<S>(&x.row(row)[cols], &out, row, first) };
        }
    }
}

/// f32 rows to two bf16 per value. An item is a row.
pub(crate) struct SplitInTwo {
    pub x: Operand,
    pub out: Operand,
}

impl Work for SplitInTwo {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let (x, out) = (cx.view(&self.x), cx.view(&self.out));
        for row in cx.own(x.rows()) {
            // SAFETY: a row belongs to one item.
            unsafe { split_row::<S>(x.row(row), &out, row) };
        }
    }
}

/// Stores values rounded to bf16 and returns the rounded values.
#[inline(always)]
fn store_pairs<S: Simd>(values: S::F, out: &mut [i32]) -> S::F {
    let mut rounded = [0; 2 * LANES];
    // NaN stays NaN: it compares false.
    let values = S::select_gt(S::splat(PAIR_LEAST), abs::<S>(values), S::zero(), values);
    store_bf16::<S>(values, &mut rounded);
    out.copy_from_slice(&bytemuck::cast::<_, [i32; LANES / 2]>(rounded));
    S::load_bf16(&rounded)
}

/// Whether groups of columns can be rounded apart: they are whole blocks.
pub(super) fn can_round_groups(cols: usize, groups: usize, to: Elem) -> bool {
    to == activation::Q8 && (cols / groups.max(1)).is_multiple_of(BLOCK)
}

/// One row for each private type that products of this instruction set read.
pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let blocks = |b: &Binding| b.kernel(Quantize { x: b.x(), out: b.out() });
    let pairs = |b: &Binding| b.kernel(SplitInTwo { x: b.x(), out: b.out() });
    let row = |to: Elem, bind: Bind| {
        let accepts = move |site: &Site| *site.op == Op::Quantize(to);
        Declaration::new(isa, OpKind::Quantize, to.name(), bind).offering(|row| row.accepting(accepts))
    };
    let mut rows = vec![row(activation::Q8, blocks)];
    if isa == Isa::Amx {
        rows.push(row(activation::BF16X2, pairs));
    }
    rows
}
