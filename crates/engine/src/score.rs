//! Logits of every position of a given text, with the MTP head's beside them: for `logits` and quality
//! measurements. Nothing is sampled.

use mambo_kernel::{
    ChooseInputs, ChooseRow, Fetch, HiddenRows, ProgramId, RowBase, SSM_CHUNK, Segment, StepInputs,
    StepResults, Wait,
};

use crate::batch::PageArrays;
use crate::cache::{SequencePages, Slot};
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
    /// Rows of the other outputs that were asked for, in the order of their names.
    pub outputs: &'a [Vec<f32>],
}

/// How a text is fed.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScoreOptions<'a> {
    /// Tokens per step, at most [`SCORE_TOKENS`].
    pub chunk: usize,
    /// Other sequences of made-up tokens that share every step. They must not change the
    /// results.
    pub companions: usize,
    /// Outputs of the trunk's graph, besides logits, whose rows are wanted too.
    pub outputs: &'a [&'a str],
}

/// One sequence of a scoring step.
struct ScoredSequence {
    tokens: Vec<u32>,
    slot: Slot,
    pages: SequencePages,
}

impl Engine {
    /// Runs `tokens` in chunks and passes on the logits of every position.
    pub fn score(
        &mut self,
        tokens: &[u32],
        options: ScoreOptions,
        rows: &mut dyn FnMut(ScoredRows),
    ) -> Result<(), EngineError> {
        self.check_alive()?;
        self.check_tokens(tokens)?;
        if !self.backend.may_block() {
            return Err(EngineError::CannotWait { what: "scoring a text" });
        }
        if !self.in_flight.is_empty() {
            return Err(EngineError::InFlight);
        }
        if options.companions >= SCORE_TOKENS {
            let (companions, room) = (options.companions, SCORE_TOKENS);
            return Err(EngineError::TooManyCompanions { companions, room });
        }
        let mut sequences = Vec::new();
        let result = self
            .gather(tokens, options.companions, &mut sequences)
            .and_then(|()| self.score_sequences(&mut sequences, &options, rows));
        for sequence in sequences {
            self.slots.give_back(sequence.slot);
        }
        self.noting_loss(result)
    }

    /// Slots and pages for the text, which comes first, and its companions.
    fn gather(
        &mut self,
        tokens: &[u32],
        companions: usize,
        sequences: &mut Vec<ScoredSequence>,
    ) -> Result<(), EngineError> {
        for n in 0..=companions {
            let made_up =
                || (0..tokens.len()).map(|i| ((i * 31 + n * 17 + i * i % 7) % self.vocab) as u32).collect();
            let tokens = if n == 0 { tokens.to_vec() } else { made_up() };
            let (free_slots, free_pages) = (self.slots.free(), self.pages.fewest_free());
            let busy = || EngineError::Busy { free_slots, free_pages };
            // Pages first: they free themselves if no slot is left.
            let mut pages = self.pages.lists(tokens.len());
            if !self.pages.reserve(&mut pages) {
                return Err(busy());
            }
            let slot = self.slots.take().ok_or_else(busy)?;
            sequences.push(ScoredSequence { tokens, slot, pages });
        }
        Ok(())
    }

    fn score_sequences(
        &mut self,
        sequences: &mut [ScoredSequence],
        options: &ScoreOptions,
        rows: &mut dyn FnMut(ScoredRows),
    ) -> Result<(), EngineError> {
        let length = sequences[0].tokens.len();
        let chunk = options.chunk.clamp(1, SCORE_TOKENS);
        // Companions are never longer than a chunk of the scan, so the text decides.
        let program = if chunk <= SSM_CHUNK { self.programs.verify } else { self.programs.score };
        while sequences[0].slot.position() < length {
            let mut room = SCORE_TOKENS;
            let mut counts = Vec::with_capacity(sequences.len());
            for (n, sequence) in sequences.iter().enumerate() {
                // Companions advance at different rates; each leaves a row for those after it.
                let pace = if n == 0 { chunk } else { 1 + n % 3 };
                let left = sequence.tokens.len() - sequence.slot.position();
                let count = pace.min(left).min(room.saturating_sub(sequences.len() - 1 - n));
                counts.push(count);
                room -= count;
            }
            for (sequence, count) in sequences.iter_mut().zip(&counts) {
                let position = sequence.slot.position();
                self.pages.prepare(&mut sequence.pages, position, position + count);
            }
            self.score_step(program, sequences, &counts, options.outputs, rows)?;
            for (sequence, count) in sequences.iter_mut().zip(counts) {
                sequence.slot.advance(count);
            }
        }
        Ok(())
    }

    /// One step of the trunk over all sequences, then one of the MTP head over the text alone.
    fn score_step(
        &mut self,
        program: ProgramId,
        sequences: &[ScoredSequence],
        counts: &[usize],
        outputs: &[&str],
        rows: &mut dyn FnMut(ScoredRows),
    ) -> Result<(), EngineError> {
        let (mut ids, mut segments, mut pages) = (Vec::new(), Vec::new(), PageArrays::default());
        // The text comes last, so that its rows are not the first of the step.
        for (sequence, &count) in sequences.iter().zip(counts).rev().filter(|(_, count)| **count > 0) {
            let position = sequence.slot.position();
            segments.push(Segment {
                slot: sequence.slot.index(),
                first_row: ids.len() as u32,
                rows: count as u32,
                position: position as u32,
                first_page: pages.push(&sequence.pages, position + count),
            });
            ids.extend_from_slice(&sequence.tokens[position..position + count]);
        }
        pages.join();
        let (text, count, first) = (&sequences[0], counts[0], sequences[0].slot.position());
        let start = ids.len() - count;
        let wanted: Vec<u32> = (start as u32..ids.len() as u32).collect();
        let fetch = self.score_fetches(program, outputs, start, count)?;
        let step = StepInputs {
            token_ids: &ids,
            segments: &segments,
            pages: pages.joined(),
            wanted: &wanted,
            fetch: &fetch,
            ..StepInputs::default()
        };
        let mut results = StepResults::default();
        let ticket = self.backend.submit(program, &step)?;
        // The last position of the text has no next token to feed the head with.
        let drafted = count.min(text.tokens.len() - 1 - first);
        let drafts = self.programs.mtp.filter(|_| drafted > 0);
        let mut mtp = StepResults::default();
        if let Some(head) = drafts {
            let hidden =
                self.backend.program(program).output("hidden").expect("a trunk with a head gives them");
            let logits = self.backend.program(head).output("logits").expect("a head gives logits");
            let hidden_rows: Vec<u32> = (start as u32..(start + drafted) as u32).collect();
            // The text's segment comes last, and its lists are where they were.
            let own = segments.last().expect("the text is in every step");
            let segments = [Segment { first_row: 0, rows: drafted as u32, ..*own }];
            let step = StepInputs {
                token_ids: &text.tokens[first + 1..first + 1 + drafted],
                segments: &segments,
                pages: pages.joined(),
                wanted: &(0..drafted as u32).collect::<Vec<_>>(),
                choose: ChooseInputs { rows: &vec![ChooseRow::default(); drafted], ..Default::default() },
                hidden: HiddenRows::Previous { output: hidden, rows: &hidden_rows },
                fetch: &[Fetch { output: logits, rows: 0..drafted as u32 }],
                ..StepInputs::default()
            };
            // Whatever fails, no step stays in flight.
            let behind = self.backend.submit(head, &step);
            let collected = self.backend.collect(ticket, Wait::Block, &mut results);
            self.backend.collect(behind?, Wait::Block, &mut mtp)?;
            collected?;
        } else {
            self.backend.collect(ticket, Wait::Block, &mut results)?;
        }
        rows(ScoredRows {
            first,
            logits: &results.rows[0],
            mtp_logits: mtp.rows.first().map_or(&[], Vec::as_slice),
            outputs: &results.rows[1..],
        });
        Ok(())
    }

    /// Logits of the text's rows, and its rows of other outputs.
    fn score_fetches(
        &self,
        program: ProgramId,
        outputs: &[&str],
        start: usize,
        count: usize,
    ) -> Result<Vec<Fetch>, EngineError> {
        let program = self.backend.program(program);
        let index = |name: &str| {
            program
                .output(name)
                .ok_or_else(|| EngineError::Request(format!("the graph has no output `{name}`")))
        };
        let mut fetch = vec![Fetch { output: index("logits")?, rows: 0..count as u32 }];
        for name in outputs {
            let output = index(name)?;
            let rows = program.outputs[output].operand.rows;
            let first = if rows.base == RowBase::Tokens { start } else { 0 };
            let (first, end) = (first * rows.times, (first + count) * rows.times);
            fetch.push(Fetch { output, rows: first as u32..end as u32 });
        }
        Ok(fetch)
    }
}
