//! The engine: submit requests, step, read events. Synchronous and without threads of its own.
//!
//! A step has two halves that a front end may call apart: [`Engine::begin`] submits the next step to the backend and
//! [`Engine::end`] collects the oldest one. Where the backend takes several, a step is begun before the tokens of the
//! one before it have been seen. An error of one sequence is an event of that sequence alone.

use std::collections::VecDeque;
use std::sync::Arc;

use mambo_kernel::{Backend, BackendError, CacheLayout, ProgramId, SSM_CHUNK, StepResults, Wait};

use crate::adopt::SpilledPrefix;
use crate::batch::Batch;
use crate::cache::{CellPool, KvPages, PageList, StateSlots};
use crate::error::EngineError;
use crate::experts::ExpertWatch;
use crate::fingerprint::Fingerprint;
use crate::in_flight::StepInFlight;
use crate::load::{EngineConfig, ModelGraphs, Programs, Progress, Weights};
use crate::loading::{Loaded, Loading};
use crate::memory::{SnapshotShares, sequence_pages};
use crate::prefix::{PrefixCache, Reuse};
use crate::sample::Choice;
use crate::scheduler::StepLoad;
use crate::sequence::{FinishReason, Request, Sequence, SequenceId};
use crate::snapshot::Snapshot;

/// What happened in a step.
#[derive(Clone, Debug)]
pub enum Event {
    /// It got a slot and its prompt is being read.
    Started {
        /// Whose.
        id: SequenceId,
        /// What of the prompt need not be read.
        reuse: Reuse,
    },
    /// A token was chosen; a stop token is reported too, right before `Finished`.
    Token {
        /// Whose.
        id: SequenceId,
        /// The token with its log probabilities, if asked for.
        choice: Choice,
    },
    /// The embedding a request asked for, right before `Finished`.
    Embedding {
        /// Whose.
        id: SequenceId,
        /// The last prompt token's hidden row after the final norm.
        row: Vec<f32>,
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

impl Event {
    /// Whose event it is.
    pub fn id(&self) -> SequenceId {
        match self {
            Event::Started { id, .. }
            | Event::Token { id, .. }
            | Event::Embedding { id, .. }
            | Event::Snapshot { id, .. }
            | Event::Finished { id, .. } => *id,
        }
    }
}

/// Runs many sequences over one loaded model.
pub struct Engine {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) programs: Programs,
    pub(crate) config: EngineConfig,
    pub(crate) layout: CacheLayout,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) pages: KvPages,
    pub(crate) slots: StateSlots,
    /// Slots that hold the states of snapshots.
    pub(crate) snapshot_slots: CellPool,
    /// Prompts that were read, if they are kept.
    pub(crate) prefix: Option<PrefixCache>,
    /// Kept prefixes that were dropped, exported for who takes them.
    pub(crate) spilled: Vec<SpilledPrefix>,
    /// Prompt tokens that a step reads beside answers.
    pub(crate) prompt_room: usize,
    pub(crate) last_step: StepLoad,
    /// Counts the experts that steps choose.
    pub(crate) experts: ExpertWatch,
    /// Why no call can succeed any more.
    pub(crate) lost: Option<Arc<BackendError>>,
    trained_context: usize,
    pub(crate) vocab: usize,
    pub(crate) waiting: VecDeque<(SequenceId, Request)>,
    pub(crate) running: Vec<Sequence>,
    /// Ended sequences whose slot and pages steps in flight still write.
    pub(crate) ended: Vec<Sequence>,
    pub(crate) in_flight: VecDeque<StepInFlight>,
    next_id: u64,
    pub(crate) batch: Batch,
    pub(crate) scheduled: Vec<(usize, usize)>,
    pub(crate) results: StepResults,
    /// What happened between steps, reported with the next.
    pub(crate) events: Vec<Event>,
}

impl Engine {
    /// Plans, checks that everything fits, and loads the weights.
    pub fn load(
        backend: Box<dyn Backend>,
        graphs: &ModelGraphs,
        weights: &dyn Weights,
        config: EngineConfig,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Engine, EngineError> {
        let mut loading = Loading::begin(backend, graphs, weights, config)?;
        progress(loading.progress());
        while loading.load_next(weights)? {
            progress(loading.progress());
        }
        loading.finish(weights)
    }

    /// An engine that has yet to run anything.
    pub(crate) fn new(loaded: Loaded) -> Engine {
        let Loaded { backend, config, programs, layout, fingerprint, routes, trained_context, vocab } =
            loaded;
        let (pages, slots, snapshot_slots) = pools(&layout, &config);
        Engine {
            backend,
            programs,
            fingerprint,
            pages,
            slots,
            snapshot_slots,
            prefix: prefix_cache(&layout, &config),
            spilled: Vec::new(),
            prompt_room: usize::MAX,
            last_step: StepLoad::default(),
            experts: ExpertWatch::new(routes),
            lost: None,
            layout,
            trained_context,
            vocab,
            config,
            waiting: VecDeque::new(),
            running: Vec::new(),
            ended: Vec::new(),
            in_flight: VecDeque::new(),
            next_id: 0,
            batch: Batch::default(),
            scheduled: Vec::new(),
            results: StepResults::default(),
            events: Vec::new(),
        }
    }

    /// Loses what pages and slots hold: snapshots that share them are another engine's from now on.
    pub(crate) fn replace_pools(&mut self) {
        self.prefix = prefix_cache(&self.layout, &self.config);
        (self.pages, self.slots, self.snapshot_slots) = pools(&self.layout, &self.config);
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

    /// The caches, as they were allocated.
    pub fn cache_layout(&self) -> &CacheLayout {
        &self.layout
    }

    /// Bytes of keys and values that are set aside for each sequence.
    pub fn kv_bytes_per_sequence(&self) -> u64 {
        let groups = self.layout.kv_groups.iter().enumerate();
        let bytes = |(index, group)| sequence_pages(group, &self.config) * self.layout.page_bytes(index);
        groups.map(bytes).sum::<usize>() as u64
    }

    /// Numbers of an embedding; nothing if the engine was loaded without.
    pub fn embedding_size(&self) -> Option<usize> {
        let program = self.backend.program(self.programs.prefill);
        self.programs.embedding.map(|output| program.outputs[output].operand.cols)
    }

    /// What names the loaded model.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Lets a step read at most so many prompt tokens while sequences answer, so that answers do not stall; at least
    /// one.
    pub fn set_prompt_room(&mut self, tokens: usize) {
        self.prompt_room = tokens.max(1);
    }

    /// What the step that was begun last holds.
    pub fn last_step(&self) -> StepLoad {
        self.last_step
    }

    /// Requests that wait for a slot, and sequences that hold one.
    pub fn load_counts(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    /// Whether nothing waits, runs or has yet to be reported.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.running.is_empty()
            && self.in_flight.is_empty()
            && self.events.is_empty()
    }

    /// Recurrent slots and KV pages that neither a sequence nor a snapshot holds.
    pub fn free_cells(&self) -> (usize, usize) {
        (self.slots.free() + self.snapshot_slots.free(), self.pages.free())
    }

    /// KV pages that hold a running sequence's tokens, by group of the layout. What is in reserve for its next tokens is
    /// not among them.
    pub fn held_pages(&self, id: SequenceId) -> Option<Vec<usize>> {
        let sequence = self.running.iter().find(|s| s.id == id)?;
        Some(sequence.pages.lists.iter().map(PageList::held).collect())
    }

    /// Queues a request.
    pub fn submit(&mut self, request: Request) -> Result<SequenceId, EngineError> {
        self.check_alive()?;
        self.check_tokens(&request.prompt)?;
        if request.embeds && self.programs.embedding.is_none() {
            let problem = "the engine was loaded without embeddings; load it with them";
            return Err(EngineError::Request(problem.to_owned()));
        }
        if request.prompt.len() == self.config.context_tokens && !request.embeds {
            return Err(EngineError::NoRoom { context: self.config.context_tokens });
        }
        if let Some(problem) = request.problem() {
            return Err(EngineError::Request(problem));
        }
        let biased = request.sampling.logit_bias.iter().map(|(token, _)| *token);
        if let Some(token) = biased.into_iter().find(|token| *token as usize >= self.vocab) {
            return Err(EngineError::TokenOutOfRange { token, vocab: self.vocab });
        }
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.enqueue(id, request);
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

    /// Ends a sequence; its slot and pages are free as soon as no step in flight uses them.
    pub fn cancel(&mut self, id: SequenceId) -> Option<Event> {
        if let Some(index) = self.waiting.iter().position(|(waiting, _)| *waiting == id) {
            self.waiting.remove(index);
        } else {
            let index = self.running.iter().position(|s| s.id == id)?;
            self.keep_end(index);
            // Keeping its memory can find the device gone, and the sequence with it.
            self.running.iter().position(|s| s.id == id).map(|index| self.retire(index))?;
        }
        // What has not been reported by now would come after the end.
        self.events.retain(|event| event.id() != id);
        Some(Event::Finished { id, reason: FinishReason::Cancelled })
    }

    /// Begins as many steps as the backend takes, ends the oldest and returns what happened, in sequence order.
    pub fn step(&mut self) -> Vec<Event> {
        while self.begin() {}
        self.end(Wait::Block).expect("a step that may block ends")
    }

    /// Ends every step in flight, for what needs the backend to itself: scoring, snapshots, rollback.
    pub fn drain(&mut self) -> Vec<Event> {
        let mut events = std::mem::take(&mut self.events);
        while !self.in_flight.is_empty() {
            events.extend(self.end(Wait::Block).expect("a step that may block ends"));
        }
        events
    }

    /// Takes a sequence out of the running ones; a slot that steps in flight still write is kept until they end.
    pub(crate) fn retire(&mut self, index: usize) {
        let sequence = self.running.remove(index);
        match sequence.steps_in_flight {
            0 => self.slots.give_back(sequence.slot),
            _ => self.ended.push(sequence),
        }
    }

    /// Prompt tokens that a running sequence took from its snapshot instead of running them.
    pub fn reused_tokens(&self, id: SequenceId) -> Option<usize> {
        self.running.iter().find(|s| s.id == id).map(|s| s.reused)
    }

    /// Takes back the last `tokens` generated tokens of a running sequence.
    pub fn rollback(&mut self, id: SequenceId, tokens: usize) -> Result<(), EngineError> {
        let result = self.move_back(id, tokens);
        self.noting_loss(result)
    }

    fn move_back(&mut self, id: SequenceId, tokens: usize) -> Result<(), EngineError> {
        let index = self.idle_sequence(id)?;
        let sequence = &self.running[index];
        // The newest token has been chosen but has not run: taking it back moves no cursor.
        let keep = sequence.generated.len().checked_sub(tokens).ok_or(EngineError::Rollback { tokens })?;
        // One token must be pending, so that the next step has a row to choose from.
        let target = (sequence.request.prompt.len() + keep).saturating_sub(1);
        let ran = sequence.slot.position().saturating_sub(target);
        if !sequence.slot.can_roll_back(ran, self.config.rollback) {
            return Err(EngineError::Rollback { tokens });
        }
        // What is written again must not be what a snapshot shares.
        self.own_pages_from(index, target)?;
        self.running[index].slot.rollback(ran);
        let taken_back = self.running[index].generated.split_off(keep);
        taken_back.iter().for_each(|token| self.running[index].history.remove(*token));
        Ok(())
    }

    /// Tokens of a running sequence that have been submitted to the backend or restored.
    pub fn position(&self, id: SequenceId) -> Option<usize> {
        self.running.iter().find(|s| s.id == id).map(|s| s.slot.position())
    }

    /// The index of a running sequence that no step in flight uses.
    pub(crate) fn idle_sequence(&self, id: SequenceId) -> Result<usize, EngineError> {
        let index = self.running.iter().position(|s| s.id == id).ok_or(EngineError::UnknownSequence)?;
        match self.running[index].steps_in_flight {
            0 => Ok(index),
            _ => Err(EngineError::InFlight),
        }
    }
}

/// Pages, slots of sequences and slots of snapshots, all free.
fn pools(layout: &CacheLayout, config: &EngineConfig) -> (KvPages, StateSlots, CellPool) {
    let (own, all) = (config.max_sequences as u32, layout.slots as u32);
    let pages = KvPages::new(layout, config.rollback.tokens(), |group| sequence_pages(group, config));
    (pages, StateSlots::new(config.max_sequences), CellPool::new(own..all))
}

/// A cache as the configuration wants it. Where what snapshots do not share is large beside the keys and values that
/// they do, they stand further apart.
fn prefix_cache(layout: &CacheLayout, config: &EngineConfig) -> Option<PrefixCache> {
    let wanted = config.prefix_cache?;
    let usual = SnapshotShares::of(layout, config).distance().unwrap_or(1024);
    let every = wanted.every.unwrap_or(usual.clamp(256, 8192)).next_multiple_of(SSM_CHUNK);
    Some(PrefixCache::new(wanted.bytes, every))
}
