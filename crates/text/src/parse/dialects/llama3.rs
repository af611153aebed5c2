//! `{"name": "f", "parameters": {..}}`: Llama 3 writes a call as the whole answer, or after `<|python_tag|>`,
//! several with `;` between them; its built-in tools as `f.call(a="x")`. Without the tag only the name of a
//! tool on offer makes JSON a call.

use super::super::schema::Tools;
use super::{Arguments, Body, Calls, End, Form, Opening, begins_name, json, python};

const CALL: &str = ".call(";

pub(super) static FORM: Form = Form {
    open: "<|python_tag|>",
    end: End::Value,
    inner: &[],
    stops: &["<|eot_id|>", "<|eom_id|>"],
    stands_bare: true,
    is_written_in: |template| {
        let lists_parameters = template.contains("\"parameters\"") || template.contains("\\\"parameters\\\"");
        template.contains("<|python_tag|>") || (template.contains("<|start_header_id|>") && lists_parameters)
    },
    begins,
    read,
    calls: Calls {
        before: "",
        call: ["{\"name\": \"", "\", \"parameters\": ", "}"],
        arguments: Arguments::Json,
        between: "; ",
        after: "",
    },
};

fn begins(text: &str) -> Opening {
    let text = text.trim_start();
    let Some(inside) = text.strip_prefix('{') else {
        return match text.chars().next() {
            Some('[') => Opening::Yes,
            _ => begins_name(text, "("),
        };
    };
    let inside = inside.trim_start();
    let keys = ["\"name\"", "\"type\"", "\"function\""];
    if keys.iter().any(|key| inside.starts_with(key)) {
        Opening::Yes
    } else if keys.iter().any(|key| key.starts_with(inside)) {
        Opening::Unknown
    } else {
        Opening::No
    }
}

fn read(body: &str, tools: &Tools) -> Body {
    let body = body.trim();
    if body.starts_with(['{', '[']) {
        return json::read(body, tools);
    }
    match body.split_once(CALL) {
        Some((name, arguments)) => python::read(&format!("{name}({arguments}"), tools),
        None => Body::Broken,
    }
}
