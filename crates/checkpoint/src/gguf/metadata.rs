//! Ordered metadata with typed getters. Knows no particular keys.

use std::collections::HashMap;

use super::{GgufArray, GgufValue};
use crate::CheckpointError;
use crate::error::one_line;

/// The keys of a GGUF file, in file order.
///
/// The typed getters give `Ok(None)` for an absent key and an error that names the key and what it holds
/// when the type does not fit. Integers of any width are accepted as long as the value fits.
#[derive(Debug, Clone, Default)]
pub struct GgufMetadata {
    source: String,
    entries: Vec<(String, GgufValue)>,
    by_key: HashMap<String, usize>,
}

impl GgufMetadata {
    /// Empty metadata; `source` is the file's name in errors.
    pub fn new(source: impl Into<String>) -> GgufMetadata {
        GgufMetadata { source: source.into(), ..GgufMetadata::default() }
    }

    /// Adds a key, or replaces its value in place.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<GgufValue>) {
        let (key, value) = (key.into(), value.into());
        match self.by_key.get(&key) {
            Some(&at) => self.entries[at].1 = value,
            None => {
                self.by_key.insert(key.clone(), self.entries.len());
                self.entries.push((key, value));
            }
        }
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &GgufValue)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.by_key.get(key).map(|&at| &self.entries[at].1)
    }

    /// The error for a key that has to be there: `meta.u32(key)?.ok_or_else(|| meta.missing(key))?`.
    pub fn missing(&self, key: &str) -> CheckpointError {
        CheckpointError::MissingKey { file: self.source.clone(), key: one_line(key) }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        convert: impl Fn(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<T>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| CheckpointError::KeyType {
            file: self.source.clone(),
            key: one_line(key),
            found: format!("{value} of type {}", value.type_name()),
            wanted,
        })
    }

    /// A whole number that fits u32.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, CheckpointError> {
        self.typed(key, "a whole number of 32 bits", |v| v.as_integer()?.try_into().ok())
    }

    /// A whole number that fits u64.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, CheckpointError> {
        self.typed(key, "a whole number", |v| v.as_integer()?.try_into().ok())
    }

    /// An integer that fits i64.
    pub fn i64(&self, key: &str) -> Result<Option<i64>, CheckpointError> {
        self.typed(key, "an integer", |v| v.as_integer()?.try_into().ok())
    }

    /// A number, rounded to f32.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, CheckpointError> {
        self.typed(key, "a number", |v| v.as_float().map(|v| v as f32))
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, CheckpointError> {
        self.typed(key, "a bool", |v| if let GgufValue::Bool(b) = v { Some(*b) } else { None })
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<Option<&str>, CheckpointError> {
        self.typed(key, "a string", |v| if let GgufValue::String(s) = v { Some(s.as_str()) } else { None })
    }

    /// An array of any type.
    pub fn array(&self, key: &str) -> Result<Option<&GgufArray>, CheckpointError> {
        self.typed(key, "an array", |v| if let GgufValue::Array(a) = v { Some(a) } else { None })
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, CheckpointError> {
        self.typed(key, "an array of strings", |v| match v {
            GgufValue::Array(GgufArray::String(s)) => Some(s.as_slice()),
            _ => None,
        })
    }

    /// Whole numbers; a single one counts as a list of one.
    pub fn u64s(&self, key: &str) -> Result<Option<Vec<u64>>, CheckpointError> {
        self.typed(key, "a list of whole numbers", |v| match v {
            GgufValue::Array(a) => a.integers()?.into_iter().map(|v| v.try_into().ok()).collect(),
            single => Some(vec![single.as_integer()?.try_into().ok()?]),
        })
    }

    /// Integers; a single one counts as a list of one.
    pub fn i64s(&self, key: &str) -> Result<Option<Vec<i64>>, CheckpointError> {
        self.typed(key, "a list of integers", |v| match v {
            GgufValue::Array(a) => a.integers()?.into_iter().map(|v| v.try_into().ok()).collect(),
            single => Some(vec![single.as_integer()?.try_into().ok()?]),
        })
    }

    /// An array of booleans, or of integers that stand for them.
    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>, CheckpointError> {
        self.typed(key, "a list of bools", |v| match v {
            GgufValue::Array(GgufArray::Bool(list)) => Some(list.clone()),
            GgufValue::Array(list) => Some(list.integers()?.into_iter().map(|v| v != 0).collect()),
            _ => None,
        })
    }

    /// Numbers rounded to f32; a single one counts as a list of one.
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, CheckpointError> {
        self.typed(key, "a list of numbers", |v| match v {
            GgufValue::Array(a) => Some(a.floats()?.into_iter().map(|v| v as f32).collect()),
            single => Some(vec![single.as_float()? as f32]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> GgufMetadata {
        let mut m = GgufMetadata::new("m.gguf");
        m.set("a.count", 7u16);
        m.set("a.big", u64::MAX);
        m.set("a.list", vec![0i32, 2, 3]);
        m.set("a.name", "x");
        m.set("a.rate", 0.5f64);
        m.set("a.on", true);
        m
    }

    #[test]
    fn integers_of_any_width_are_accepted() {
        let m = sample();
        assert_eq!(m.u32("a.count").unwrap(), Some(7));
        assert_eq!(m.u64("a.big").unwrap(), Some(u64::MAX));
        assert_eq!(m.u64s("a.list").unwrap(), Some(vec![0, 2, 3]));
        assert_eq!(m.i64s("a.count").unwrap(), Some(vec![7]));
        assert_eq!(m.f32("a.rate").unwrap(), Some(0.5));
        assert_eq!(m.f32s("a.list").unwrap(), Some(vec![0.0, 2.0, 3.0]));
        assert_eq!(m.bool("a.on").unwrap(), Some(true));
        assert_eq!(m.str("a.name").unwrap(), Some("x"));
        assert_eq!(m.u32("absent").unwrap(), None);
        assert_eq!(m.bools("a.list").unwrap(), Some(vec![false, true, true]));
        assert_eq!(m.array("a.list").unwrap().unwrap().len(), 3);
    }

    #[test]
    fn errors_name_key_value_and_type() {
        let m = sample();
        let text = m.u32("a.big").unwrap_err().to_string();
        assert_eq!(
            text,
            "m.gguf: metadata key `a.big` is 18446744073709551615 of type u64, but should be a whole number \
             of 32 bits; convert the file again"
        );
        let text = m.strings("a.list").unwrap_err().to_string();
        assert!(text.contains("[3 x i32] of type array of i32"), "{text}");
        assert!(m.missing("z").to_string().contains("`z` is missing"));
        assert!(m.bool("a.count").is_err());
    }

    #[test]
    fn setting_again_keeps_the_position() {
        let mut m = sample();
        m.set("a.big", 1u8);
        assert_eq!(m.iter().nth(1).unwrap(), ("a.big", &GgufValue::U8(1)));
        assert_eq!(m.len(), 6);
    }
}
