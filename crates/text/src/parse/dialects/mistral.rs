//! Mistral's two ways: `[TOOL_CALLS][{"name": "f", "arguments": {..}}]`, and since 2025
//! `[TOOL_CALLS]f[ARGS]{..}`, perhaps with `[CALL_ID]` before the arguments. Either is read in both.

use super::super::schema::Tools;
use super::{Arguments, Body, Calls, End, Form, Opening, begins_name, json};

const OPEN: &str = "[TOOL_CALLS]";
const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";

const COMMON: Form = Form {
    open: OPEN,
    end: End::Value,
    inner: &[ARGS, CALL_ID],
    stops: &[],
    stands_bare: false,
    is_written_in: |template| template.contains(OPEN),
    begins,
    read,
    calls: Calls {
        before: "[TOOL_CALLS][",
        call: ["{\"name\": \"", "\", \"arguments\": ", "}"],
        arguments: Arguments::Json,
        between: ", ",
        after: "]",
    },
};

pub(super) static LIST: Form = COMMON;

pub(super) static NAMED: Form = Form {
    is_written_in: |template| template.contains(OPEN) && template.contains(ARGS),
    calls: Calls {
        before: "",
        call: ["[TOOL_CALLS]", "[ARGS]", ""],
        arguments: Arguments::Json,
        between: "",
        after: "",
    },
    ..COMMON
};

fn begins(text: &str) -> Opening {
    match json::begins(text) {
        Opening::No => [ARGS, CALL_ID, "{"]
            .into_iter()
            .map(|stop| begins_name(text, stop))
            .find(|opening| *opening != Opening::No)
            .unwrap_or(Opening::No),
        known => known,
    }
}

fn read(body: &str, tools: &Tools) -> Body {
    let body = body.trim();
    if body.starts_with(['{', '[']) {
        return json::read(body, tools);
    }
    let Some(at) = body.find('{') else { return Body::Broken };
    let (head, arguments) = body.split_at(at);
    let head = head.trim_end();
    let head = head.strip_suffix(ARGS).unwrap_or(head);
    let name = head.split_once(CALL_ID).map_or(head, |(name, _)| name).trim();
    if name.is_empty() || name.contains(['[', ']']) {
        return Body::Broken;
    }
    json::read_arguments(name, arguments, tools)
}
