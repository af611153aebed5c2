//! A model's answer, while it arrives, to reasoning, content and tool calls. Knows text and tags; not
//! tokens, and not who reads the events.
//!
//! The rules, which hold for any cut of the text into pieces:
//!
//! - Reasoning ends at `</think>`, or at a tool call when the model forgets the tag. Newlines around it
//!   are dropped.
//! - Text that looks like the start of a call is held until the call is complete. A call that turns out
//!   broken or unfinished is given back as content, character by character: no text is lost but the tags
//!   themselves.
//! - A tag that is only mentioned (`<tool_call>` not followed by a call, `<think>` inside an answer) is text.
//! - A `</think>` without reasoning before it is dropped.
//!
//! ```
//! use mambo_text::{Event, OutputParser, OutputStyle, ParseOptions};
//!
//! let style = OutputStyle::detect("...<think>...</think>...", "<|im_start|>assistant\n<think>\n");
//! let mut parser = OutputParser::new(style, &[], ParseOptions::default());
//! assert_eq!(parser.push("17 + 25 </thi"), [Event::Reasoning("17 + 25".into())]);
//! assert_eq!(parser.push("nk>\n42"), [Event::Content("42".into())]);
//! assert_eq!(parser.finish(), []);
//! ```

mod call;
mod schema;
mod style;
mod tags;

use serde_json::Value;

use call::{Body, Opening};
use schema::Tools;
pub use style::{CallTags, OutputStyle, ReasoningStart};
use tags::{THINK_CLOSE, THINK_OPEN};

/// A piece of the answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// More of the reasoning.
    Reasoning(String),
    /// More of the answer.
    Content(String),
    /// A complete call of a tool.
    ToolCall {
        /// The function's name.
        name: String,
        /// Its arguments: an object.
        arguments: Value,
    },
}

/// What a caller may choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParseOptions {
    /// If the model said nothing outside its reasoning, the reasoning is given as content as well.
    pub force_nonempty_content: bool,
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The reasoning.
    pub reasoning: String,
    /// The text for the reader.
    pub content: String,
    /// The calls: name and arguments.
    pub tool_calls: Vec<(String, Value)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reasoning,
    Content,
    /// Inside a call: whitespace of this many bytes, then the opening tag, start the buffer.
    Call {
        lead_bytes: usize,
    },
}

/// Splits one answer. Feed it text as it comes; every piece returns the events that are certain by then.
#[derive(Clone, Debug)]
pub struct OutputParser {
    style: OutputStyle,
    tools: Tools,
    options: ParseOptions,
    state: State,
    /// Text not yet given out.
    buffer: String,
    /// Up to where a call in the buffer was searched for its end.
    searched_bytes: usize,
    /// Leading newlines are to be skipped: right after a tag.
    fresh: bool,
    /// Some content or a call was given out.
    answered: bool,
    called: bool,
    reasoning_begun: bool,
    /// The reasoning so far, kept only for `force_nonempty_content`.
    reasoning: String,
    events: Vec<Event>,
}

impl OutputParser {
    /// A parser for one answer in `style`; `tools` are those of the request, whose schemas give the
    /// arguments their types.
    pub fn new(style: OutputStyle, tools: &[Value], options: ParseOptions) -> Self {
        let in_reasoning = style.reasoning == Some(ReasoningStart::Open);
        Self {
            style,
            tools: Tools::new(tools),
            options,
            state: if in_reasoning { State::Reasoning } else { State::Content },
            buffer: String::new(),
            searched_bytes: 0,
            fresh: in_reasoning,
            answered: false,
            called: false,
            reasoning_begun: false,
            reasoning: String::new(),
            events: Vec::new(),
        }
    }

    /// Takes more text; returns what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<Event> {
        self.buffer.push_str(text);
        while self.advance(false) {}
        Event::merge(std::mem::take(&mut self.events))
    }

    /// The end of the answer: returns the rest. The parser is not to be used again.
    pub fn finish(&mut self) -> Vec<Event> {
        while self.advance(true) {}
        if self.options.force_nonempty_content && !self.answered && !self.reasoning.is_empty() {
            let reasoning = std::mem::take(&mut self.reasoning);
            self.events.push(Event::Content(reasoning));
        }
        Event::merge(std::mem::take(&mut self.events))
    }

    /// Parses an answer that is already complete. Under `force_nonempty_content` reasoning that became the
    /// content is no longer counted as reasoning.
    pub fn parse_whole(mut self, text: &str) -> Answer {
        let mut events = self.push(text);
        let moves = self.options.force_nonempty_content;
        events.extend(self.finish());
        let mut answer = Answer::default();
        for event in events {
            match event {
                Event::Reasoning(text) => answer.reasoning.push_str(&text),
                Event::Content(text) => answer.content.push_str(&text),
                Event::ToolCall { name, arguments } => answer.tool_calls.push((name, arguments)),
            }
        }
        if moves && !self.answered {
            answer.reasoning.clear();
        }
        answer
    }

    /// One step over the buffer; false when more text is needed, or at the end none is left.
    fn advance(&mut self, at_end: bool) -> bool {
        match self.state {
            State::Call { lead_bytes } => self.advance_call(lead_bytes, at_end),
            State::Reasoning | State::Content => self.advance_text(at_end),
        }
    }

    fn advance_text(&mut self, at_end: bool) -> bool {
        if self.fresh {
            let newlines = self.buffer.len() - self.buffer.trim_start_matches(['\n', '\r']).len();
            self.buffer.drain(..newlines);
            self.fresh = self.buffer.is_empty();
        }
        let known = self.style.tags();
        let Some((at, tag)) = tags::find_first(&self.buffer, &known) else {
            self.give_certain_text(&known, at_end);
            return false;
        };
        let after = at + tag.len();
        match (self.state, tag) {
            (State::Reasoning, THINK_CLOSE) => {
                self.give(at, true);
                self.skip(tag);
                self.state = State::Content;
                self.fresh = true;
            }
            (State::Reasoning, THINK_OPEN) if !self.reasoning_begun && tags::is_blank(&self.buffer[..at]) => {
                self.buffer.drain(..after);
                self.fresh = true;
            }
            (_, THINK_CLOSE) if !self.answered && tags::is_blank(&self.buffer[..at]) => {
                self.buffer.drain(..after);
                self.fresh = true;
            }
            (_, THINK_CLOSE) => {
                self.give(at, false);
                self.skip(tag);
            }
            (_, THINK_OPEN) if self.opens_late(at) => {
                self.buffer.drain(..after);
                self.state = State::Reasoning;
                self.fresh = true;
            }
            (_, THINK_OPEN) => self.give(after, false),
            _ => match call::looks_like_call(&self.buffer[after..]) {
                Opening::No => self.give(after, false),
                Opening::Unknown if !at_end => {
                    // The call may still come: what is before it can go, the tag must wait.
                    let text = self.buffer[..at].trim_end().len();
                    self.give(text, false);
                    return false;
                }
                Opening::Yes | Opening::Unknown => {
                    let text = self.buffer[..at].trim_end().len();
                    self.give(text, false);
                    self.state = State::Call { lead_bytes: at - text };
                    self.searched_bytes = at - text + tag.len();
                }
            },
        }
        true
    }

    /// Whether a `<think>` in content opens the reasoning after all: the first thing the model says.
    fn opens_late(&self, at: usize) -> bool {
        self.state == State::Content
            && self.style.reasoning == Some(ReasoningStart::Unknown)
            && !self.answered
            && tags::is_blank(&self.buffer[..at])
    }

    /// No tag in the buffer: gives out what cannot be the start of one, nor blanks before one.
    fn give_certain_text(&mut self, known: &[&str], at_end: bool) {
        if !at_end {
            let text = tags::certain_len(&self.buffer, known);
            self.give(self.buffer[..text].trim_end().len(), false);
        } else if self.called && tags::is_blank(&self.buffer) {
            self.buffer.clear();
        } else {
            self.give(self.buffer.len(), false);
        }
    }

    fn advance_call(&mut self, lead_bytes: usize, at_end: bool) -> bool {
        let Some(tags) = self.style.calls else { return false };
        let body_at = lead_bytes + tags.open.len();
        let Some(found) = self.buffer[self.searched_bytes..].find(tags.close) else {
            if at_end {
                self.give_back(body_at);
                return true;
            }
            // The closing tag may begin in the last bytes.
            self.searched_bytes = tags::certain_len(&self.buffer, &[tags.close]).max(body_at);
            return false;
        };
        let close_at = self.searched_bytes + found;
        match call::parse(&self.buffer[body_at..close_at], &self.tools) {
            Body::Calls(calls) => {
                self.buffer.drain(..close_at + tags.close.len());
                for (name, arguments) in calls {
                    self.events.push(Event::ToolCall { name, arguments });
                }
                (self.answered, self.called, self.fresh) = (true, true, true);
                self.state = State::Content;
            }
            Body::Unfinished => self.searched_bytes = close_at + tags.close.len(),
            Body::Broken => self.give_back(body_at),
        }
        true
    }

    /// The held text is no call: its opening tag becomes content and the rest is read again, since a good
    /// call may follow inside it.
    fn give_back(&mut self, body_at: usize) {
        self.state = State::Content;
        self.fresh = false;
        self.give(body_at, false);
    }

    /// Gives out the first `len` bytes of the buffer, with `trimmed` without the blanks at their end.
    fn give(&mut self, len: usize, trimmed: bool) {
        let mut text: String = self.buffer.drain(..len).collect();
        if trimmed {
            text.truncate(text.trim_end().len());
        }
        if text.is_empty() {
            return;
        }
        if self.state == State::Reasoning {
            self.reasoning_begun = true;
            if self.options.force_nonempty_content {
                self.reasoning.push_str(&text);
            }
            self.events.push(Event::Reasoning(text));
        } else {
            self.answered |= !tags::is_blank(&text);
            self.events.push(Event::Content(text));
        }
    }

    fn skip(&mut self, tag: &str) {
        self.buffer.drain(..tag.len());
    }
}

impl Event {
    /// Joins neighbouring pieces of the same kind: the form in which two streams can be compared.
    pub fn merge(events: impl IntoIterator<Item = Event>) -> Vec<Event> {
        let mut merged: Vec<Event> = Vec::new();
        for event in events {
            match (merged.last_mut(), event) {
                (Some(Event::Reasoning(text)), Event::Reasoning(more)) => text.push_str(&more),
                (Some(Event::Content(text)), Event::Content(more)) => text.push_str(&more),
                (_, event) => merged.push(event),
            }
        }
        merged
    }
}
