//! The inputs of one step: plain arrays over a ragged batch.

/// Consecutive rows of a step that belong to one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Recurrent slot of the sequence.
    pub slot: u32,
    /// First row of the segment in the step.
    pub first_row: u32,
    /// Rows of the segment; at least one.
    pub rows: u32,
    /// Position in the sequence of the first row.
    pub position: u32,
    /// Where the sequence's page list starts in [`StepInputs::pages`].
    pub first_page: u32,
}

impl Segment {
    /// The segment's rows in the step.
    pub fn row_range(&self) -> std::ops::Range<usize> {
        self.first_row as usize..(self.first_row + self.rows) as usize
    }
}

/// Everything that changes from step to step.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepInputs<'a> {
    /// One token per row.
    pub token_ids: &'a [u32],
    /// The rows by sequence, in row order, covering every row once; no slot appears twice.
    pub segments: &'a [Segment],
    /// KV page numbers of every segment, one list after the other: page `p` of a sequence holds its
    /// positions `p·page_tokens ..`. A list covers the segment's last position.
    pub pages: &'a [u32],
    /// Rows whose logits are wanted, ascending.
    pub wanted: &'a [u32],
    /// Hidden rows fed in from an earlier step, for programs that read them (the MTP head).
    pub hidden: &'a [f32],
}
