//! The engine: submit requests, step, read events. Synchronous; one step at a time.

use std::sync::Arc;

use mambo_kernel::{Backend, KvTypes, PAGE_TOKENS, ProgramId, StateElem};

use crate::batch::Batch;
use crate::cache::{KvPages, StateSlots};
use crate::error::EngineError;
use crate::load::{EngineConfig, ModelGraphs, Programs, Progress, Weights, load};
use crate::sample::{Choice, History, Sampler};
use crate::scheduler::schedule;
use crate::sequence::{FinishReason, Request, Sequence, SequenceId};
use crate::snapshot::Snapshot;

/// What a step brought.
#[derive(Clone, Debug)]
pub enum Event {
    /// A token was chosen; a stop token is reported too, right before `Finished`.
    Token {
        /// Whose.
        id: SequenceId,
        /// The token with its log probabilities, if asked for.
        choice: Choice,
    },
    /// The snapshot a request asked for.
    Snapshot {
        /// Whose.
        id: SequenceId,
        /// The memory.
        snapshot: Arc<Snapshot>,
    },
    /// The sequence ended and its slot and pages are free.
    Finished {
        /// Whose.
        id: SequenceId,
        /// Why.
        reason: FinishReason,
    },
}

/// Runs many sequences over one loaded model.
pub struct Engine {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) programs: Programs,
    pub(crate) config: EngineConfig,
    pub(crate) pages: KvPages,
    pub(crate) slots: StateSlots,
    trained_context: usize,
    pub(crate) vocab: usize,
    waiting: std::collections::VecDeque<(SequenceId, Request)>,
    running: Vec<Sequence>,
    next_id: u64,
    batch: Batch,
    scheduled: Vec<(usize, usize)>,
    sampler: Sampler,
    logits: Vec<f32>,
}

impl Engine {
    /// Plans, checks that everything fits, and loads the weights.
    pub fn load(
        mut backend: Box<dyn Backend>,
        graphs: &ModelGraphs,
        weights: &dyn Weights,
        mut config: EngineConfig,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Engine, EngineError> {
        config.max_sequences = config.max_sequences.max(1);
        // Every sequence that decodes must find a row in every step.
        config.step_tokens = config.step_tokens.max(config.max_sequences);
        let programs = load(&mut *backend, graphs, weights, &config, progress)?;
        Ok(Engine {
            backend,
            programs,
            pages: KvPages::new(config.max_sequences * config.context_tokens.div_ceil(PAGE_TOKENS)),
            slots: StateSlots::new(config.max_sequences),
            trained_context: graphs.trained_context,
            vocab: graphs.vocab,
            config,
            waiting: Default::default(),
            running: Vec::new(),
            next_id: 0,
            batch: Batch::default(),
            scheduled: Vec::new(),
            sampler: Sampler::default(),
            logits: Vec::new(),
        })
    }

    /// The backend, for profiling and inspection.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// The backend, to switch profiling.
    pub fn backend_mut(&mut self) -> &mut dyn Backend {
        &mut *self.backend
    }

    /// The programs for prompts and for decoding.
    pub fn program_ids(&self) -> (ProgramId, ProgramId) {
        (self.programs.prefill, self.programs.decode)
    }

    /// The configuration.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Whether nothing waits or runs.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Queues a request.
    pub fn submit(&mut self, request: Request) -> Result<SequenceId, EngineError> {
        self.check_tokens(&request.prompt)?;
        if request.prompt.len() == self.config.context_tokens {
            return Err(EngineError::NoRoom { context: self.config.context_tokens });
        }
        if let Some(problem) = request.problem() {
            return Err(EngineError::Request(problem));
        }
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.waiting.push_back((id, request));
        Ok(id)
    }

    /// Refuses empty, too long and impossible prompts.
    pub(crate) fn check_tokens(&self, tokens: &[u32]) -> Result<(), EngineError> {
        let context = self.config.context_tokens;
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens.len() > context {
            let trained = self.trained_context;
            return Err(EngineError::PromptTooLong { tokens: tokens.len(), context, trained });
        }
        match tokens.iter().find(|t| **t as usize >= self.vocab) {
            Some(&token) => Err(EngineError::TokenOutOfRange { token, vocab: self.vocab }),
            None => Ok(()),
        }
    }

    /// Ends a sequence; its slot and pages are free at once.
    pub fn cancel(&mut self, id: SequenceId) -> Option<Event> {
        if let Some(index) = self.waiting.iter().position(|(waiting, _)| *waiting == id) {
            self.waiting.remove(index);
            return Some(Event::Finished { id, reason: FinishReason::Cancelled });
        }
        let index = self.running.iter().position(|s| s.id == id)?;
        self.retire(index);
        Some(Event::Finished { id, reason: FinishReason::Cancelled })
    }

    /// Runs one step over everything that can run and returns what happened, in sequence order.
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        self.admit()?;
        let mut scheduled = std::mem::take(&mut self.scheduled);
        schedule(&self.running, self.config.step_tokens, &mut scheduled);
        self.batch.clear();
        for &(index, count) in &scheduled {
            self.batch.push(&self.running[index], count);
        }
        let mut events = Vec::new();
        if !self.batch.token_ids.is_empty() {
            let program = if self.batch.is_decode() { self.programs.decode } else { self.programs.prefill };
            self.backend.run(program, &self.batch.inputs())?;
            self.collect(program, &scheduled, &mut events)?;
        }
        self.scheduled = scheduled;
        Ok(events)
    }

    /// Gives waiting requests slots and pages for as long as both last.
    fn admit(&mut self) -> Result<(), EngineError> {
        while let Some((_, request)) = self.waiting.front() {
            let context = self.config.context_tokens;
            let limit = request
                .max_tokens
                .map_or(context, |max| request.prompt.len().saturating_add(max).min(context));
            // Pages for the whole answer are reserved now: a running sequence never has to be thrown out.
            let (free_slots, free_pages) = (self.slots.free(), self.pages.free());
            if free_slots == 0 || free_pages < KvPages::pages_for(limit) {
                // Somebody who runs will make room; if nobody does, waiting would never end.
                let stuck = self.running.is_empty();
                return if stuck { Err(EngineError::Busy { free_slots, free_pages }) } else { Ok(()) };
            }
            let (Some(slot), Some(pages)) = (self.slots.take(), self.pages.take(limit)) else {
                unreachable!("both were counted")
            };
            let (id, mut request) = self.waiting.pop_front().expect("the front was looked at");
            let resume = request.resume.take();
            let mut sequence = Sequence { id, request, slot, pages, generated: Vec::new(), reused: 0, limit };
            let restored = resume.map_or(Ok(()), |snapshot| self.restore(&mut sequence, &snapshot));
            self.running.push(sequence);
            if restored.is_err() {
                self.retire(self.running.len() - 1);
                return restored;
            }
        }
        Ok(())
    }

    /// Samples, appends, finishes; also takes the snapshots that are due.
    fn collect(
        &mut self,
        program: ProgramId,
        scheduled: &[(usize, usize)],
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        let mut row = 0;
        let mut finished = Vec::new();
        let mut damaged = None;
        for &(index, count) in scheduled {
            let pending = self.running[index].pending();
            self.running[index].slot.advance(count);
            self.take_snapshot(index, events);
            if count < pending {
                continue;
            }
            self.logits.clear();
            self.backend.read_output(program, 0, row..row + 1, &mut self.logits);
            row += 1;
            let sequence = &mut self.running[index];
            if self.logits.iter().all(|logit| logit.is_nan()) {
                damaged = Some(sequence.slot.position() - 1);
                finished.push(index);
                continue;
            }
            let history = History { prompt: &sequence.request.prompt, generated: &sequence.generated };
            let choice = self.sampler.choose(&self.logits, &sequence.request.sampling, history);
            let token = choice.token;
            sequence.generated.push(token);
            let id = sequence.id;
            events.push(Event::Token { id, choice });
            if let Some(reason) = sequence.finish_after(token) {
                events.push(Event::Finished { id, reason });
                finished.push(index);
            }
        }
        for index in finished.into_iter().rev() {
            self.retire(index);
        }
        damaged.map_or(Ok(()), |position| Err(EngineError::NotANumber { position }))
    }

    /// Takes the snapshot a sequence has asked for, once, when it has got there.
    fn take_snapshot(&mut self, index: usize, events: &mut Vec<Event>) {
        let sequence = &self.running[index];
        if sequence.request.snapshot_at == Some(sequence.slot.position()) {
            let snapshot = Arc::new(self.capture(sequence));
            events.push(Event::Snapshot { id: sequence.id, snapshot });
            self.running[index].request.snapshot_at = None;
        }
    }

    fn retire(&mut self, index: usize) {
        let sequence = self.running.remove(index);
        self.slots.give_back(sequence.slot);
        self.pages.give_back(sequence.pages);
    }

    /// Prompt tokens that a running sequence took from its snapshot instead of running them.
    pub fn reused_tokens(&self, id: SequenceId) -> Option<usize> {
        self.running.iter().find(|s| s.id == id).map(|s| s.reused)
    }

    /// A copy of a running sequence's memory at the position it has reached.
    pub fn snapshot(&self, id: SequenceId) -> Result<Snapshot, EngineError> {
        let sequence = self.running.iter().find(|s| s.id == id).ok_or(EngineError::UnknownSequence)?;
        Ok(self.capture(sequence))
    }

    fn capture(&self, sequence: &Sequence) -> Snapshot {
        let position = sequence.slot.position();
        let pages = &sequence.pages.pages()[..KvPages::pages_for(position)];
        Snapshot {
            tokens: (0..position).map(|p| sequence.token(p)).collect(),
            furthest: sequence.slot.furthest(),
            kv_types: self.config.kv_types,
            state_elem: self.config.state_elem,
            slot: self.backend.snapshot_slot(sequence.slot.index() as usize),
            pages: pages.iter().map(|&page| self.backend.snapshot_page(page as usize)).collect(),
        }
    }

    /// Starts a sequence from a snapshot, if its prompt can go on from there.
    fn restore(&mut self, sequence: &mut Sequence, snapshot: &Snapshot) -> Result<(), EngineError> {
        if !snapshot.begins(&sequence.request.prompt) {
            return Ok(());
        }
        let (held, own) =
            ((snapshot.kv_types, snapshot.state_elem), (self.config.kv_types, self.config.state_elem));
        if held != own {
            let text = |(kv, state): (KvTypes, StateElem)| {
                format!("keys and values in {kv} and states in {}", state.name())
            };
            return Err(EngineError::SnapshotTypes { got: text(held), want: text(own) });
        }
        self.backend.restore_slot(sequence.slot.index() as usize, &snapshot.slot)?;
        for (&page, bytes) in sequence.pages.pages().iter().zip(&snapshot.pages) {
            self.backend.restore_page(page as usize, bytes)?;
        }
        sequence.slot.restored_at(snapshot.tokens.len(), snapshot.furthest);
        sequence.reused = snapshot.tokens.len();
        Ok(())
    }

    /// Takes back the last `tokens` generated tokens of a running sequence.
    pub fn rollback(&mut self, id: SequenceId, tokens: usize) -> Result<(), EngineError> {
        let depth = self.config.rollback;
        let sequence = self.running.iter_mut().find(|s| s.id == id).ok_or(EngineError::UnknownSequence)?;
        // The newest token has been chosen but has not run: taking it back moves no cursor.
        let keep = sequence.generated.len().checked_sub(tokens).ok_or(EngineError::Rollback { tokens })?;
        let length = sequence.request.prompt.len() + keep;
        // One token must be pending, so that the next step has logits to sample from.
        let ran = sequence.slot.position().saturating_sub(length.saturating_sub(1));
        if !sequence.slot.rollback(ran, depth) {
            return Err(EngineError::Rollback { tokens });
        }
        sequence.generated.truncate(keep);
        Ok(())
    }
}
