//! Memory that all threads of the team read and write concurrently: typed, bounds-checked views, of which every thread
//! touches only the parts of its own work items.
//!
//! Reading a view is safe, since a call's inputs are never written while it runs. Writing is `unsafe`: the caller
//! states why no other thread touches that part at the time.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

use mambo_kernel::{Elem, Operand};

use crate::activation::{self, BLOCK, PAIR_COLS, Q8Block};

use crate::memory::{Buffer, Plain};
use crate::simd::Simd;

/// Bytes that come into cache together.
const LINE_BYTES: usize = 64;

/// A buffer shared by threads; it stays mutably borrowed meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct SharedSlice<'a, T: Plain> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: this is an address and a length; each method states what may be done with it.
unsafe impl<T: Plain> Sync for SharedSlice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Send for SharedSlice<'_, T> {}

impl<'a, T: Plain> SharedSlice<'a, T> {
    /// Shares a buffer for as long as it stays borrowed.
    pub fn new(buffer: &'a mut Buffer<T>) -> Self {
        SharedSlice { start: buffer.as_ptr().as_ptr(), len: buffer.len(), borrow: PhantomData }
    }

    /// A range to read.
    ///
    /// # Safety
    /// No other thread writes it while the result is borrowed.
    pub unsafe fn read(&self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.len, "read outside shared memory");
        // SAFETY: in bounds; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// A range to write.
    ///
    /// # Safety
    /// No other thread, and no other borrow in this one, touches it while the result is borrowed.
    pub unsafe fn write(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "write outside shared memory");
        // SAFETY: in bounds; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// Has a range brought into cache. It is a hint: nothing is read or written.
    #[inline(always)]
    pub fn prefetch<S: Simd>(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len, "prefetch outside shared memory");
        // SAFETY: in bounds, and a slice without elements borrows nothing.
        let start = unsafe { std::slice::from_raw_parts(self.start.add(range.start).cast::<u8>(), 0) };
        for line in (0..range.len() * size_of::<T>()).step_by(LINE_BYTES) {
            S::prefetch(start, line);
        }
    }
}

/// What the elements of a view are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    F32,
    I32,
    Q8,
    Bf16x2,
}

impl Form {
    fn of(elem: Elem) -> Form {
        match elem {
            Elem::F32 => Form::F32,
            Elem::I32 => Form::I32,
            elem if elem == activation::Q8 => Form::Q8,
            elem if elem == activation::BF16X2 => Form::Bf16x2,
            Elem::Private(other) => unreachable!("{other:?} is another backend's type"),
        }
    }
}

/// An operand of the running call: rows at a stride.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    start: *mut u8,
    rows: usize,
    cols: usize,
    stride_bytes: usize,
    form: Form,
    borrow: PhantomData<&'a [u8]>,
}

// SAFETY: as for `SharedSlice`.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// Rows inside shared memory, as the operand describes them.
    pub fn arena(arena: &SharedSlice<'a, u8>, offset: usize, operand: &Operand, rows: usize) -> Self {
        View::of(arena.start, arena.len, offset, operand, rows)
    }

    /// Rows inside an array of the caller; read only.
    pub fn given(values: &'a [f32], offset: usize, operand: &Operand, rows: usize) -> Self {
        View::of(values.as_ptr().cast_mut().cast(), values.len() * 4, offset, operand, rows)
    }

    fn of(start: *mut u8, len: usize, offset: usize, operand: &Operand, rows: usize) -> Self {
        let (elem, cols, stride_bytes) = (operand.elem, operand.cols, operand.stride_bytes);
        let row_bytes = elem.packed_bytes(cols);
        let end = if rows == 0 { offset } else { offset + (rows - 1) * stride_bytes + row_bytes };
        assert!(end <= len, "operand at {offset} ends at {end}, beyond the {len} bytes there are");
        assert!(offset.is_multiple_of(4) && stride_bytes.is_multiple_of(4), "operand is not aligned");
        // SAFETY: the offset was just checked.
        let start = unsafe { start.add(offset) };
        View { start, rows, cols, stride_bytes, form: Form::of(elem), borrow: PhantomData }
    }

    /// A column of indices of the caller; read only.
    pub fn indices(values: &'a [u32]) -> Self {
        let start = values.as_ptr().cast_mut().cast();
        View { start, rows: values.len(), cols: 1, stride_bytes: 4, form: Form::I32, borrow: PhantomData }
    }

    /// Rows in the current step.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes from one row to the next.
    pub fn stride_bytes(&self) -> usize {
        self.stride_bytes
    }

    /// What its elements are.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Elements per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    fn row_start(&self, row: usize, form: Form) -> *mut u8 {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert!(self.form == form, "a row of {:?} read as {form:?}", self.form);
        // SAFETY: the whole view was checked when it was made.
        unsafe { self.start.add(row * self.stride_bytes) }
    }

    /// A row of floats.
    #[inline(always)]
    pub fn row(&self, row: usize) -> &'a [f32] {
        // SAFETY: in bounds and aligned; inputs are not written while a call runs.
        unsafe { std::slice::from_raw_parts(self.row_start(row, Form::F32).cast(), self.cols) }
    }

    /// A row of indices.
    #[inline(always)]
    pub fn index_row(&self, row: usize) -> &'a [u32] {
        // SAFETY: as above; every bit pattern is an index.
        unsafe { std::slice::from_raw_parts(self.row_start(row, Form::I32).cast(), self.cols) }
    }

    /// A row of 8-bit blocks.
    #[inline(always)]
    pub fn q8_row(&self, row: usize) -> &'a [Q8Block] {
        let blocks = self.cols.div_ceil(BLOCK);
        // SAFETY: as above; rows start on a multiple of four bytes.
        unsafe { std::slice::from_raw_parts(self.row_start(row, Form::Q8).cast(), blocks) }
    }

    /// Column pairs in each half of a row that is split into two parts.
    fn pairs(&self) -> usize {
        self.cols.next_multiple_of(PAIR_COLS) / 2
    }

    /// The upper and the lower parts of a row, in pairs of columns.
    #[inline(always)]
    pub fn parts_row(&self, row: usize) -> [&'a [i32]; 2] {
        let pairs = self.pairs();
        // SAFETY: as above; rows start on a multiple of four bytes.
        let words =
            unsafe { std::slice::from_raw_parts(self.row_start(row, Form::Bf16x2).cast(), 2 * pairs) };
        let (upper, lower) = words.split_at(pairs);
        [upper, lower]
    }

    /// One value of a row of floats, plain or split.
    #[inline(always)]
    pub fn value(&self, row: usize, col: usize) -> f32 {
        if self.form == Form::F32 {
            return self.row(row)[col];
        }
        let [upper, lower] = self.parts_row(row).map(|part| {
            let pair = part[col / 2].cast_unsigned();
            f32::from_bits(if col.is_multiple_of(2) { pair << 16 } else { pair & 0xffff_0000 })
        });
        upper + lower
    }

    /// Columns of a row of floats, to write.
    ///
    /// # Safety
    /// No other thread, and no other borrow in this one, touches them while the result is borrowed.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn cols_mut(&self, row: usize, cols: Range<usize>) -> &'a mut [f32] {
        assert!(cols.start <= cols.end && cols.end <= self.cols, "columns outside the operand");
        // SAFETY: in bounds; the caller guarantees the rest.
        unsafe {
            let start = self.row_start(row, Form::F32).cast::<f32>().add(cols.start);
            std::slice::from_raw_parts_mut(start, cols.len())
        }
    }

    /// A row of indices, to write.
    ///
    /// # Safety
    /// As for [`View::cols_mut`].
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn index_row_mut(&self, row: usize) -> &'a mut [u32] {
        // SAFETY: in bounds; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts_mut(self.row_start(row, Form::I32).cast(), self.cols) }
    }

    /// The upper and the lower parts of a row, to write.
    ///
    /// # Safety
    /// As for [`View::cols_mut`].
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn parts_row_mut(&self, row: usize) -> [&'a mut [i32]; 2] {
        let pairs = self.pairs();
        // SAFETY: in bounds; the caller guarantees the rest.
        let words = unsafe {
            std::slice::from_raw_parts_mut(self.row_start(row, Form::Bf16x2).cast::<i32>(), 2 * pairs)
        };
        let (upper, lower) = words.split_at_mut(pairs);
        [upper, lower]
    }

    /// Up to `count` 8-bit blocks of a row from `first` on, to write.
    ///
    /// # Safety
    /// As for [`View::cols_mut`].
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn q8_blocks_mut(&self, row: usize, first: usize, count: usize) -> &'a mut [Q8Block] {
        let blocks = self.cols.div_ceil(BLOCK);
        assert!(first <= blocks, "blocks outside the operand");
        // SAFETY: in bounds; the caller guarantees the rest.
        unsafe {
            let start = self.row_start(row, Form::Q8).cast::<Q8Block>().add(first);
            std::slice::from_raw_parts_mut(start, count.min(blocks - first))
        }
    }
}
