//! A step's arrays as one block of bytes: the [`StepTable`], then what it points to, with addresses as they will be on
//! the device.
#![allow(unsafe_code)]

use mambo_kernel::{Adjustment, ChooseRow, Segment, StepInputs, mask_words};

use crate::params::Ptr;
use crate::step_table::{AdjustmentEntry, ChooseEntry, NO_MASK, SegmentEntry, StepTable};

/// Every array starts on a multiple of so many bytes.
const ALIGN: usize = 16;

/// A block that is being put together; the memory is kept from step to step.
#[derive(Default)]
pub(crate) struct Block {
    bytes: Vec<u8>,
    /// Where masks go, and which they are.
    masks_at: usize,
    pub mask_numbers: Vec<u32>,
    mask_words: usize,
}

/// What the step's table holds beside the arrays of the step.
#[derive(Clone, Copy)]
pub(crate) struct Surroundings {
    /// Where the block will be on the device.
    pub block: Ptr<u8>,
    pub chosen_before: Ptr<u32>,
    pub chosen_here: Ptr<u32>,
    pub chosen_host: Ptr<u32>,
    /// Rows of the step before that become hidden rows: address, bytes from one to the next, words of each.
    pub previous: Option<PreviousRows>,
    /// Where those go.
    pub hidden: Ptr<f32>,
    /// Tokens that are chosen from; 0 where none are.
    pub vocabulary: usize,
}

/// An output of the step before.
#[derive(Clone, Copy)]
pub(crate) struct PreviousRows {
    pub first: Ptr<u8>,
    pub stride: usize,
    pub cols: usize,
}

impl Block {
    /// Writes a step, all but its masks.
    pub fn fill(&mut self, step: &StepInputs, previous_rows: &[u32], around: &Surroundings) {
        self.bytes.clear();
        self.bytes.resize(size_of::<StepTable>().next_multiple_of(ALIGN), 0);
        self.mask_words = mask_words(around.vocabulary);
        self.number_masks(step);
        let previous = around.previous.unwrap_or(PreviousRows { first: Ptr::NULL, stride: 0, cols: 0 });
        let base = around.block;
        let mut row_segment = Vec::with_capacity(step.token_ids.len());
        for (index, segment) in step.segments.iter().enumerate() {
            row_segment.extend(std::iter::repeat_n(index as u32, segment.rows as usize));
        }
        let segments: Vec<SegmentEntry> = step.segments.iter().map(segment_entry).collect();
        let choose: Vec<ChooseEntry> = step.choose.rows.iter().map(|row| self.choose_entry(row)).collect();
        let adjustments: Vec<AdjustmentEntry> =
            step.choose.adjustments.iter().map(adjustment_entry).collect();
        let table = StepTable {
            rows: step.token_ids.len() as u32,
            wanted_rows: step.wanted.len() as u32,
            segment_count: step.segments.len() as u32,
            mask_words: self.mask_words as u32,
            token_ids: self.push(base, step.token_ids),
            wanted: self.push(base, step.wanted),
            row_segment: self.push(base, &row_segment),
            segments: self.push(base, &segments),
            pages: self.push(base, step.pages),
            choose: self.push(base, &choose),
            adjustments: self.push(base, &adjustments),
            hidden_rows: self.push(base, previous_rows),
            hidden_from: previous.first,
            hidden_stride: previous.stride as u64,
            hidden_cols: previous.cols as u32,
            unused: 0,
            hidden: around.hidden,
            chosen_before: around.chosen_before,
            chosen_here: around.chosen_here,
            chosen_host: around.chosen_host,
            masks: base.plus_bytes(self.bytes.len()).cast(),
        };
        self.masks_at = self.bytes.len();
        let masks = self.mask_numbers.len() * self.mask_words * 4;
        self.bytes.resize(self.masks_at + masks, 0);
        self.bytes[..size_of::<StepTable>()].copy_from_slice(bytes_of(std::slice::from_ref(&table)));
    }

    fn number_masks(&mut self, step: &StepInputs) {
        self.mask_numbers.clear();
        self.mask_numbers.extend(step.choose.rows.iter().filter_map(|row| row.mask));
        self.mask_numbers.sort_unstable();
        self.mask_numbers.dedup();
    }

    fn choose_entry(&self, row: &ChooseRow) -> ChooseEntry {
        ChooseEntry {
            temperature: row.temperature,
            top_k: row.top_k,
            top_p: row.top_p,
            min_p: row.min_p,
            seed: row.seed,
            position: row.position,
            first_adjustment: row.adjustments.start,
            adjustments: row.adjustments.end - row.adjustments.start,
            mask: match row.mask {
                None => NO_MASK,
                Some(number) => self.mask_numbers.binary_search(&number).expect("it was numbered") as u32,
            },
        }
    }

    /// Appends an array; its address on the device.
    fn push<T: Plain>(&mut self, base: Ptr<u8>, values: &[T]) -> Ptr<T> {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes_of(values));
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
        base.plus_bytes(at).cast()
    }

    /// All bytes, with zeros for the masks.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where the masks are; they end the block.
    pub fn masks_at(&self) -> usize {
        self.masks_at
    }

    /// Makes the masks in the bytes that they take.
    pub fn fill_masks(&self, step: &StepInputs, into: &mut [u8]) {
        let mut mask = vec![0u32; self.mask_words];
        for (number, into) in
            self.mask_numbers.iter().zip(into.chunks_exact_mut((self.mask_words * 4).max(1)))
        {
            step.choose.masks.fill(*number, &mut mask);
            into.copy_from_slice(bytes_of(&mask));
        }
    }
}

/// Numbers, and structs of numbers that have no padding: their bytes are all initialised.
trait Plain: Copy {}

impl Plain for u32 {}
impl Plain for SegmentEntry {}
impl Plain for ChooseEntry {}
impl Plain for AdjustmentEntry {}
impl Plain for StepTable {}

fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `Plain` types have no padding, so every byte is initialised.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn segment_entry(segment: &Segment) -> SegmentEntry {
    SegmentEntry {
        slot: segment.slot,
        first_row: segment.first_row,
        rows: segment.rows,
        position: segment.position,
        first_page: segment.first_page,
    }
}

fn adjustment_entry(change: &Adjustment) -> AdjustmentEntry {
    AdjustmentEntry { token: change.token, bias: change.bias, factor: change.factor, penalty: change.penalty }
}

/// No struct that is copied byte by byte has padding.
const _: () = {
    assert!(size_of::<SegmentEntry>() == 5 * 4);
    assert!(size_of::<ChooseEntry>() == 4 * 4 + 8 + 4 * 4);
    assert!(size_of::<AdjustmentEntry>() == 4 * 4);
    assert!(size_of::<StepTable>() == 4 * 4 + 14 * 8 + 8 + 2 * 4);
};
