//! The arrays of one step, filled from sequences; kept between steps so that nothing is allocated.

use mambo_kernel::{
    Adjustment, CHOSEN, ChooseInputs, ChooseRow, Fetch, HiddenRows, MaskSource, Masks, Segment, StepInputs,
    Ticket,
};

use crate::cache::{SequencePages, pages_for};
use crate::sequence::{Sequence, TokenMask};

/// Buffers behind [`StepInputs`].
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub token_ids: Vec<u32>,
    pub segments: Vec<Segment>,
    pages: PageArrays,
    pub wanted: Vec<u32>,
    pub chosen_by: Option<Ticket>,
    choose_rows: Vec<ChooseRow>,
    adjustments: Vec<Adjustment>,
    /// Sequences whose rows have masks, by their place among the running ones.
    masked: Vec<usize>,
    pub fetch: Vec<Fetch>,
}

impl Batch {
    /// Empties the buffers; `chosen_by` is the step that unseen tokens come from.
    pub fn clear(&mut self, chosen_by: Option<Ticket>) {
        self.token_ids.clear();
        self.segments.clear();
        self.pages.clear();
        self.wanted.clear();
        self.choose_rows.clear();
        self.adjustments.clear();
        self.masked.clear();
        self.fetch.clear();
        self.chosen_by = chosen_by;
    }

    /// Adds the next `count` tokens of a sequence; one that has not been seen is what wanted row `unseen` of the step
    /// before chose.
    pub fn push(&mut self, sequence: &Sequence, count: usize, unseen: Option<u32>) {
        let position = sequence.slot.position();
        let first_row = self.token_ids.len() as u32;
        self.token_ids.extend((position..position + count).map(|p| match sequence.token(p) {
            Some(token) => token,
            None => CHOSEN | unseen.expect("an unseen token comes from the step before"),
        }));
        self.segments.push(Segment {
            slot: sequence.slot.index(),
            first_row,
            rows: count as u32,
            position: position as u32,
            first_page: self.pages.push(&sequence.pages, position + count),
        });
    }

    /// Ends filling the page arrays, after the last sequence.
    pub fn join_pages(&mut self) {
        self.pages.join();
    }

    /// Wants the token after the sequence that was pushed last, which is `index` of those that run. Returns its index
    /// among the wanted rows.
    pub fn want(&mut self, sequence: &Sequence, index: usize) -> u32 {
        let segment = self.segments.last().expect("a sequence was pushed");
        self.wanted.push(segment.first_row + segment.rows - 1);
        let sampling = &sequence.request.sampling;
        let mut row = sampling.choose_row((segment.position + segment.rows) as usize);
        let first = self.adjustments.len() as u32;
        sampling.adjust(&sequence.history, &mut self.adjustments);
        row.adjustments = first..self.adjustments.len() as u32;
        if sequence.request.mask.is_some() {
            row.mask = Some(self.masked.len() as u32);
            self.masked.push(index);
        }
        self.choose_rows.push(row);
        self.wanted.len() as u32 - 1
    }

    /// Whether every segment is one token.
    pub fn is_decode(&self) -> bool {
        self.segments.len() == self.token_ids.len()
    }

    /// The masks of the step's rows, which the running sequences make when the backend asks for them.
    pub fn row_masks<'a>(&self, running: &'a [Sequence]) -> RowMasks<'a> {
        let mask = |index: &usize| {
            let Sequence { request, generated, .. } = &running[*index];
            (request.mask.as_deref().expect("it was looked at"), &generated[..])
        };
        RowMasks(self.masked.iter().map(mask).collect())
    }

    /// The step.
    pub fn inputs<'a>(&'a self, masks: &'a RowMasks<'a>) -> StepInputs<'a> {
        StepInputs {
            token_ids: &self.token_ids,
            segments: &self.segments,
            pages: self.pages.joined(),
            wanted: &self.wanted,
            chosen_by: self.chosen_by,
            hidden: HiddenRows::None,
            choose: ChooseInputs {
                rows: &self.choose_rows,
                adjustments: &self.adjustments,
                masks: Masks::of(masks),
            },
            fetch: &self.fetch,
        }
    }
}

/// The page lists of a step: an array for every group, and all of them one after the other.
#[derive(Debug, Default)]
pub(crate) struct PageArrays {
    groups: Vec<Vec<u32>>,
    joined: Vec<u32>,
}

impl PageArrays {
    /// Empties the arrays.
    pub fn clear(&mut self) {
        self.groups.iter_mut().for_each(Vec::clear);
    }

    /// Adds a sequence's lists, which cover its first `tokens`. Returns where they start in the arrays.
    pub fn push(&mut self, pages: &SequencePages, tokens: usize) -> u32 {
        self.groups.resize_with(pages.lists.len(), Vec::new);
        let first = self.groups.first().map_or(0, Vec::len);
        for (group, list) in self.groups.iter_mut().zip(&pages.lists) {
            group.extend_from_slice(&list.numbers()[..pages_for(tokens)]);
        }
        first as u32
    }

    /// Puts the arrays one after the other.
    pub fn join(&mut self) {
        self.joined.clear();
        self.groups.iter().for_each(|group| self.joined.extend_from_slice(group));
    }

    /// What a step takes, once the arrays have been joined.
    pub fn joined(&self) -> &[u32] {
        &self.joined
    }
}

/// For each mask of a step who makes it, and what has been generated so far.
pub(crate) struct RowMasks<'a>(Vec<(&'a dyn TokenMask, &'a [u32])>);

impl MaskSource for RowMasks<'_> {
    fn fill(&self, number: u32, mask: &mut [u32]) {
        let (source, generated) = self.0[number as usize];
        source.allow(generated, mask);
    }
}
