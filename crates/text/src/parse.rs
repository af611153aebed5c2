//! A model's answer, while it arrives, to reasoning, content and tool calls. Knows text and tags; not
//! tokens, and not who reads the events.
//!
//! The rules, which hold for any cut of the text into pieces:
//!
//! - Reasoning ends at its closing tag, or at a tool call when the model forgets the tag. Newlines around it
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

mod dialects;
mod extent;
mod harmony;
mod schema;
mod style;
mod tagged;
mod tags;

use serde_json::Value;

pub use dialects::{Arguments, CallDialect, Calls};
use harmony::HarmonyParser;
use schema::Tools;
pub use style::{OutputStyle, ReasoningStart, ThinkTags};
use tagged::TagParser;

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

/// Splits one answer. Feed it text as it comes; every piece returns the events that are certain by then.
#[derive(Clone, Debug)]
pub struct OutputParser {
    inner: Inner,
    options: ParseOptions,
    /// Some content or a call was given out.
    answered: bool,
    /// The reasoning so far, kept only for `force_nonempty_content`.
    reasoning: String,
}

#[derive(Clone, Debug)]
enum Inner {
    Tags(TagParser),
    Channels(HarmonyParser),
}

impl OutputParser {
    /// A parser for one answer in `style`; `tools` are those of the request, whose schemas give the
    /// arguments their types.
    pub fn new(style: OutputStyle, tools: &[Value], options: ParseOptions) -> Self {
        let tools = Tools::new(tools);
        let inner = match style.channels {
            true => Inner::Channels(HarmonyParser::new(style, tools)),
            false => Inner::Tags(TagParser::new(style, tools)),
        };
        Self { inner, options, answered: false, reasoning: String::new() }
    }

    /// Takes more text; returns what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<Event> {
        let events = match &mut self.inner {
            Inner::Tags(parser) => parser.push(text),
            Inner::Channels(parser) => parser.push(text),
        };
        self.note(events)
    }

    /// The end of the answer: returns the rest. The parser is not to be used again.
    pub fn finish(&mut self) -> Vec<Event> {
        let events = match &mut self.inner {
            Inner::Tags(parser) => parser.finish(),
            Inner::Channels(parser) => parser.finish(),
        };
        let mut events = self.note(events);
        if self.options.force_nonempty_content && !self.answered && !self.reasoning.is_empty() {
            events.push(Event::Content(std::mem::take(&mut self.reasoning)));
        }
        Event::merge(events)
    }

    fn note(&mut self, events: Vec<Event>) -> Vec<Event> {
        for event in &events {
            match event {
                Event::Reasoning(text) if self.options.force_nonempty_content => {
                    self.reasoning.push_str(text)
                }
                Event::Reasoning(_) => {}
                Event::Content(text) => self.answered |= !tags::is_blank(text),
                Event::ToolCall { .. } => self.answered = true,
            }
        }
        Event::merge(events)
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
