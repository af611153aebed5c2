//! One sequence: what was asked, what ran, what came out.

use crate::cache::{PageList, Slot};
use crate::sample::SamplingParams;
use crate::snapshot::Snapshot;

/// Handle of a submitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// A request to continue a prompt.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Prompt tokens; at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to generate; `None` means until a stop token or the end of the context.
    pub max_tokens: Option<usize>,
    /// Tokens that end the answer.
    pub stop_tokens: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Continue from here instead of from nothing, if the prompt starts with the snapshot's tokens.
    pub resume: Option<std::sync::Arc<Snapshot>>,
    /// Take a snapshot when this many prompt tokens have run, unless the sequence resumes beyond them.
    pub snapshot_at: Option<usize>,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was chosen.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The context is full.
    Context,
    /// It was cancelled.
    Cancelled,
}

/// A request that holds a slot and pages.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub id: SequenceId,
    pub request: Request,
    pub slot: Slot,
    pub pages: PageList,
    pub generated: Vec<u32>,
    /// Prompt tokens that a snapshot spared.
    pub reused: usize,
    /// Prompt plus generated tokens may not exceed this.
    pub limit: usize,
}

impl Request {
    /// The first thing that makes no sense, as a sentence.
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
}

impl Sequence {
    /// Tokens known so far: prompt and generated.
    pub fn len(&self) -> usize {
        self.request.prompt.len() + self.generated.len()
    }

    /// The token at a position.
    pub fn token(&self, position: usize) -> u32 {
        match position.checked_sub(self.request.prompt.len()) {
            None => self.request.prompt[position],
            Some(i) => self.generated[i],
        }
    }

    /// Tokens that are known and have not run.
    pub fn pending(&self) -> usize {
        self.len() - self.slot.position()
    }

    /// How many tokens the next step may take, given its room: a chunk never runs past the place where
    /// a snapshot is wanted.
    pub fn next_chunk(&self, room: usize) -> usize {
        let position = self.slot.position();
        let boundary =
            self.request.snapshot_at.filter(|at| *at > position).map_or(usize::MAX, |at| at - position);
        self.pending().min(room).min(boundary)
    }

    /// Why the sequence ends after `token`, if it does.
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
