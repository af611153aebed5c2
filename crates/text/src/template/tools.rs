//! Whether tools have the form that templates render and that calls are read by. Knows the tool format; does not
//! validate schemas.

use serde_json::Value;

use crate::error::{Result, TextError};

/// Tools come as `{"type": "function", "function": {..}}` or as the inner object.
pub(super) fn check(tools: &[Value]) -> Result<()> {
    tools.iter().enumerate().try_for_each(|(index, tool)| one(&format!("tools[{index}]"), tool))
}

fn one(at: &str, tool: &Value) -> Result<()> {
    let (at, function) = match tool.get("function") {
        Some(function) => (format!("{at}.function"), function),
        None => (at.to_owned(), tool),
    };
    if !function.is_object() {
        return wrong(at, r#"expected an object such as {"name": "f", "parameters": {"type": "object"}}"#);
    }
    if function["name"].as_str().is_none_or(str::is_empty) {
        return wrong(format!("{at}.name"), "expected the name of the function, which calls of it give");
    }
    match &function["parameters"] {
        Value::Null | Value::Object(_) => Ok(()),
        _ => wrong(format!("{at}.parameters"), "expected a JSON schema, which is an object"),
    }
}

fn wrong(field: String, detail: &str) -> Result<()> {
    Err(TextError::Request { field, detail: detail.to_owned() })
}
