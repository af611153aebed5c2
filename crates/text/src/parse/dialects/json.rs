//! Calls in JSON: an object with a name and arguments, or a list of such. Shared by all ways that use it.

use serde_json::{Map, Value};

use super::super::schema::Tools;
use super::{Body, Opening};

pub(super) fn begins(text: &str) -> Opening {
    match text.trim_start().chars().next() {
        None => Opening::Unknown,
        Some('{' | '[') => Opening::Yes,
        Some(_) => Opening::No,
    }
}

pub(super) fn read(body: &str, tools: &Tools) -> Body {
    let calls = match serde_json::from_str(body.trim()) {
        Ok(Value::Array(calls)) => calls,
        Ok(call) => vec![call],
        // The text stops inside a string or list, so the tag we saw was inside it as well.
        Err(error) if error.is_eof() => return Body::Unfinished,
        Err(_) => return Body::Broken,
    };
    match calls.into_iter().map(|call| read_call(call, tools)).collect::<Option<Vec<_>>>() {
        Some(calls) if !calls.is_empty() => Body::Calls(calls),
        _ => Body::Broken,
    }
}

fn read_call(call: Value, tools: &Tools) -> Option<(String, Value)> {
    let Value::Object(mut fields) = call else { return None };
    if let Some(Value::Object(_)) = fields.get("function") {
        return read_call(fields.remove("function")?, tools);
    }
    let name = fields.get("name").or_else(|| fields.get("function"))?.as_str()?.to_owned();
    let given = fields.remove("arguments").or_else(|| fields.remove("parameters"));
    let arguments = match given {
        None | Some(Value::Null) => Map::new(),
        Some(Value::String(text)) => serde_json::from_str(&text).ok()?,
        Some(Value::Object(arguments)) => arguments,
        Some(_) => return None,
    };
    let arguments = tools.typed(&name, arguments);
    Some((name, Value::Object(arguments)))
}

/// The arguments of a call whose name is known: an object.
pub(in super::super) fn read_arguments(name: &str, body: &str, tools: &Tools) -> Body {
    match serde_json::from_str(body.trim()) {
        Ok(Value::Object(arguments)) => {
            Body::Calls(vec![(name.to_owned(), Value::Object(tools.typed(name, arguments)))])
        }
        Err(error) if error.is_eof() => Body::Unfinished,
        _ => Body::Broken,
    }
}
