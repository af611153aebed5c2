//! The arrays of one step, filled from sequences; kept between steps so that nothing is allocated.

use mambo_kernel::{Segment, StepInputs};

use crate::sequence::Sequence;

/// Buffers behind [`StepInputs`].
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub token_ids: Vec<u32>,
    pub segments: Vec<Segment>,
    pub pages: Vec<u32>,
    pub wanted: Vec<u32>,
}

impl Batch {
    /// Empties the buffers.
    pub fn clear(&mut self) {
        self.token_ids.clear();
        self.segments.clear();
        self.pages.clear();
        self.wanted.clear();
    }

    /// Adds the next `count` tokens of a sequence; its last row is wanted if nothing is pending after.
    pub fn push(&mut self, sequence: &Sequence, count: usize) {
        let position = sequence.slot.position();
        let tokens = (position..position + count).map(|p| sequence.token(p));
        let first_row = self.token_ids.len() as u32;
        self.token_ids.extend(tokens);
        self.segments.push(Segment {
            slot: sequence.slot.index(),
            first_row,
            rows: count as u32,
            position: position as u32,
            first_page: self.pages.len() as u32,
        });
        self.pages.extend_from_slice(sequence.pages.pages());
        if count == sequence.pending() {
            self.wanted.push(first_row + count as u32 - 1);
        }
    }

    /// Whether every segment is one token.
    pub fn is_decode(&self) -> bool {
        self.segments.len() == self.token_ids.len()
    }

    /// The step.
    pub fn inputs(&self) -> StepInputs<'_> {
        StepInputs {
            token_ids: &self.token_ids,
            segments: &self.segments,
            pages: &self.pages,
            wanted: &self.wanted,
            hidden: &[],
        }
    }
}
