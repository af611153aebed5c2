//! Answers as messages in channels, the harmony format of gpt-oss:
//!
//! ```text
//! <|channel|>analysis<|message|>reasoning<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{..}<|call|>
//! <|start|>assistant<|channel|>final<|message|>content<|return|>
//! ```
//!
//! Headers are never shown. Text outside messages, malformed headers and malformed calls are content.

use super::Event;
use super::dialects::{Body, json};
use super::schema::Tools;
use super::style::{OutputStyle, ReasoningStart, ThinkTags};
use super::tags;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
pub(super) const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";
const RETURN: &str = "<|return|>";
const CALL: &str = "<|call|>";

/// Every tag of the format.
pub(super) const TAGS: [&str; 7] = [START, CHANNEL, CONSTRAIN, MESSAGE, END, RETURN, CALL];
/// What ends a message: its own end, or the beginning of the next one.
const ENDS: [&str; 5] = [END, RETURN, CALL, START, CHANNEL];
/// What stands around reasoning.
pub(super) const ANALYSIS: ThinkTags = ThinkTags { open: "<|channel|>analysis<|message|>", close: END };

/// Longer than any header: a name has at most a few dozen letters.
const MAX_HEADER: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Content,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// Before `<|message|>`: the buffer begins with the header.
    Header,
    Message(Kind),
    /// In a call: the buffer begins with its header, and its arguments from this byte on.
    Call {
        name: String,
        body_at: usize,
        searched_bytes: usize,
    },
    /// Between messages; whether text stood there already.
    Outside {
        is_talking: bool,
    },
}

/// Splits one answer at its channels.
#[derive(Clone, Debug)]
pub(super) struct HarmonyParser {
    tools: Tools,
    reads_calls: bool,
    state: State,
    buffer: String,
    /// What the message before this one was, until something is said in this one.
    before: Option<Kind>,
    events: Vec<Event>,
}

impl HarmonyParser {
    pub(super) fn new(style: OutputStyle, tools: Tools) -> Self {
        let state = match style.reasoning {
            Some(ReasoningStart::Open) => State::Message(Kind::Reasoning),
            Some(ReasoningStart::Closed) => State::Message(Kind::Content),
            _ => State::Header,
        };
        let reads_calls = style.calls.is_some();
        Self { tools, reads_calls, state, buffer: String::new(), before: None, events: Vec::new() }
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<Event> {
        self.buffer.push_str(text);
        while self.advance(false) {}
        std::mem::take(&mut self.events)
    }

    pub(super) fn finish(&mut self) -> Vec<Event> {
        while self.advance(true) {}
        std::mem::take(&mut self.events)
    }

    /// One step over the buffer; false when more text is needed, or at the end none is left.
    fn advance(&mut self, at_end: bool) -> bool {
        match self.state.clone() {
            State::Header => self.advance_header(at_end),
            State::Message(kind) => self.advance_message(kind, at_end),
            State::Call { name, body_at, searched_bytes } => {
                self.advance_call(&name, body_at, searched_bytes, at_end)
            }
            State::Outside { is_talking } => self.advance_outside(is_talking, at_end),
        }
    }

    fn advance_header(&mut self, at_end: bool) -> bool {
        let Some(at) = self.buffer.find(MESSAGE) else {
            if at_end && may_be_dropped(&self.buffer) {
                self.buffer.clear();
                return false;
            }
            // The tag may have begun in the last bytes.
            let certain = tags::certain_len(&self.buffer, &[MESSAGE]);
            if at_end || !may_be_header(&self.buffer[..certain]) {
                self.talk();
                return true;
            }
            return false;
        };
        let body_at = at + MESSAGE.len();
        let header = Some(&self.buffer[..at]).filter(|text| may_be_header(text)).and_then(Header::read);
        let Some(header) = header else {
            self.talk();
            return true;
        };
        self.state = match header.recipient {
            None => {
                self.buffer.drain(..body_at);
                State::Message(header.kind)
            }
            Some(name) if self.reads_calls => State::Call { name, body_at, searched_bytes: body_at },
            Some(_) => {
                // Nobody reads calls, so this is text, its header too.
                self.give(body_at, Kind::Content);
                State::Message(Kind::Content)
            }
        };
        true
    }

    /// What should have been a header is text: the tag that began it, if one did, and the rest is looked at
    /// again.
    fn talk(&mut self) {
        let text = self.buffer.trim_start();
        let first = [START, CHANNEL].into_iter().find(|tag| text.starts_with(tag));
        let len = first.map_or(0, |tag| self.buffer.len() - text.len() + tag.len());
        self.give(len, Kind::Content);
        self.state = State::Outside { is_talking: len > 0 };
    }

    fn advance_message(&mut self, kind: Kind, at_end: bool) -> bool {
        let Some((at, tag)) = tags::find_first(&self.buffer, &ENDS) else {
            let certain = if at_end { self.buffer.len() } else { tags::certain_len(&self.buffer, &ENDS) };
            self.give(certain, kind);
            return false;
        };
        self.give(at, kind);
        self.before = Some(kind);
        self.end_message(0, tag);
        true
    }

    /// Goes on after a message whose end tag stands at `at`.
    fn end_message(&mut self, at: usize, tag: &str) {
        let begins_next = tag == START || tag == CHANNEL;
        self.buffer.drain(..if begins_next { at } else { at + tag.len() });
        self.state = if begins_next { State::Header } else { State::Outside { is_talking: false } };
    }

    fn advance_call(&mut self, name: &str, body_at: usize, searched_bytes: usize, at_end: bool) -> bool {
        let found = tags::find_first(&self.buffer[searched_bytes..], &ENDS);
        let (end, tag) = match found {
            Some((at, tag)) => (searched_bytes + at, tag),
            // The tag of a call is also what ends the answer, and such a tag has no text.
            None if at_end => (self.buffer.len(), ""),
            None => {
                let searched_bytes = tags::certain_len(&self.buffer, &ENDS).max(searched_bytes);
                self.state = State::Call { name: name.to_owned(), body_at, searched_bytes };
                return false;
            }
        };
        match json::read_arguments(name, &self.buffer[body_at..end], &self.tools) {
            Body::Calls(calls) => {
                self.events
                    .extend(calls.into_iter().map(|(name, arguments)| Event::ToolCall { name, arguments }));
                self.before = None;
                self.end_message(end, tag);
            }
            // The tag stands inside a value.
            Body::Unfinished if !tag.is_empty() => {
                let searched_bytes = end + tag.len();
                self.state = State::Call { name: name.to_owned(), body_at, searched_bytes };
            }
            _ => {
                // The header is text, and what follows is read again: a message may begin in it.
                self.give(body_at, Kind::Content);
                self.state = State::Message(Kind::Content);
            }
        }
        true
    }

    fn advance_outside(&mut self, is_talking: bool, at_end: bool) -> bool {
        let Some((at, tag)) = tags::find_first(&self.buffer, &ENDS) else {
            let certain = if at_end { self.buffer.len() } else { tags::certain_len(&self.buffer, &ENDS) };
            if is_talking || !tags::is_blank(&self.buffer[..certain]) {
                self.give(certain, Kind::Content);
                self.state = State::Outside { is_talking: true };
            } else if at_end {
                self.buffer.clear();
            }
            return false;
        };
        match is_talking || !tags::is_blank(&self.buffer[..at]) {
            true => self.give(at, Kind::Content),
            false => _ = self.buffer.drain(..at),
        }
        self.end_message(0, tag);
        true
    }

    /// Gives out the first `len` bytes of the buffer. Two messages of a kind have a line each.
    fn give(&mut self, len: usize, kind: Kind) {
        if len == 0 {
            return;
        }
        let mut text: String = self.buffer.drain(..len).collect();
        if self.before.take() == Some(kind) {
            text.insert(0, '\n');
        }
        self.events.push(match kind {
            Kind::Reasoning => Event::Reasoning(text),
            Kind::Content => Event::Content(text),
        });
    }
}

/// What a header says.
struct Header {
    kind: Kind,
    /// The function of a call.
    recipient: Option<String>,
}

impl Header {
    /// Reads what stands before `<|message|>`: a role, a channel, a recipient beside either, a constraint.
    fn read(text: &str) -> Option<Header> {
        let text = text.trim_start();
        let text = text.strip_prefix(START).unwrap_or(text);
        let (role, channel) =
            text.split_once(CHANNEL).map_or((text, None), |(role, rest)| (role, Some(rest)));
        let mut recipient = None;
        let mut plain = |words: &str| -> Vec<String> {
            let mut others = Vec::new();
            for word in words.split_whitespace() {
                match word.strip_prefix("to=") {
                    Some(to) if !to.is_empty() => recipient = Some(to.to_owned()),
                    _ => others.push(word.to_owned()),
                }
            }
            others
        };
        if !matches!(plain(role).as_slice(), [] | [_]) || !may_be_role(role) {
            return None;
        }
        let (channel, constraint) = match channel.map(|rest| rest.split_once(CONSTRAIN).unwrap_or((rest, "")))
        {
            Some((channel, constraint)) => (plain(channel), constraint),
            None => (vec!["final".to_owned()], ""),
        };
        let has_tags = |text: &str| TAGS.iter().any(|tag| text.contains(tag));
        if constraint.split_whitespace().count() > 1 || has_tags(constraint) {
            return None;
        }
        let kind = match channel.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["analysis"] | ["analysis", "json" | "code"] => Kind::Reasoning,
            ["commentary" | "final"] | ["commentary", "json" | "code"] => Kind::Content,
            _ => return None,
        };
        let recipient = recipient.map(|to| to.strip_prefix("functions.").unwrap_or(&to).to_owned());
        Some(Header { kind, recipient })
    }
}

/// Whether text before a channel can be a role, perhaps with a recipient.
fn may_be_role(text: &str) -> bool {
    let text = text.trim();
    text.is_empty() || text.starts_with("to=") || text == "assistant" || text.starts_with("assistant to=")
}

/// Whether text can still become a header.
fn may_be_header(text: &str) -> bool {
    if text.len() > MAX_HEADER {
        return false;
    }
    let text = text.trim_start();
    let begins = |text: &str, what: &str| what.starts_with(text) || text.starts_with(what);
    let Some(text) = text.strip_prefix(START).or(Some(text).filter(|text| !START.starts_with(text))) else {
        return true;
    };
    let text = text.trim_start();
    if "assistant".starts_with(text) {
        return true;
    }
    let rest = text.strip_prefix("assistant").unwrap_or(text).trim_start();
    let stops = [END, RETURN, CALL, START];
    let goes_on = [CHANNEL, MESSAGE, CONSTRAIN, "to="].iter().any(|what| begins(rest, what));
    goes_on && !stops.iter().any(|stop| rest.contains(stop))
}

/// Whether a header that never ended says nothing: no name, no words of its own.
fn may_be_dropped(text: &str) -> bool {
    let text = &text[..tags::certain_len(text, &TAGS)];
    let text = TAGS.iter().fold(text.to_owned(), |text, tag| text.replace(tag, " "));
    let known = ["assistant", "analysis", "commentary", "final"];
    text.split_whitespace().all(|word| known.iter().any(|full| full.starts_with(word)))
}
