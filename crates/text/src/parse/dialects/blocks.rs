//! Calls as blocks of tags: `<function=NAME>`, `<parameter=NAME>` (Nemotron, Qwen3-Coder). Values are plain
//! text, to which the schema gives a type.

use serde_json::{Map, Value};

use super::super::schema::Tools;
use super::{Body, Calls, End, Form, Opening, json};

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

pub(super) static FORM: Form = Form {
    open: "<tool_call>",
    end: End::Tag("</tool_call>"),
    inner: &[],
    stops: &[],
    stands_bare: false,
    is_written_in: |template| template.contains("<tool_call>") && template.contains(PARAMETER),
    begins,
    read,
    calls: Calls {
        before: "",
        call: ["<tool_call>\n<function=", ">\n", "</function>\n</tool_call>"],
        arguments: super::Arguments::Blocks,
        between: "\n",
        after: "",
    },
};

/// Models write JSON between these tags as well.
pub(super) fn begins(text: &str) -> Opening {
    let text = text.trim_start();
    if text.starts_with(FUNCTION) {
        Opening::Yes
    } else if FUNCTION.starts_with(text) {
        Opening::Unknown
    } else {
        json::begins(text)
    }
}

pub(super) fn read(body: &str, tools: &Tools) -> Body {
    let body = body.trim();
    if body.starts_with(['{', '[']) { json::read(body, tools) } else { read_blocks(body, tools) }
}

fn read_blocks(body: &str, tools: &Tools) -> Body {
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
