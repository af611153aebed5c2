//! Logits of every position of a given text, with the MTP head's beside them: for `logits` and quality
//! measurements. Nothing is sampled.

use std::ops::Range;

use mambo_kernel::{Segment, StepInputs};

use crate::cache::{PageList, Slot};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::load::SCORE_TOKENS;

/// Rows of logits as they come, in order.
pub struct ScoredRows<'a> {
    /// Position of the first row.
    pub first: usize,
    /// `[rows][vocab]` of the trunk: row t predicts token t+1.
    pub logits: &'a [f32],
    /// `[rows][vocab]` of the MTP head: row t predicts token t+2; the last position has none. Empty
    /// without a head.
    pub mtp_logits: &'a [f32],
    /// Reads rows of any output of the trunk's graph; the text's come after those of its companions. Without
    /// a head only, whose run takes the memory they were in.
    pub output: &'a mut ReadOutput<'a>,
}

/// Adds rows of an output, by its number, to a list.
pub type ReadOutput<'a> = dyn FnMut(usize, Range<usize>, &mut Vec<f32>) + 'a;

/// How a text is fed.
#[derive(Clone, Copy, Debug)]
pub struct ScoreOptions {
    /// Tokens per step, at most [`SCORE_TOKENS`].
    pub chunk: usize,
    /// Other sequences of made-up tokens that share every step. They change nothing, which is what they
    /// are there to show.
    pub companions: usize,
}

/// One sequence of a scoring step.
struct Member {
    tokens: Vec<u32>,
    slot: Slot,
    pages: PageList,
}

impl Engine {
    /// Feeds `tokens` in chunks and hands out the logits of every position.
    pub fn score(
        &mut self,
        tokens: &[u32],
        options: ScoreOptions,
        rows: &mut dyn FnMut(ScoredRows),
    ) -> Result<(), EngineError> {
        self.check_tokens(tokens)?;
        if options.companions >= SCORE_TOKENS {
            let (companions, room) = (options.companions, SCORE_TOKENS);
            return Err(EngineError::TooManyCompanions { companions, room });
        }
        let mut members = Vec::new();
        let result = self
            .gather(tokens, options.companions, &mut members)
            .and_then(|()| self.score_members(&mut members, options.chunk, rows));
        for member in members {
            self.slots.give_back(member.slot);
            self.pages.give_back(member.pages);
        }
        result
    }

    /// Slots and pages for the text, which comes first, and its companions.
    fn gather(
        &mut self,
        tokens: &[u32],
        companions: usize,
        members: &mut Vec<Member>,
    ) -> Result<(), EngineError> {
        for n in 0..=companions {
            let made_up =
                || (0..tokens.len()).map(|i| ((i * 31 + n * 17 + i * i % 7) % self.vocab) as u32).collect();
            let tokens = if n == 0 { tokens.to_vec() } else { made_up() };
            let (free_slots, free_pages) = (self.slots.free(), self.pages.free());
            let (Some(slot), Some(pages)) = (self.slots.take(), self.pages.take(tokens.len())) else {
                return Err(EngineError::Busy { free_slots, free_pages });
            };
            members.push(Member { tokens, slot, pages });
        }
        Ok(())
    }

    fn score_members(
        &mut self,
        members: &mut [Member],
        chunk: usize,
        rows: &mut dyn FnMut(ScoredRows),
    ) -> Result<(), EngineError> {
        let length = members[0].tokens.len();
        while members[0].slot.position() < length {
            let mut room = SCORE_TOKENS;
            let mut counts = Vec::with_capacity(members.len());
            for (n, member) in members.iter().enumerate() {
                // Companions walk at paces of their own; every one leaves a row for those after it.
                let pace = if n == 0 { chunk.max(1) } else { 1 + n % 3 };
                let left = member.tokens.len() - member.slot.position();
                let count = pace.min(left).min(room.saturating_sub(members.len() - 1 - n));
                counts.push(count);
                room -= count;
            }
            self.score_step(members, &counts, rows)?;
            for (member, count) in members.iter_mut().zip(counts) {
                member.slot.advance(count);
            }
        }
        Ok(())
    }

    /// One step of the trunk over all members, then one of the MTP head over the text alone.
    fn score_step(
        &mut self,
        members: &[Member],
        counts: &[usize],
        rows: &mut dyn FnMut(ScoredRows),
    ) -> Result<(), EngineError> {
        let (mut ids, mut segments, mut pages) = (Vec::new(), Vec::new(), Vec::new());
        // The text stands last, so that its rows are not the first of the step.
        for (member, &count) in members.iter().zip(counts).rev().filter(|(_, count)| **count > 0) {
            let position = member.slot.position();
            segments.push(Segment {
                slot: member.slot.index(),
                first_row: ids.len() as u32,
                rows: count as u32,
                position: position as u32,
                first_page: pages.len() as u32,
            });
            ids.extend_from_slice(&member.tokens[position..position + count]);
            pages.extend_from_slice(member.pages.pages());
        }
        let (text, count, first) = (&members[0], counts[0], members[0].slot.position());
        let wanted: Vec<u32> = ((ids.len() - count) as u32..ids.len() as u32).collect();
        let step =
            StepInputs { token_ids: &ids, segments: &segments, pages: &pages, wanted: &wanted, hidden: &[] };
        let program = self.programs.score;
        self.backend.run(program, &step)?;
        let mut logits = Vec::with_capacity(count * self.vocab);
        self.backend.read_output(program, 0, 0..count, &mut logits);

        let mut mtp_logits = Vec::new();
        // The last position of the text has no next token to feed the head with.
        let drafted = count.min(text.tokens.len() - 1 - first);
        if let Some(mtp) = self.programs.mtp.filter(|_| drafted > 0) {
            let mut hidden = Vec::new();
            let start = ids.len() - count;
            self.backend.read_output(program, 1, start..start + drafted, &mut hidden);
            let segments = [Segment {
                slot: text.slot.index(),
                first_row: 0,
                rows: drafted as u32,
                position: first as u32,
                first_page: 0,
            }];
            let wanted: Vec<u32> = (0..drafted as u32).collect();
            let next = &text.tokens[first + 1..first + 1 + drafted];
            let pages = text.pages.pages();
            let step =
                StepInputs { token_ids: next, segments: &segments, pages, wanted: &wanted, hidden: &hidden };
            self.backend.run(mtp, &step)?;
            self.backend.read_output(mtp, 0, 0..drafted, &mut mtp_logits);
        }
        let backend = &mut self.backend;
        let output = &mut |index, rows, into: &mut Vec<f32>| backend.read_output(program, index, rows, into);
        rows(ScoredRows { first, logits: &logits, mtp_logits: &mtp_logits, output });
        Ok(())
    }
}
