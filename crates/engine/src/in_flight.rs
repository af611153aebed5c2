//! Steps between [`Engine::begin`] and [`Engine::end`]: what was submitted, and what to do with its results.

use std::sync::Arc;

use mambo_kernel::{BackendError, Fetch, HiddenRows, NO_TOKEN, StepInputs, StepResults, Ticket, Wait};

use crate::engine::{Engine, Event};
use crate::error::{EngineError, Failure};
use crate::sample::{Choice, logprobs};
use crate::scheduler::{Room, StepLoad, schedule};
use crate::sequence::{FinishReason, SequenceId};

/// A submitted step.
#[derive(Debug)]
pub(crate) struct StepInFlight {
    ticket: Ticket,
    /// The MTP step submitted right after it, which fills the head's cache for the same rows.
    follow_up: Option<Ticket>,
    /// Why that one failed.
    failure: Option<BackendError>,
    /// Where the chosen experts come among the fetched rows, if they are counted.
    routes: Option<usize>,
    parts: Vec<Part>,
}

/// The MTP step submitted right after a step, if there is one.
type FollowUp = Result<Option<Ticket>, BackendError>;

/// One sequence's part of a step.
#[derive(Debug)]
struct Part {
    id: SequenceId,
    /// Tokens the sequence has run when the step has ended.
    position: usize,
    /// Index among the wanted rows, if a token is chosen.
    chosen: Option<u32>,
    /// Index among the fetched rows of its logits or its embedding, if either was asked for.
    fetched: Option<usize>,
}

impl Engine {
    /// Submits the next step, if the backend takes one more and anything can run. Says whether it did.
    pub fn begin(&mut self) -> bool {
        if self.is_lost() || self.in_flight.len() >= self.backend.queue_depth().max(1) {
            return false;
        }
        self.admit();
        let mut scheduled = std::mem::take(&mut self.scheduled);
        let room = Room { tokens: self.config.step_tokens, beside_answers: self.prompt_room };
        schedule(&self.running, room, &mut scheduled);
        let is_answer = |(index, _): &&(usize, usize)| self.running[*index].pending() == 1;
        let answers = scheduled.iter().filter(is_answer).count();
        let tokens: usize = scheduled.iter().map(|(_, count)| count).sum();
        let parts = self.fill_batch(&scheduled);
        self.scheduled = scheduled;
        if parts.is_empty() {
            return false;
        }
        for part in &parts {
            let sequence = self.running.iter_mut().find(|s| s.id == part.id).expect("it was scheduled");
            sequence.slot.advance(part.position - sequence.slot.position());
            sequence.steps_in_flight += 1;
            sequence.unseen += usize::from(part.chosen.is_some());
        }
        self.last_step = StepLoad { answers, prompt_tokens: tokens - answers };
        let routes = self.experts.fetch(self.batch.token_ids.len(), &mut self.batch.fetch);
        match self.submit_batch(&parts) {
            Ok((ticket, submitted)) => {
                // Even without its follow-up, the step has to be collected.
                let (follow_up, failure) = match submitted {
                    Ok(follow_up) => (follow_up, None),
                    Err(error) => (None, Some(error)),
                };
                self.in_flight.push_back(StepInFlight { ticket, follow_up, failure, routes, parts });
            }
            Err(error) => self.fail_parts(&parts, error),
        }
        true
    }

    /// Fills the batch from the scheduled sequences.
    fn fill_batch(&mut self, scheduled: &[(usize, usize)]) -> Vec<Part> {
        let before = self.in_flight.back();
        self.batch.clear(before.map(|step| step.ticket));
        let mut parts = Vec::with_capacity(scheduled.len());
        for &(index, count) in scheduled {
            let sequence = &self.running[index];
            let unseen =
                before.and_then(|step| step.parts.iter().find(|part| part.id == sequence.id)?.chosen);
            if sequence.unseen > 0 && unseen.is_none() {
                // Its token is chosen by an older step; it runs again when that has been collected.
                continue;
            }
            let (position, end) = (sequence.slot.position(), sequence.slot.position() + count);
            self.pages.prepare(&mut self.running[index].pages, position, end);
            let sequence = &self.running[index];
            self.batch.push(sequence, count, unseen);
            let (mut chosen, mut fetched) = (None, None);
            if count == sequence.pending() {
                let row = self.batch.want(sequence, index);
                chosen = Some(row);
                let output = match (&sequence.request.sampling.logprobs, sequence.request.embeds) {
                    (_, true) => self.programs.embedding,
                    (Some(_), false) => Some(self.programs.logits),
                    (None, false) => None,
                };
                if let Some(output) = output {
                    fetched = Some(self.batch.fetch.len());
                    self.batch.fetch.push(Fetch { output, rows: row..row + 1 });
                }
            }
            parts.push(Part { id: sequence.id, position: end, chosen, fetched });
        }
        self.batch.join_pages();
        parts
    }

    /// Submits the batch, and right after it the MTP head over the same rows where its cache is to be kept.
    fn submit_batch(&mut self, parts: &[Part]) -> Result<(Ticket, FollowUp), BackendError> {
        let program = if self.batch.is_decode() { self.programs.decode } else { self.programs.prefill };
        let masks = self.batch.row_masks(&self.running);
        let ticket = self.backend.submit(program, &self.batch.inputs(&masks))?;
        let Some((mtp, hidden)) = self.programs.mtp_fill() else { return Ok((ticket, Ok(None))) };
        // The head reads the next token beside each row: one that is known, or the one this step chooses.
        let mut next = Vec::with_capacity(self.batch.token_ids.len());
        for (part, segment) in parts.iter().zip(&self.batch.segments) {
            let sequence = self.running.iter().find(|s| s.id == part.id).expect("it was scheduled");
            let first = segment.position as usize + 1;
            next.extend((first..first + segment.rows as usize).map(|position| {
                let chosen = || mambo_kernel::CHOSEN | part.chosen.expect("only the newest token is unseen");
                sequence.token(position).unwrap_or_else(chosen)
            }));
        }
        let rows: Vec<u32> = (0..next.len() as u32).collect();
        let step = StepInputs {
            token_ids: &next,
            chosen_by: Some(ticket),
            hidden: HiddenRows::Previous { output: hidden, rows: &rows },
            wanted: &[],
            choose: Default::default(),
            fetch: &[],
            ..self.batch.inputs(&masks)
        };
        Ok((ticket, self.backend.submit(mtp, &step).map(Some)))
    }

    /// Collects the oldest step in flight and returns what happened, in sequence order; nothing if it may not block
    /// and the step has not ended.
    pub fn end(&mut self, wait: Wait) -> Option<Vec<Event>> {
        let Some(step) = self.in_flight.front_mut() else { return Some(std::mem::take(&mut self.events)) };
        if let Some(follow_up) = step.follow_up {
            // It is collected for its errors alone, and once: polling comes back here for the step itself.
            match self.backend.collect(follow_up, wait, &mut StepResults::default()) {
                Ok(false) => return None,
                Ok(true) => {}
                Err(error) => step.failure = Some(error),
            }
            step.follow_up = None;
        }
        let collected = match self.backend.collect(step.ticket, wait, &mut self.results) {
            Ok(false) => return None,
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        let step = self.in_flight.pop_front().expect("the front was looked at");
        let results = std::mem::take(&mut self.results);
        match step.failure.map_or(collected, Err) {
            Ok(()) => {
                self.experts.count(step.routes, &results);
                for part in &step.parts {
                    // Taking one sequence's snapshot can find the device gone, and all sequences with it.
                    if !self.is_lost() {
                        self.finish_part(part, &results);
                    }
                }
            }
            Err(error) => self.fail_parts(&step.parts, error),
        }
        self.results = results;
        Some(std::mem::take(&mut self.events))
    }

    /// Appends the chosen token of a sequence and ends the sequence where it is due; also takes its snapshot.
    fn finish_part(&mut self, part: &Part, results: &StepResults) {
        let Some(index) = self.land(part) else { return };
        if let Err(error) = self.take_snapshot(index, part.position) {
            let failure = Failure::from(error);
            self.fail(index, failure.clone());
            return self.note_loss(&failure);
        }
        if self.is_lost() {
            return;
        }
        let Some(row) = part.chosen else { return };
        let token = results.tokens[row as usize];
        if token as usize >= self.vocab {
            debug_assert_eq!(token, NO_TOKEN, "a chosen token is in the vocabulary");
            return self.fail(index, EngineError::NoToken { position: part.position - 1 }.into());
        }
        let fetched = part.fetched.map(|fetched| &results.rows[fetched][..]);
        if self.running[index].request.embeds {
            let row = fetched.expect("an embedding is fetched with the last token");
            return self.give_embedding(index, row);
        }
        let sequence = &mut self.running[index];
        sequence.unseen -= 1;
        sequence.generated.push(token);
        sequence.history.add(token);
        let count = sequence.request.sampling.logprobs;
        let logprobs = fetched.zip(count).map(|(logits, count)| logprobs(logits, token, count));
        let id = sequence.id;
        self.events.push(Event::Token { id, choice: Choice { token, logprobs } });
        if let Some(reason) = self.running[index].finish_after(token) {
            self.keep_end(index);
            // Unless keeping its memory found the device gone, and the sequence with it.
            if let Some(index) = self.running.iter().position(|s| s.id == id) {
                self.events.push(Event::Finished { id, reason });
                self.retire(index);
            }
        }
    }

    /// Ends a sequence with its embedding. Its end is not kept: nobody goes on from it.
    fn give_embedding(&mut self, index: usize, row: &[f32]) {
        let id = self.running[index].id;
        if !row.iter().all(|value| value.is_finite()) {
            return self.fail(index, EngineError::NoEmbedding.into());
        }
        self.events.push(Event::Embedding { id, row: row.to_vec() });
        self.events.push(Event::Finished { id, reason: FinishReason::Stop });
        self.retire(index);
    }

    /// Notes that a step of a sequence has ended; its index if it still runs.
    fn land(&mut self, part: &Part) -> Option<usize> {
        if let Some(index) = self.running.iter().position(|s| s.id == part.id) {
            self.running[index].steps_in_flight -= 1;
            return Some(index);
        }
        let index = self.ended.iter().position(|s| s.id == part.id).expect("its slot was kept for this step");
        self.ended[index].steps_in_flight -= 1;
        if self.ended[index].steps_in_flight == 0 {
            let sequence = self.ended.swap_remove(index);
            self.slots.give_back(sequence.slot);
        }
        None
    }

    /// Ends the sequences of a step that failed: their memory may be half-written.
    fn fail_parts(&mut self, parts: &[Part], error: BackendError) {
        let error = Arc::new(error);
        for part in parts {
            if let Some(index) = self.land(part) {
                self.fail(index, EngineError::Step(Arc::clone(&error)).into());
            }
        }
        self.note_loss(&EngineError::Step(error));
    }

    /// Ends a sequence with the reason.
    fn fail(&mut self, index: usize, failure: Failure) {
        let id = self.running[index].id;
        self.events.push(Event::Finished { id, reason: FinishReason::Failed(failure) });
        self.retire(index);
    }
}
