//! Typed reading of JSON objects: every failure names the file and the field.
//!
//! Must not know what the fields mean.

use mambo_checkpoint::json_number;
use serde_json::{Map, Value};

use crate::error::ModelError;

/// An object of a JSON file, with an optional object whose fields come first.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    file: &'a str,
    prefix: &'a str,
    map: &'a Map<String, Value>,
    /// Overrides of one layer, and what to call them.
    own: Option<(&'a str, &'a Map<String, Value>)>,
}

impl<'a> Fields<'a> {
    /// The fields of an object; `prefix` is how messages name it, such as `llm_config.`.
    pub fn new(file: &'a str, prefix: &'a str, map: &'a Map<String, Value>) -> Self {
        Fields { file, prefix, map, own: None }
    }

    /// The same fields, with those of `map` before them.
    pub fn overridden(self, prefix: &'a str, map: &'a Map<String, Value>) -> Self {
        Fields { own: Some((prefix, map)), ..self }
    }

    /// The file the fields are from.
    pub fn file(&self) -> &'a str {
        self.file
    }

    /// The first of these names that is present and not null, with its full name.
    pub fn get(&self, names: &[&str]) -> Option<(String, &'a Value)> {
        let own = self.own.into_iter().chain([(self.prefix, self.map)]);
        own.flat_map(|(prefix, map)| names.iter().map(move |name| (prefix, *name, map.get(*name)))).find_map(
            |(prefix, name, value)| value.filter(|v| !v.is_null()).map(|v| (format!("{prefix}{name}"), v)),
        )
    }

    /// A failure at a field, given by its name in the object or by its full name.
    pub fn bad(&self, field: &str, problem: impl Into<String>, remedy: &str) -> ModelError {
        let full = self.get(&[field]).map_or_else(|| field.to_owned(), |(full, _)| full);
        let (file, field) = (self.file.to_owned(), full);
        ModelError::BadField { file, field, problem: problem.into(), remedy: remedy.to_owned() }
    }

    /// A failure at a value of the wrong type.
    pub fn mistyped(&self, field: &str, want: &str, got: &Value) -> ModelError {
        self.bad(field, format!("is {}, expected {want}", shown(got)), "correct the file")
    }

    /// The failure of a field that is not there.
    pub fn missing(&self, names: &[&str]) -> ModelError {
        let field = format!("{}{}", self.prefix, names.join("` or `"));
        ModelError::MissingField { file: self.file.to_owned(), field }
    }

    /// A size, if given.
    pub fn size(&self, names: &[&str]) -> Result<Option<usize>, ModelError> {
        let Some((field, value)) = self.get(names) else { return Ok(None) };
        self.as_size(&field, value).map(Some)
    }

    /// A size that must be given.
    pub fn want_size(&self, names: &[&str]) -> Result<usize, ModelError> {
        self.size(names)?.ok_or_else(|| self.missing(names))
    }

    /// A value as a size.
    pub fn as_size(&self, field: &str, value: &Value) -> Result<usize, ModelError> {
        // Some writers turn every number into a float.
        let whole = value.as_u64().or_else(|| match value.as_f64() {
            Some(f) if f >= 0.0 && f.fract() == 0.0 && f <= u64::MAX as f64 => Some(f as u64),
            _ => None,
        });
        let size = whole.and_then(|n| usize::try_from(n).ok());
        size.ok_or_else(|| self.mistyped(field, "a whole number that is not negative", value))
    }

    /// A finite or infinite float, if given.
    pub fn float(&self, names: &[&str]) -> Result<Option<f64>, ModelError> {
        let Some((field, value)) = self.get(names) else { return Ok(None) };
        json_number(value).map(Some).ok_or_else(|| self.mistyped(&field, "a number", value))
    }

    /// A finite number above zero, if given.
    pub fn positive(&self, names: &[&str]) -> Result<Option<f64>, ModelError> {
        let Some((field, value)) = self.get(names) else { return Ok(None) };
        let number = json_number(value).filter(|number| number.is_finite() && *number > 0.0);
        number.map(Some).ok_or_else(|| self.mistyped(&field, "a number above zero", value))
    }

    /// A truth value, if given.
    pub fn flag(&self, names: &[&str]) -> Result<Option<bool>, ModelError> {
        let Some((field, value)) = self.get(names) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.mistyped(&field, "true or false", value))
    }

    /// A string, if given.
    pub fn text(&self, names: &[&str]) -> Result<Option<&'a str>, ModelError> {
        let Some((field, value)) = self.get(names) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.mistyped(&field, "a string", value))
    }

    /// A list, if given.
    pub fn list(&self, names: &[&str]) -> Result<Option<(String, &'a [Value])>, ModelError> {
        let Some((field, value)) = self.get(names) else { return Ok(None) };
        match value.as_array() {
            Some(list) => Ok(Some((field, list))),
            None => Err(self.mistyped(&field, "a list", value)),
        }
    }

    /// Token ids given as one number or a list of them.
    pub fn tokens(&self, names: &[&str]) -> Result<Vec<u32>, ModelError> {
        let Some((field, value)) = self.get(names) else { return Ok(Vec::new()) };
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let token = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let tokens: Option<Vec<u32>> = values.iter().map(token).collect();
        tokens.ok_or_else(|| self.mistyped(&field, "a token id or a list of them", value))
    }
}

/// A value as a message shows it: whole if short, else its beginning.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text,
    }
}
