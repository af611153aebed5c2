//! How models write calls of tools, one file for each way. A form is data and two small functions: what shows
//! it in a template, how a call begins and ends in an answer, what is inside, and how a grammar writes one.
//! Knows complete calls; not the stream they come in.

mod blocks;
mod fenced;
mod granite;
mod harmony;
mod hermes;
pub(super) mod json;
mod lfm2;
mod llama3;
mod mistral;
mod nemotron;
mod python;

use serde_json::Value;

use super::schema::Tools;

/// A way to write calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallDialect {
    /// Messages in channels: `<|channel|>commentary to=functions.f<|message|>{..}<|call|>` (gpt-oss).
    Harmony,
    /// `[TOOL_CALLS]f[ARGS]{..}` (Mistral, since the Tekken tokenizers of 2025).
    MistralNamed,
    /// `[TOOL_CALLS][{"name": "f", "arguments": {..}}]` (Mistral).
    MistralList,
    /// `<|tool_call_start|>[f(a=1)]<|tool_call_end|>` (LFM2).
    Lfm2,
    /// `<tool_call><function=f><parameter=a>1</parameter></function></tool_call>` (Nemotron, Qwen3-Coder).
    Blocks,
    /// `<tool_call>{"name": "f", "arguments": {..}}</tool_call>` (Hermes, Qwen, Granite 4, Falcon-H1, SmolLM).
    Hermes,
    /// `<TOOLCALL>[{"name": "f", "arguments": {..}}]</TOOLCALL>` (Nemotron v2).
    Nemotron,
    /// `<|tool_call|>[{"name": "f", "arguments": {..}}]` (Granite 3).
    Granite,
    /// `{"name": "f", "parameters": {..}}` as the whole answer, or after `<|python_tag|>` (Llama 3).
    Llama3,
    /// A fence of `tool_code` with calls in Python (Gemma).
    Fenced,
}

impl CallDialect {
    /// Every way, those that show more clearly in a template first.
    pub const ALL: [CallDialect; 10] = [
        CallDialect::Harmony,
        CallDialect::MistralNamed,
        CallDialect::MistralList,
        CallDialect::Lfm2,
        CallDialect::Blocks,
        CallDialect::Hermes,
        CallDialect::Nemotron,
        CallDialect::Granite,
        CallDialect::Llama3,
        CallDialect::Fenced,
    ];

    fn form(self) -> &'static Form {
        match self {
            CallDialect::Harmony => &harmony::FORM,
            CallDialect::MistralNamed => &mistral::NAMED,
            CallDialect::MistralList => &mistral::LIST,
            CallDialect::Lfm2 => &lfm2::FORM,
            CallDialect::Blocks => &blocks::FORM,
            CallDialect::Hermes => &hermes::FORM,
            CallDialect::Nemotron => &nemotron::FORM,
            CallDialect::Granite => &granite::FORM,
            CallDialect::Llama3 => &llama3::FORM,
            CallDialect::Fenced => &fenced::FORM,
        }
    }

    /// The way a template writes calls.
    pub fn of_template(source: &str) -> Option<CallDialect> {
        CallDialect::ALL.into_iter().find(|dialect| (dialect.form().is_written_in)(source))
    }

    /// The tag that begins a call and nothing else; some calls have none.
    pub fn open(self) -> Option<&'static str> {
        Some(self.form().open).filter(|open| !open.is_empty())
    }

    /// Every tag of a call.
    pub fn tags(self) -> Vec<&'static str> {
        let form = self.form();
        let close = match form.end {
            End::Tag(close) => Some(close),
            End::Value => None,
        };
        self.open().into_iter().chain(close).chain(form.inner.iter().copied()).collect()
    }

    /// Texts of the tokens that end answers written this way, where files may name only one of them.
    pub fn stops(self) -> &'static [&'static str] {
        self.form().stops
    }

    /// How a grammar writes calls.
    pub fn calls(self) -> &'static Calls {
        &self.form().calls
    }

    pub(super) fn end(self) -> End {
        self.form().end
    }

    pub(super) fn stands_bare(self) -> bool {
        self.form().stands_bare
    }

    pub(super) fn begins(self, text: &str) -> Opening {
        (self.form().begins)(text)
    }

    pub(super) fn read(self, body: &str, tools: &Tools) -> Body {
        (self.form().read)(body, tools)
    }
}

/// What a file of this folder says of its way.
struct Form {
    /// The opening tag; empty when no tag is a call's own.
    open: &'static str,
    end: End,
    /// Further tags inside a call.
    inner: &'static [&'static str],
    /// Tokens that end an answer with a call, or one in this way.
    stops: &'static [&'static str],
    /// A call may be the whole answer, without its tag.
    stands_bare: bool,
    /// Whether a template writes calls so.
    is_written_in: fn(&str) -> bool,
    /// Whether what follows the opening tag begins a call, or is only mentioned.
    begins: fn(&str) -> Opening,
    /// Reads what is between the opening tag and the end.
    read: fn(&str, &Tools) -> Body,
    calls: Calls,
}

/// Where a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// At a closing tag.
    Tag(&'static str),
    /// With the brackets it began with.
    Value,
}

/// The text around names and arguments, for grammars: `before`, calls with `between` between them, `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    /// Once, before the first call.
    pub before: &'static str,
    /// Before the name, between name and arguments, after the arguments.
    pub call: [&'static str; 3],
    /// How arguments are written.
    pub arguments: Arguments,
    /// Between two calls.
    pub between: &'static str,
    /// Once, after the last call.
    pub after: &'static str,
}

/// How the arguments of a call are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// A JSON object.
    Json,
    /// `<parameter=NAME>` blocks.
    Blocks,
    /// `name=value`, with commas between them.
    Keywords,
}

/// Whether what follows an opening tag begins a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    Yes,
    No,
    /// Too short to tell.
    Unknown,
}

/// What the text up to an end is.
#[derive(Debug, PartialEq)]
pub(super) enum Body {
    /// Complete calls, at least one.
    Calls(Vec<(String, Value)>),
    /// The closing tag is part of a value: the call goes on.
    Unfinished,
    /// No call.
    Broken,
}

/// Whether text is a name, as far as it goes: what stands before `stop` has only the letters of names.
fn begins_name(text: &str, stop: &str) -> Opening {
    let text = text.trim_start();
    let end = text.find(|c: char| !(c.is_alphanumeric() || "_-.".contains(c))).unwrap_or(text.len());
    let rest = &text[end..];
    if rest.is_empty() || (stop.starts_with(rest) && rest.len() < stop.len() && end > 0) {
        Opening::Unknown
    } else if end > 0 && rest.starts_with(stop) {
        Opening::Yes
    } else {
        Opening::No
    }
}
