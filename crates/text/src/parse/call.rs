//! The text between the tags of a tool call to names and arguments: `<function=..>` blocks or JSON. Knows
//! both notations; not the stream they come in.

use serde_json::{Map, Value};

use super::schema::Tools;

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// Whether what follows an opening tag begins a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    Yes,
    No,
    /// Too short to tell.
    Unknown,
}

/// What the text before a closing tag is.
#[derive(Debug, PartialEq)]
pub(super) enum Body {
    /// Complete calls, at least one.
    Calls(Vec<(String, Value)>),
    /// The closing tag is part of a value: the call goes on.
    Unfinished,
    /// No call.
    Broken,
}

/// Tells a call from a tag that is only mentioned.
pub(super) fn looks_like_call(text: &str) -> Opening {
    let text = text.trim_start();
    if text.starts_with(FUNCTION) || text.starts_with(['{', '[']) {
        Opening::Yes
    } else if FUNCTION.starts_with(text) {
        Opening::Unknown
    } else {
        Opening::No
    }
}

/// Reads the text between the tags.
pub(super) fn parse(body: &str, tools: &Tools) -> Body {
    let body = body.trim();
    if body.starts_with(['{', '[']) { parse_json(body) } else { parse_blocks(body, tools) }
}

fn parse_json(body: &str) -> Body {
    let calls = match serde_json::from_str(body) {
        Ok(Value::Array(calls)) => calls,
        Ok(call) => vec![call],
        // The text stops inside a string or list, so the tag we saw was inside it as well.
        Err(error) if error.is_eof() => return Body::Unfinished,
        Err(_) => return Body::Broken,
    };
    match calls.into_iter().map(json_call).collect::<Option<Vec<_>>>() {
        Some(calls) if !calls.is_empty() => Body::Calls(calls),
        _ => Body::Broken,
    }
}

fn json_call(call: Value) -> Option<(String, Value)> {
    let Value::Object(mut fields) = call else { return None };
    let name = fields.get("name")?.as_str()?.to_owned();
    let given = fields.remove("arguments").or_else(|| fields.remove("parameters"));
    let arguments = match given {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) => serde_json::from_str(&text).ok()?,
        Some(other) => other,
    };
    arguments.is_object().then_some((name, arguments))
}

fn parse_blocks(body: &str, tools: &Tools) -> Body {
    let mut calls = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        let Some((name, inside)) = header(rest, FUNCTION) else { return Body::Broken };
        match parameters(name, inside, tools) {
            Parameters::Done { arguments, rest: after } => {
                calls.push((name.to_owned(), Value::Object(arguments)));
                rest = after.trim_start();
            }
            Parameters::Unfinished => return Body::Unfinished,
            Parameters::Broken => return Body::Broken,
        }
    }
    if calls.is_empty() { Body::Broken } else { Body::Calls(calls) }
}

/// `<function=NAME>` or `<parameter=NAME>`: the name and what follows.
fn header<'a>(text: &'a str, opening: &str) -> Option<(&'a str, &'a str)> {
    let (name, rest) = text.strip_prefix(opening)?.split_once('>')?;
    let name = name.trim();
    let name = name.trim_matches(['"', '\'']);
    (!name.is_empty() && !name.contains(['<', '\n'])).then_some((name, rest))
}

enum Parameters<'a> {
    Done { arguments: Map<String, Value>, rest: &'a str },
    Unfinished,
    Broken,
}

/// The parameters of one function, up to and with `</function>`, which may be missing at the end.
fn parameters<'a>(function: &str, inside: &'a str, tools: &Tools) -> Parameters<'a> {
    let mut arguments = Map::new();
    let mut rest = inside;
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(FUNCTION_END) {
            return Parameters::Done { arguments, rest: after };
        }
        if rest.is_empty() {
            return Parameters::Done { arguments, rest };
        }
        let Some((name, value)) = header(rest, PARAMETER) else { return Parameters::Broken };
        let (raw, after) = match value_end(value) {
            Some(end) => (&value[..end], &value[end + PARAMETER_END.len()..]),
            // The model forgot the closing tag of its last value but did close the function.
            None => match value.trim_end().strip_suffix(FUNCTION_END) {
                Some(raw) => (raw, &value[value.len()..]),
                None => return Parameters::Unfinished,
            },
        };
        arguments.insert(name.to_owned(), tools.convert(function, name, without_frame(raw)));
        rest = after;
    }
}

/// Where a value ends: at a closing tag after which the call goes on as a call must. A closing tag in the
/// middle of a value, in code for example, is part of it.
fn value_end(value: &str) -> Option<usize> {
    value.match_indices(PARAMETER_END).map(|(at, _)| at).find(|at| {
        let after = value[at + PARAMETER_END.len()..].trim_start();
        after.is_empty() || after.starts_with(PARAMETER) || after.starts_with(FUNCTION_END)
    })
}

/// A value stands on lines of its own: one newline on each side is not part of it.
fn without_frame(raw: &str) -> &str {
    let raw = raw.strip_prefix("\r\n").or_else(|| raw.strip_prefix('\n')).unwrap_or(raw);
    raw.strip_suffix("\r\n").or_else(|| raw.strip_suffix('\n')).unwrap_or(raw)
}
