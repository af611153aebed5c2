//! One answer as its tokens come: detokenized, split into thought, content and tool calls, collected.
//!
//! Knows no engine loop and no clock, so that a program may run many at once, or never block.

use std::sync::Arc;

use mambo_engine::{Choice, Engine, Event, FinishReason, Request, SequenceId, Snapshot};
use mambo_text::Event as Piece;
use serde_json::Value;

use crate::{GenerateOptions, ModelText, Prompt, RuntimeError, TokenPieces};

/// What came of a prompt.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The thought.
    pub reasoning: String,
    /// The answer.
    pub content: String,
    /// Calls of tools: name and arguments.
    pub tool_calls: Vec<(String, Value)>,
    /// Every chosen token, the stop token included.
    pub choices: Vec<Choice>,
    /// Why it ended.
    pub finish: FinishReason,
    /// The snapshot asked for.
    pub snapshot: Option<Arc<Snapshot>>,
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Prompt tokens that a snapshot spared.
    pub reused_tokens: usize,
}

impl Default for Reply {
    /// A reply that has said nothing yet.
    fn default() -> Reply {
        Reply {
            reasoning: String::new(),
            content: String::new(),
            tool_calls: Vec::new(),
            choices: Vec::new(),
            finish: FinishReason::Cancelled,
            snapshot: None,
            prompt_tokens: 0,
            reused_tokens: 0,
        }
    }
}

impl Reply {
    /// The name of the way it ended, as APIs write it.
    pub fn finish_name(&self) -> &'static str {
        match self.finish {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Context => "context",
            FinishReason::Cancelled => "cancelled",
            FinishReason::Failed(_) => "error",
        }
    }

    /// Adds what was said next.
    pub fn add(&mut self, piece: &Piece) {
        match piece {
            Piece::Reasoning(text) => self.reasoning.push_str(text),
            Piece::Content(text) => self.content.push_str(text),
            Piece::ToolCall { name, arguments } => self.tool_calls.push((name.clone(), arguments.clone())),
        }
    }
}

/// A running sequence whose tokens become a [`Reply`].
pub struct ReplyStream {
    id: SequenceId,
    reply: Reply,
    pieces: TokenPieces,
    finished: bool,
}

impl ReplyStream {
    /// Submits a prompt; the engine's next steps run it.
    pub fn start(
        engine: &mut Engine,
        text: &ModelText,
        prompt: Prompt,
        options: GenerateOptions,
    ) -> Result<ReplyStream, RuntimeError> {
        let (prompt_tokens, reused_tokens) = (prompt.tokens.len(), prompt.reused_tokens());
        let reply = Reply { prompt_tokens, reused_tokens, ..Reply::default() };
        let pieces = TokenPieces::new(text, prompt.style, &prompt.tools);
        let id = engine.submit(Request {
            prompt: prompt.tokens,
            max_tokens: options.max_tokens,
            stop_tokens: text.stop_tokens().to_vec(),
            sampling: options.sampling.unwrap_or_else(|| text.sampling().clone()),
            resume: prompt.resume,
            snapshot_at: prompt.snapshot_at,
            ..Request::default()
        })?;
        Ok(ReplyStream { id, reply, pieces, finished: false })
    }

    /// The sequence whose events this stream takes.
    pub fn id(&self) -> SequenceId {
        self.id
    }

    /// Whether the sequence has ended.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// The reply so far.
    pub fn reply(&self) -> &Reply {
        &self.reply
    }

    /// Takes an event of a step and returns the text that is certain with it; other sequences' events are left alone.
    pub fn take(&mut self, event: &Event) -> Vec<Piece> {
        match event {
            Event::Token { id, choice } if *id == self.id => self.token(choice),
            Event::Snapshot { id, snapshot } if *id == self.id => {
                self.reply.snapshot = Some(snapshot.clone());
                Vec::new()
            }
            Event::Finished { id, reason } if *id == self.id => self.finish(reason.clone()),
            _ => Vec::new(),
        }
    }

    /// Ends the sequence wherever it is and returns the text that was held back.
    pub fn cancel(&mut self, engine: &mut Engine) -> Vec<Piece> {
        if self.finished {
            return Vec::new();
        }
        engine.cancel(self.id);
        self.finish(FinishReason::Cancelled)
    }

    /// The reply, whole if the sequence has ended.
    pub fn into_reply(self) -> Reply {
        self.reply
    }

    fn token(&mut self, choice: &Choice) -> Vec<Piece> {
        self.reply.choices.push(choice.clone());
        let pieces = self.pieces.push(choice.token);
        self.keep(pieces)
    }

    fn finish(&mut self, reason: FinishReason) -> Vec<Piece> {
        self.finished = true;
        self.reply.finish = reason;
        let pieces = self.pieces.finish();
        self.keep(pieces)
    }

    fn keep(&mut self, pieces: Vec<Piece>) -> Vec<Piece> {
        pieces.iter().for_each(|piece| self.reply.add(piece));
        pieces
    }
}
