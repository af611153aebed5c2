//! Logits of every position of a given text, with the MTP head's beside them: for `logits` and quality
//! measurements. Nothing is sampled.

use mambo_kernel::{Segment, StepInputs};

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
}

impl Engine {
    /// Feeds `tokens` in chunks and hands out the logits of every position.
    pub fn score(
        &mut self,
        tokens: &[u32],
        chunk: usize,
        rows: &mut dyn FnMut(ScoredRows),
    ) -> Result<(), EngineError> {
        self.check_tokens(tokens)?;
        let chunk = chunk.clamp(1, SCORE_TOKENS);
        let (Some(slot), Some(pages)) = (self.slots.take(), self.pages.take(tokens.len())) else {
            return Err(EngineError::PromptTooLong {
                tokens: tokens.len(),
                context: self.config.context_tokens,
                trained: self.config.context_tokens,
            });
        };
        let mut result = Ok(());
        for first in (0..tokens.len()).step_by(chunk) {
            let end = (first + chunk).min(tokens.len());
            result = self.score_chunk(tokens, first..end, slot.index(), pages.pages(), rows);
            if result.is_err() {
                break;
            }
        }
        self.slots.give_back(slot);
        self.pages.give_back(pages);
        result
    }

    fn score_chunk(
        &mut self,
        tokens: &[u32],
        range: std::ops::Range<usize>,
        slot: u32,
        pages: &[u32],
        rows: &mut dyn FnMut(ScoredRows),
    ) -> Result<(), EngineError> {
        let count = range.len();
        let segment = |rows: usize| {
            [Segment { slot, first_row: 0, rows: rows as u32, position: range.start as u32, first_page: 0 }]
        };
        let wanted: Vec<u32> = (0..count as u32).collect();
        let segments = segment(count);
        let step = StepInputs {
            token_ids: &tokens[range.clone()],
            segments: &segments,
            pages,
            wanted: &wanted,
            hidden: &[],
        };
        let program = self.programs.score;
        self.run(program, &step)?;
        let mut logits = Vec::with_capacity(count * self.vocab);
        self.backend.read_output(program, 0, 0..count, &mut logits);

        let mut mtp_logits = Vec::new();
        // The last position of the text has no next token to feed the head with.
        let drafted = count.min(tokens.len() - 1 - range.start);
        if let Some(mtp) = self.programs.mtp.filter(|_| drafted > 0) {
            let mut hidden = Vec::new();
            self.backend.read_output(program, 1, 0..drafted, &mut hidden);
            let segments = segment(drafted);
            let next = &tokens[range.start + 1..range.start + 1 + drafted];
            let step = StepInputs {
                token_ids: next,
                segments: &segments,
                pages,
                wanted: &wanted[..drafted],
                hidden: &hidden,
            };
            self.run(mtp, &step)?;
            self.backend.read_output(mtp, 0, 0..drafted, &mut mtp_logits);
        }
        rows(ScoredRows { first: range.start, logits: &logits, mtp_logits: &mtp_logits });
        Ok(())
    }
}
