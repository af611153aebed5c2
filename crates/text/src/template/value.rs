//! JSON values as the template engine's values, key order kept. Knows nothing of what they mean.

use minijinja::value::Value as JinjaValue;
use serde_json::Value;

/// The same value for the template engine.
pub(super) fn to_jinja(value: &Value) -> JinjaValue {
    match value {
        Value::Null => JinjaValue::from(()),
        Value::Bool(flag) => (*flag).into(),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => integer.into(),
            (None, Some(integer)) => integer.into(),
            (None, None) => number.as_f64().unwrap_or(f64::NAN).into(),
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => items.iter().map(to_jinja).collect(),
        Value::Object(fields) => {
            JinjaValue::from_pairs(fields.iter().map(|(key, field)| (key.as_str(), to_jinja(field))))
        }
    }
}
