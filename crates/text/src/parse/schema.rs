//! The type a tool's JSON schema gives to an argument that was written as plain text. Knows schemas as far
//! as types; does not validate.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Number, Value};

/// The parameter schemas of the tools on offer.
#[derive(Clone, Debug, Default)]
pub(super) struct Tools {
    /// By function name: the schema of its parameters.
    parameters: HashMap<String, Value>,
    names: HashSet<String>,
}

impl Tools {
    /// Reads tools in either form: `{"type": "function", "function": {..}}` or the inner object.
    pub(super) fn new(tools: &[Value]) -> Self {
        let (mut parameters, mut names) = (HashMap::new(), HashSet::new());
        for tool in tools {
            let function = tool.get("function").unwrap_or(tool);
            names.extend(function["name"].as_str().map(str::to_owned));
            if let (Some(name), Some(schema)) = (function["name"].as_str(), function.get("parameters")) {
                parameters.insert(name.to_owned(), schema.clone());
            }
        }
        Self { parameters, names }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether a tool of this name is on offer.
    pub(super) fn offers(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Arguments that have types already. Text where the schema wants no text gets the type it wants.
    pub(super) fn typed(&self, function: &str, mut arguments: Map<String, Value>) -> Map<String, Value> {
        for (parameter, value) in &mut arguments {
            if let Value::String(text) = value
                && !self.may_be_text(function, parameter)
            {
                *value = self.convert(function, parameter, text);
            }
        }
        arguments
    }

    fn may_be_text(&self, function: &str, parameter: &str) -> bool {
        let types = self.types(function, parameter);
        types.is_empty() || types.contains(&"string")
    }

    /// The types a schema gives to a parameter; none when it does not say.
    fn types(&self, function: &str, parameter: &str) -> Vec<&str> {
        let schema = self.parameters.get(function);
        let property = schema.and_then(|schema| schema.get("properties")?.get(parameter));
        let mut types = Vec::new();
        if let (Some(schema), Some(property)) = (schema, property) {
            collect_types(property, schema, &mut types, 0);
        }
        types
    }

    /// The value of `text` as an argument. Without a schema, and where the text does not fit its type, the
    /// text itself: the tool is the one to complain.
    pub(super) fn convert(&self, function: &str, parameter: &str, text: &str) -> Value {
        let types = self.types(function, parameter);
        // A string can hold anything, so every other type has its try first; but plain strings stay raw.
        let may_be_text = types.is_empty() || types.contains(&"string");
        let others = types.iter().filter(|kind| **kind != "string");
        let structured = others.filter(|kind| !may_be_text || **kind == "null");
        for kind in structured {
            if let Some(value) = as_type(kind, text) {
                return value;
            }
        }
        Value::String(text.to_owned())
    }
}

/// How deep `anyOf` and references are followed: schemas may refer to themselves.
const MAX_DEPTH: usize = 8;

/// The type names a schema allows, from `type`, its alternatives, what it refers to, or its constants.
fn collect_types<'a>(schema: &'a Value, root: &'a Value, types: &mut Vec<&'a str>, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    match &schema["type"] {
        Value::String(kind) => types.push(kind),
        Value::Array(kinds) => types.extend(kinds.iter().filter_map(Value::as_str)),
        _ => {
            let constants = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
            types.extend(constants.map(|constant| -> &str { type_name(constant) }));
        }
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        for alternative in schema[key].as_array().into_iter().flatten() {
            collect_types(alternative, root, types, depth + 1);
        }
    }
    if let Some(pointer) = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'))
        && let Some(target) = root.pointer(pointer)
    {
        collect_types(target, root, types, depth + 1);
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn as_type(kind: &str, text: &str) -> Option<Value> {
    let text = text.trim();
    match kind {
        "null" => matches!(text, "null" | "None").then_some(Value::Null),
        "boolean" => match text.to_ascii_lowercase().as_str() {
            "true" => Some(true.into()),
            "false" => Some(false.into()),
            _ => None,
        },
        "integer" => integer(text).map(Value::Number),
        "number" => integer(text)
            .or_else(|| text.parse().ok().and_then(Number::from_f64).filter(|_| !is_word(text)))
            .map(Value::Number),
        "array" => serde_json::from_str::<Vec<Value>>(text).ok().map(Value::Array),
        "object" => serde_json::from_str::<Map<String, Value>>(text).ok().map(Value::Object),
        _ => None,
    }
}

fn integer(text: &str) -> Option<Number> {
    let signed = text.parse::<i64>().ok().map(Number::from);
    signed.or_else(|| text.parse::<u64>().ok().map(Number::from))
}

/// `inf` and `nan` parse as numbers but are words.
fn is_word(text: &str) -> bool {
    text.trim_start_matches(['+', '-']).starts_with(|c: char| c.is_ascii_alphabetic())
}
