//! One answer as its tokens come from the engine: text, thought, tool calls, stop strings and log probabilities. What a
//! dialect makes of it is the dialect's.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use mambo_engine::{FinishReason, Logprobs, Reuse};
use mambo_runtime::{ModelText, Piece, TokenPieces};
use mambo_text::{OutputStyle, StopStrings};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::error::{ApiError, Kind};
use crate::job::{Said, Update};
use crate::record::AnswerRecord;

/// Something that a client may be told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Delta {
    /// The prompt is being read.
    Started,
    /// More of the thought.
    Reasoning(String),
    /// More of the answer.
    Content(String),
    /// A whole call of a tool.
    ToolCall {
        /// The tool.
        name: String,
        /// Its arguments: an object.
        arguments: Value,
    },
    /// Tokens with their log probabilities, where they were asked for.
    Tokens(Vec<TokenLogprobs>),
    /// The end; nothing comes after.
    End(End),
}

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenLogprobs {
    pub token: u32,
    pub logprobs: Logprobs,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    /// The model said all.
    Stop,
    /// A stop string was found.
    StopString(String),
    /// As many tokens as were asked for, or as fit.
    Length,
    /// It called tools.
    ToolCalls,
    /// Its time was over.
    TimedOut,
    /// The server stops.
    ShuttingDown,
    /// It failed.
    Failed(ApiError),
}

impl End {
    /// Its name in logs.
    pub fn name(&self) -> &'static str {
        match self {
            End::Stop | End::StopString(_) => "stop",
            End::Length => "length",
            End::ToolCalls => "tool_calls",
            End::TimedOut => "time_limit",
            End::ShuttingDown => "shutdown",
            End::Failed(_) => "error",
        }
    }
}

/// What an answer took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    pub reasoning_tokens: usize,
    pub reuse: Reuse,
    pub time_to_first_token: Option<Duration>,
    pub generating: Duration,
}

/// How text is made from tokens.
pub(crate) struct TextOptions {
    pub style: OutputStyle,
    pub tools: Vec<Value>,
    pub stop: Vec<String>,
    pub logprobs: bool,
    /// Whether the times of its tokens are kept.
    pub token_times: bool,
}

/// An answer that is being generated. Dropping it cancels the sequence.
pub(crate) struct Generation {
    updates: UnboundedReceiver<Update>,
    pieces: TokenPieces,
    stop: StopStrings,
    logprobs: bool,
    called: bool,
    thinking: bool,
    ready: VecDeque<Delta>,
    ended: bool,
    begun: Instant,
    first_token: Option<Instant>,
    usage: Usage,
    /// Milliseconds after which the engine gave each token, if they are kept.
    times: Option<Vec<f64>>,
    record: AnswerRecord,
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.record.close(&self.usage);
    }
}

impl Generation {
    pub fn new(
        text: &ModelText,
        options: TextOptions,
        prompt_tokens: usize,
        updates: UnboundedReceiver<Update>,
        record: AnswerRecord,
    ) -> Generation {
        let TextOptions { style, tools, stop, logprobs, token_times } = options;
        Generation {
            updates,
            pieces: TokenPieces::new(text, style, &tools),
            thinking: style.starts_in_reasoning(),
            stop: StopStrings::new(stop),
            logprobs,
            called: false,
            ready: Default::default(),
            ended: false,
            begun: Instant::now(),
            first_token: None,
            usage: Usage { prompt_tokens, ..Usage::default() },
            times: token_times.then(Vec::new),
            record,
        }
    }

    /// What was used so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// When the engine gave each token, in milliseconds since the answer was asked for, where that is kept.
    pub fn token_times(&self) -> Option<&[f64]> {
        self.times.as_deref()
    }

    /// The next thing to tell; nothing after the end.
    pub async fn next(&mut self) -> Option<Delta> {
        loop {
            if let Some(delta) = self.ready.pop_front() {
                return Some(delta);
            }
            if self.ended {
                return None;
            }
            match self.updates.recv().await {
                Some(update) => self.take(update),
                None => self.end(End::Failed(ApiError::new(
                    Kind::Unavailable,
                    "the engine has ended; start the server again",
                ))),
            }
        }
    }

    fn take(&mut self, update: Update) {
        match update {
            Update::Started(reuse) => {
                self.usage.reuse = reuse;
                self.ready.push_back(Delta::Started);
            }
            Update::Snapshot(_) => {}
            Update::Tokens(tokens) => tokens.into_iter().for_each(|said| self.take_token(said)),
            Update::Embedding(_) => {}
            Update::Finished(reason) => self.finish(reason),
            Update::TimedOut => self.close(End::TimedOut),
            Update::ShuttingDown => self.close(End::ShuttingDown),
        }
    }

    fn take_token(&mut self, Said { choice, at }: Said) {
        // What came together with a stop string is not part of the answer.
        if self.ended {
            return;
        }
        let first = *self.first_token.get_or_insert(at);
        self.usage.time_to_first_token.get_or_insert(first - self.begun);
        self.usage.generating = at - first;
        self.usage.completion_tokens += 1;
        self.usage.reasoning_tokens += usize::from(self.thinking);
        if let Some(times) = &mut self.times {
            times.push((at - self.begun).as_secs_f64() * 1e3);
        }
        if let Some(logprobs) = choice.logprobs.filter(|_| self.logprobs) {
            self.ready.push_back(Delta::Tokens(vec![TokenLogprobs { token: choice.token, logprobs }]));
        }
        let pieces = self.pieces.push(choice.token);
        self.give(pieces);
    }

    fn finish(&mut self, reason: FinishReason) {
        let end = match reason {
            FinishReason::Stop => End::Stop,
            FinishReason::Length | FinishReason::Context => End::Length,
            FinishReason::Cancelled => End::ShuttingDown,
            FinishReason::Failed(why) => return self.end(End::Failed((&*why).into())),
        };
        self.close(end);
    }

    /// Gives out what was held back, then ends.
    fn close(&mut self, end: End) {
        let pieces = self.pieces.finish();
        self.give(pieces);
        if self.ended {
            return;
        }
        let held = self.stop.finish();
        if !held.is_empty() {
            self.ready.push_back(Delta::Content(held));
        }
        let end = if end == End::Stop && self.called { End::ToolCalls } else { end };
        self.end(end);
    }

    fn end(&mut self, end: End) {
        self.ended = true;
        self.record.note_end(&end);
        self.ready.push_back(Delta::End(end));
        // The engine need not go on for an answer that has ended.
        self.updates.close();
    }

    fn give(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            if self.ended {
                return;
            }
            self.record.note_piece(&piece);
            match piece {
                Piece::Reasoning(text) => self.say(Delta::Reasoning(text)),
                Piece::Content(text) => {
                    self.thinking = false;
                    let passed = self.stop.push(&text);
                    if !passed.text.is_empty() {
                        self.say(Delta::Content(passed.text));
                    }
                    if let Some(stop) = passed.stop {
                        self.end(End::StopString(stop));
                    }
                }
                Piece::ToolCall { name, arguments } => {
                    (self.thinking, self.called) = (false, true);
                    self.ready.push_back(Delta::ToolCall { name, arguments });
                }
            }
        }
    }

    /// Gives more text out, as one with what has not been taken yet.
    fn say(&mut self, delta: Delta) {
        match (self.ready.back_mut(), &delta) {
            (Some(Delta::Content(said)), Delta::Content(more))
            | (Some(Delta::Reasoning(said)), Delta::Reasoning(more)) => said.push_str(more),
            _ => self.ready.push_back(delta),
        }
    }
}
