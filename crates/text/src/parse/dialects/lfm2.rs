//! `<|tool_call_start|>[f(a=1), g()]<|tool_call_end|>`: LFM2 calls in Python's notation, and in JSON if asked.

use super::super::schema::Tools;
use super::{Arguments, Body, Calls, End, Form, Opening, begins_name, json, python};

pub(super) static FORM: Form = Form {
    open: "<|tool_call_start|>",
    end: End::Tag("<|tool_call_end|>"),
    inner: &[],
    stops: &[],
    stands_bare: false,
    // Templates that only list tools do not write calls themselves.
    is_written_in: |template| {
        template.contains("<|tool_call_start|>") || template.contains("<|tool_list_start|>")
    },
    begins,
    read,
    calls: Calls {
        before: "<|tool_call_start|>[",
        call: ["", "(", ")"],
        arguments: Arguments::Keywords,
        between: ", ",
        after: "]<|tool_call_end|>",
    },
};

pub(super) fn begins(text: &str) -> Opening {
    match json::begins(text) {
        Opening::No => begins_name(text, "("),
        known => known,
    }
}

pub(super) fn read(body: &str, tools: &Tools) -> Body {
    let body = body.trim();
    let is_json = body.starts_with('{')
        || body.strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with('{'));
    if is_json { json::read(body, tools) } else { python::read(body, tools) }
}
