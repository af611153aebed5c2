//! A prompt: tokens, the form of the answer they lead to, and what of them ran before.

use std::sync::Arc;

use mambo_engine::Snapshot;
use mambo_text::OutputStyle;
use serde_json::Value;

/// What a model is to answer or to continue.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// The tokens; with a chat template, up to the start of the answer.
    pub tokens: Vec<u32>,
    /// The form of the answer: where thoughts and tool calls stand in it.
    pub style: OutputStyle,
    /// The tools on offer, whose schemas give arguments their types.
    pub tools: Vec<Value>,
    /// A snapshot to continue from, if the prompt starts with its tokens.
    pub resume: Option<Arc<Snapshot>>,
    /// Take a snapshot when this many tokens have run.
    pub snapshot_at: Option<usize>,
}

impl Prompt {
    /// A prompt that runs from its first token and leaves no snapshot.
    pub fn new(tokens: Vec<u32>, style: OutputStyle) -> Prompt {
        Prompt { tokens, style, tools: Vec::new(), resume: None, snapshot_at: None }
    }

    /// Tokens that need not run because a snapshot holds them.
    pub fn reused_tokens(&self) -> usize {
        let snapshot = self.resume.as_ref().filter(|snapshot| snapshot.begins(&self.tokens));
        snapshot.map_or(0, |snapshot| snapshot.tokens().len())
    }
}
