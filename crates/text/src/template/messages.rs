//! Messages as clients send them to messages as templates expect them. Knows the chat message format; not
//! any template.

use serde_json::{Map, Value};

use crate::error::{Result, TextError};

/// Templates want tool arguments as objects, content as text and reasoning under one name.
pub(super) fn normalise(messages: &[Value]) -> Result<Vec<Value>> {
    messages.iter().enumerate().map(|(index, message)| one(index, message)).collect()
}

fn one(index: usize, message: &Value) -> Result<Value> {
    let at = format!("messages[{index}]");
    let Value::Object(fields) = message else { return wrong(at, "expected an object with role and content") };
    let mut fields = fields.clone();
    if !fields.get("role").is_some_and(Value::is_string) {
        return wrong(format!("{at}.role"), "expected a string such as \"user\"");
    }
    if let Some(content) = fields.get("content") {
        let text = content_text(&format!("{at}.content"), content)?;
        fields.insert("content".into(), text.into());
    }
    let has_reasoning = fields.get("reasoning_content").is_some_and(|field| !field.is_null());
    if let Some(reasoning) = fields.get("reasoning").filter(|field| field.is_string() && !has_reasoning) {
        fields.insert("reasoning_content".into(), reasoning.clone());
    }
    match fields.get_mut("tool_calls") {
        None => {}
        Some(Value::Array(calls)) => {
            for (call_index, call) in calls.iter_mut().enumerate() {
                parse_arguments(&format!("{at}.tool_calls[{call_index}]"), call)?;
            }
        }
        // Some clients send null; for a template that is the same as no calls.
        Some(Value::Null) => {
            fields.shift_remove("tool_calls");
        }
        Some(_) => return wrong(format!("{at}.tool_calls"), "expected a list of calls"),
    }
    Ok(Value::Object(fields))
}

/// The text of a content field: itself, the joined text parts, or nothing for null.
fn content_text(at: &str, content: &Value) -> Result<String> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Null => Ok(String::new()),
        Value::Array(parts) => {
            let mut text = String::new();
            for (index, part) in parts.iter().enumerate() {
                match (part, part["type"].as_str(), part["text"].as_str()) {
                    (Value::String(piece), _, _) => text.push_str(piece),
                    (_, Some("text" | "input_text" | "output_text") | None, Some(piece)) => {
                        text.push_str(piece);
                    }
                    (_, kind, _) => {
                        let kind = kind.unwrap_or("untyped");
                        let detail = format!("a part of type '{kind}' cannot be read, send text parts only");
                        return wrong(format!("{at}[{index}]"), detail);
                    }
                }
            }
            Ok(text)
        }
        _ => wrong(at.to_owned(), "expected a string, a list of text parts or null"),
    }
}

/// Clients send the arguments of earlier calls as a string of JSON; templates iterate over them.
fn parse_arguments(at: &str, call: &mut Value) -> Result<()> {
    let Value::Object(fields) = call else { return wrong(at.to_owned(), "expected an object") };
    let function = match fields.get_mut("function") {
        Some(Value::Object(function)) => function,
        Some(_) => return wrong(format!("{at}.function"), "expected an object"),
        None => fields,
    };
    let parsed = match function.get("arguments") {
        Some(Value::String(text)) if text.trim().is_empty() => Value::Object(Map::new()),
        Some(Value::String(text)) => serde_json::from_str(text).unwrap_or(Value::Null),
        Some(Value::Object(_)) => return Ok(()),
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(_) => Value::Null,
    };
    if !parsed.is_object() {
        return wrong(format!("{at}.arguments"), "expected a JSON object, or a string that holds one");
    }
    function.insert("arguments".into(), parsed);
    Ok(())
}

fn wrong<T>(field: String, detail: impl Into<String>) -> Result<T> {
    Err(TextError::Request { field, detail: detail.into() })
}
