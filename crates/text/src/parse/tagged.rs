//! Answers whose parts are marked by tags: reasoning between two, calls after one. Knows which tags there are
//! from the style; what a call says is the dialect's.

use serde_json::Value;

use super::Event;
use super::dialects::{Body, CallDialect, End, Opening};
use super::extent::Extent;
use super::schema::Tools;
use super::style::{OutputStyle, ReasoningStart};
use super::tags;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reasoning,
    Content,
    /// Inside a call: blanks of this many bytes, then the opening tag, start the buffer.
    Call {
        lead_bytes: usize,
        open_bytes: usize,
    },
}

/// Splits one answer at the tags of its style.
#[derive(Clone, Debug)]
pub(super) struct TagParser {
    style: OutputStyle,
    tools: Tools,
    state: State,
    /// Text not yet given out.
    buffer: String,
    /// Up to where a call in the buffer was searched for its closing tag.
    searched_bytes: usize,
    /// How far the brackets of a call without a closing tag were followed.
    extent: Extent,
    /// Leading newlines are to be skipped: right after a tag.
    fresh: bool,
    /// Some content or a call was given out.
    answered: bool,
    called: bool,
    /// Nothing but blanks came since the last call.
    after_call: bool,
    reasoning_begun: bool,
    events: Vec<Event>,
}

impl TagParser {
    pub(super) fn new(style: OutputStyle, tools: Tools) -> Self {
        let in_reasoning = style.starts_in_reasoning();
        Self {
            style,
            tools,
            state: if in_reasoning { State::Reasoning } else { State::Content },
            buffer: String::new(),
            searched_bytes: 0,
            extent: Extent::default(),
            fresh: in_reasoning,
            answered: false,
            called: false,
            after_call: false,
            reasoning_begun: false,
            events: Vec::new(),
        }
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
        match self.state {
            State::Call { lead_bytes, open_bytes } => self.advance_call(lead_bytes, open_bytes, at_end),
            State::Reasoning | State::Content => {
                self.skip_newlines();
                match self.bare_call() {
                    Some((lead_bytes, opening)) => self.advance_bare(lead_bytes, opening, at_end),
                    None => self.advance_text(at_end),
                }
            }
        }
    }

    fn skip_newlines(&mut self) {
        if self.fresh {
            let newlines = self.buffer.len() - self.buffer.trim_start_matches(['\n', '\r']).len();
            self.buffer.drain(..newlines);
            self.fresh = self.buffer.is_empty();
        }
    }

    /// Where a call without a tag begins in the buffer, or may begin with what comes next. It has to be the
    /// first thing said, or to follow another one.
    fn bare_call(&self) -> Option<(usize, Opening)> {
        let dialect = self.style.calls.filter(|dialect| dialect.stands_bare())?;
        if self.state != State::Content || self.answered && !self.after_call || self.tools.is_empty() {
            return None;
        }
        let mut rest = self.buffer.trim_start();
        if self.after_call {
            rest = rest.strip_prefix(';').map_or(rest, str::trim_start);
        }
        let lead_bytes = self.buffer.len() - rest.len();
        match rest.chars().next() {
            Some('{') => Some((lead_bytes, dialect.begins(rest))),
            None if self.after_call => Some((lead_bytes, Opening::Unknown)),
            _ => None,
        }
    }

    fn advance_bare(&mut self, lead_bytes: usize, opening: Opening, at_end: bool) -> bool {
        match opening {
            Opening::Yes => {
                self.extent = Extent::default();
                self.state = State::Call { lead_bytes, open_bytes: 0 };
            }
            Opening::Unknown if !at_end => return false,
            // At the end of the answer, or known to be something else: text.
            _ if self.buffer.len() == lead_bytes => return self.advance_text(at_end),
            _ => self.give(lead_bytes + 1),
        }
        true
    }

    fn advance_text(&mut self, at_end: bool) -> bool {
        let (open, close) = (self.style.think.open, self.style.think.close);
        let known = self.style.tags();
        let Some((at, tag)) = tags::find_first(&self.buffer, &known) else {
            self.give_certain_text(&known, at_end);
            return false;
        };
        let after = at + tag.len();
        match (self.state, tag) {
            (State::Reasoning, _) if tag == close => {
                self.give_trimmed(at);
                self.skip(tag);
                self.state = State::Content;
                self.fresh = true;
            }
            (State::Reasoning, _)
                if tag == open && !self.reasoning_begun && tags::is_blank(&self.buffer[..at]) =>
            {
                self.buffer.drain(..after);
                self.fresh = true;
            }
            (_, _) if tag == close && !self.answered && tags::is_blank(&self.buffer[..at]) => {
                self.buffer.drain(..after);
                self.fresh = true;
            }
            (_, _) if tag == close => {
                self.give(at);
                self.skip(tag);
            }
            (_, _) if tag == open && self.opens_late(at) => {
                self.buffer.drain(..after);
                self.state = State::Reasoning;
                self.fresh = true;
            }
            (_, _) if tag == open => self.give(after),
            _ => match self.style.calls.map_or(Opening::No, |calls| calls.begins(&self.buffer[after..])) {
                Opening::No => self.give(after),
                Opening::Unknown if !at_end => {
                    // The call may still come: what is before it can go, the tag must wait.
                    let text = self.buffer[..at].trim_end().len();
                    self.give(text);
                    return false;
                }
                Opening::Yes | Opening::Unknown => {
                    let text = self.buffer[..at].trim_end().len();
                    self.give(text);
                    self.state = State::Call { lead_bytes: at - text, open_bytes: tag.len() };
                    self.searched_bytes = at - text + tag.len();
                    self.extent = Extent::default();
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
            self.give(self.buffer[..text].trim_end().len());
        } else if self.called && tags::is_blank(&self.buffer) {
            self.buffer.clear();
        } else {
            self.give(self.buffer.len());
        }
    }

    fn advance_call(&mut self, lead_bytes: usize, open_bytes: usize, at_end: bool) -> bool {
        let Some(dialect) = self.style.calls else { return false };
        let body_at = lead_bytes + open_bytes;
        let Some((body_end, end)) = self.call_end(dialect, body_at) else {
            if at_end {
                self.give_back(lead_bytes, open_bytes);
            }
            return at_end;
        };
        let is_offered = |(name, _): &(String, Value)| open_bytes > 0 || self.tools.offers(name);
        match dialect.read(&self.buffer[body_at..body_end], &self.tools) {
            Body::Calls(calls) if calls.iter().all(is_offered) => {
                self.buffer.drain(..end);
                for (name, arguments) in calls {
                    self.events.push(Event::ToolCall { name, arguments });
                }
                (self.answered, self.called, self.fresh, self.after_call) = (true, true, true, true);
                self.state = State::Content;
            }
            Body::Unfinished if matches!(dialect.end(), End::Tag(_)) => self.searched_bytes = end,
            _ => self.give_back(lead_bytes, open_bytes),
        }
        true
    }

    /// Where the next possible end of a call is: of what it says, and of its closing tag.
    fn call_end(&mut self, dialect: CallDialect, body_at: usize) -> Option<(usize, usize)> {
        match dialect.end() {
            End::Tag(close) => match self.buffer[self.searched_bytes..].find(close) {
                Some(found) => {
                    let at = self.searched_bytes + found;
                    Some((at, at + close.len()))
                }
                None => {
                    // The closing tag may begin in the last bytes.
                    self.searched_bytes = tags::certain_len(&self.buffer, &[close]).max(self.searched_bytes);
                    None
                }
            },
            End::Value => {
                let end = body_at + self.extent.end_of(&self.buffer[body_at..])?;
                Some((end, end))
            }
        }
    }

    /// The held text is no call: its opening tag becomes content and the rest is read again, since a good
    /// call may follow inside it.
    fn give_back(&mut self, lead_bytes: usize, open_bytes: usize) {
        self.state = State::Content;
        self.fresh = false;
        // A call without a tag begins with a bracket.
        self.give(lead_bytes + open_bytes.max(1));
    }

    /// Gives out the first `len` bytes of the buffer without the blanks at their end.
    fn give_trimmed(&mut self, len: usize) {
        let kept = self.buffer[..len].trim_end().len();
        self.buffer.drain(kept..len);
        self.give(kept);
    }

    /// Gives out the first `len` bytes of the buffer.
    fn give(&mut self, len: usize) {
        let text: String = self.buffer.drain(..len).collect();
        if text.is_empty() {
            return;
        }
        if self.state == State::Reasoning {
            self.reasoning_begun = true;
            self.events.push(Event::Reasoning(text));
        } else {
            let is_blank = tags::is_blank(&text);
            self.answered |= !is_blank;
            self.after_call &= is_blank;
            self.events.push(Event::Content(text));
        }
    }

    fn skip(&mut self, tag: &str) {
        self.buffer.drain(..tag.len());
    }
}
