//! One sequence: its request, its progress, its output.

use std::fmt;
use std::sync::Arc;

use crate::cache::{SequencePages, Slot};
use crate::error::Failure;
use crate::history::History;
use crate::prefix::Marks;
use crate::sample::SamplingParams;
use crate::snapshot::Snapshot;

/// Handle of a submitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// Restricts which tokens may come next, as a grammar does.
pub trait TokenMask: fmt::Debug + Send + Sync {
    /// Sets the bits of the tokens that may follow those generated so far; `mask` comes cleared, and bit `t % 32` of
    /// word `t / 32` is token `t`. The backend asks once for every choice, when it is about to make it and perhaps on
    /// several threads for several sequences, so that the time this takes overlaps the step where it can.
    fn allow(&self, generated: &[u32], mask: &mut [u32]);
}

/// A request to continue a prompt.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Prompt tokens; at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to generate; `None` means until a stop token or the end of the context.
    pub max_tokens: Option<usize>,
    /// Tokens that end the answer.
    pub stop_tokens: Vec<u32>,
    /// Give the hidden row of the last prompt token, and generate nothing.
    pub embeds: bool,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// What tokens are allowed; none allows all.
    pub mask: Option<Arc<dyn TokenMask>>,
    /// Continue from here instead of from nothing, if the prompt starts with the snapshot's tokens.
    pub resume: Option<Arc<Snapshot>>,
    /// Take a snapshot when this many prompt tokens have run, unless the sequence resumes beyond them.
    pub snapshot_at: Option<usize>,
    /// Whether the prefix cache may serve the prompt and keep it; without a cache it makes no difference.
    pub uses_cache: bool,
    /// Prompt tokens after which later prompts may go on differently: the ends of turns. The cache keeps states there.
    pub turn_ends: Vec<usize>,
    /// Requests of higher priority start, and have their prompts read, before others.
    pub priority: i32,
}

/// Why a sequence ended.
#[derive(Clone, Debug, PartialEq)]
pub enum FinishReason {
    /// A stop token was chosen, or the embedding is there.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The context is full.
    Context,
    /// It was cancelled.
    Cancelled,
    /// It failed, for the reason given.
    Failed(Failure),
}

/// A request that holds a slot and pages.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub id: SequenceId,
    pub request: Request,
    /// Its position counts what was submitted to the backend.
    pub slot: Slot,
    pub pages: SequencePages,
    pub generated: Vec<u32>,
    /// The tokens so far, counted, where penalties need them.
    pub history: History,
    /// Where the prefix cache wants snapshots.
    pub marks: Marks,
    /// Prompt tokens that were restored from a snapshot instead of run.
    pub reused: usize,
    /// Prompt plus generated tokens may not exceed this.
    pub limit: usize,
    /// Submitted steps that hold rows of this sequence.
    pub steps_in_flight: usize,
    /// Tokens that those steps choose and that have not been collected yet.
    pub unseen: usize,
}

impl Request {
    /// The first invalid setting, as a sentence.
    pub fn problem(&self) -> Option<String> {
        if self.max_tokens == Some(0) {
            return Some("max_tokens is 0; ask for at least one token".to_owned());
        }
        let prompt = self.prompt.len();
        match self.snapshot_at {
            Some(at) if at == 0 || at > prompt => {
                Some(format!("snapshot_at is {at}; it must be between 1 and the prompt's {prompt} tokens"))
            }
            _ => self.sampling.problem(),
        }
    }

    /// Most tokens of the prompt and what is generated, in a context of so many.
    pub fn limit(&self, context: usize) -> usize {
        let most = if self.embeds { Some(0) } else { self.max_tokens };
        most.map_or(context, |most| self.prompt.len().saturating_add(most).min(context))
    }

    /// Whether a token can be chosen before the one before it has been seen.
    pub fn can_run_ahead(&self) -> bool {
        self.mask.is_none() && !self.sampling.needs_history()
    }
}

impl Sequence {
    /// Tokens known so far: prompt and generated.
    pub fn len(&self) -> usize {
        self.request.prompt.len() + self.generated.len()
    }

    /// The token at a position, if it has been seen.
    pub fn token(&self, position: usize) -> Option<u32> {
        match position.checked_sub(self.request.prompt.len()) {
            None => Some(self.request.prompt[position]),
            Some(index) => self.generated.get(index).copied(),
        }
    }

    /// Tokens that are chosen, seen or not, and have not been submitted.
    pub fn pending(&self) -> usize {
        self.len() + self.unseen - self.slot.position()
    }

    /// How many tokens the next step may take, given its room: a chunk never runs beyond the place where a snapshot is
    /// wanted, and no step runs ahead of a choice that may be the last one.
    pub fn next_chunk(&self, room: usize) -> usize {
        let position = self.slot.position();
        let stops = [self.request.snapshot_at, self.marks.next()].into_iter().flatten();
        let boundary = stops.filter(|at| *at >= position).map(|at| at - position).min().unwrap_or(usize::MAX);
        let is_open = self.unseen == 0 || (self.request.can_run_ahead() && !self.is_full(self.unseen));
        if is_open { self.pending().min(room).min(boundary) } else { 0 }
    }

    /// Whether so many more tokens end the sequence for certain.
    fn is_full(&self, more: usize) -> bool {
        let generated = self.generated.len() + more;
        self.request.max_tokens.is_some_and(|max| generated >= max) || self.len() + more >= self.limit
    }

    /// Why the sequence ends after `token`, which was just added, if it does.
    pub fn finish_after(&self, token: u32) -> Option<FinishReason> {
        if self.request.stop_tokens.contains(&token) {
            Some(FinishReason::Stop)
        } else if self.request.max_tokens.is_some_and(|max| self.generated.len() >= max) {
            Some(FinishReason::Length)
        } else if self.len() >= self.limit {
            Some(FinishReason::Context)
        } else {
            None
        }
    }
}
