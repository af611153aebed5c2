//! Calls in Python's notation: `[f(a=1, b="x"), g()]`, the same without brackets, or one on each line, perhaps
//! in `print(..)`. Values are literals; anything that would have to be computed is no call.

use serde_json::{Map, Number, Value};

use super::super::schema::Tools;
use super::Body;

/// Lists inside lists that a value may have.
const MAX_DEPTH: usize = 32;

pub(super) fn read(body: &str, tools: &Tools) -> Body {
    let mut reader = Reader { rest: body };
    match reader.calls(tools) {
        Some(calls) if !calls.is_empty() => Body::Calls(calls),
        // The text ends where more was to come, so the end we saw was inside a value.
        None if reader.rest.trim_start().is_empty() => Body::Unfinished,
        _ => Body::Broken,
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    /// Takes a text after blanks.
    fn take(&mut self, text: &str) -> Option<()> {
        self.rest = self.rest.trim_start().strip_prefix(text)?;
        Some(())
    }

    fn takes(&mut self, text: &str) -> bool {
        self.take(text).is_some()
    }

    fn name(&mut self) -> Option<&'a str> {
        let text = self.rest.trim_start();
        let end = text.find(|c: char| !(c.is_alphanumeric() || "_-.".contains(c))).unwrap_or(text.len());
        self.rest = &text[end..];
        (end > 0).then(|| &text[..end])
    }

    fn calls(&mut self, tools: &Tools) -> Option<Vec<(String, Value)>> {
        let mut calls = Vec::new();
        let is_list = self.takes("[");
        loop {
            if is_list && self.takes("]") {
                break;
            }
            if !is_list && self.rest.trim_start().is_empty() {
                break;
            }
            let is_printed = self.takes("print(");
            calls.push(self.call(tools)?);
            if is_printed {
                self.take(")")?;
            }
            let _ = self.takes(",") || self.takes(";");
        }
        self.rest.trim().is_empty().then_some(calls)
    }

    fn call(&mut self, tools: &Tools) -> Option<(String, Value)> {
        let name = self.name()?.to_owned();
        self.take("(")?;
        let mut arguments = Map::new();
        while !self.takes(")") {
            let key = self.name()?.to_owned();
            self.take("=")?;
            arguments.insert(key, self.value(0)?);
            if !self.takes(",") {
                self.take(")")?;
                break;
            }
        }
        let arguments = tools.typed(&name, arguments);
        Some((name, Value::Object(arguments)))
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        let text = self.rest.trim_start();
        match text.chars().next()? {
            _ if depth > MAX_DEPTH => None,
            '"' | '\'' => self.string().map(Value::String),
            '[' => self.list("[", "]", depth).map(Value::Array),
            '(' => self.list("(", ")", depth).map(Value::Array),
            '{' => self.object(depth).map(Value::Object),
            '-' | '+' | '.' | '0'..='9' => self.number(),
            _ => Some(match self.name()? {
                "True" | "true" => Value::Bool(true),
                "False" | "false" => Value::Bool(false),
                "None" | "null" => Value::Null,
                _ => {
                    // Not where the text ends, but what it says is wrong.
                    self.rest = text;
                    return None;
                }
            }),
        }
    }

    fn list(&mut self, open: &str, close: &str, depth: usize) -> Option<Vec<Value>> {
        self.take(open)?;
        let mut items = Vec::new();
        while !self.takes(close) {
            items.push(self.value(depth + 1)?);
            if !self.takes(",") {
                self.take(close)?;
                break;
            }
        }
        Some(items)
    }

    fn object(&mut self, depth: usize) -> Option<Map<String, Value>> {
        self.take("{")?;
        let mut fields = Map::new();
        while !self.takes("}") {
            let Value::String(key) = self.value(depth + 1)? else { return None };
            self.take(":")?;
            fields.insert(key, self.value(depth + 1)?);
            if !self.takes(",") {
                self.take("}")?;
                break;
            }
        }
        Some(fields)
    }

    fn number(&mut self) -> Option<Value> {
        let text = self.rest.trim_start();
        let end =
            text.find(|c: char| !(c.is_ascii_alphanumeric() || "+-._".contains(c))).unwrap_or(text.len());
        let digits = text[..end].replace('_', "");
        let whole =
            digits.parse::<i64>().map(Number::from).or_else(|_| digits.parse::<u64>().map(Number::from));
        let is_word = digits.trim_start_matches(['+', '-']).starts_with(|c: char| c.is_ascii_alphabetic());
        let number = match whole {
            Ok(whole) => whole,
            Err(_) => Number::from_f64(digits.parse().ok()?).filter(|_| !is_word)?,
        };
        self.rest = &text[end..];
        Some(Value::Number(number))
    }

    fn string(&mut self) -> Option<String> {
        let text = self.rest.trim_start();
        let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| text.starts_with(quote))?;
        let mut value = String::new();
        let mut rest = &text[quote.len()..];
        loop {
            if let Some(after) = rest.strip_prefix(quote) {
                self.rest = after;
                return Some(value);
            }
            let mut chars = rest.chars();
            let Some(c) = chars.next() else {
                self.rest = "";
                return None;
            };
            rest = chars.as_str();
            if c != '\\' {
                value.push(c);
                continue;
            }
            let Some(escape) = chars.next() else {
                self.rest = "";
                return None;
            };
            rest = chars.as_str();
            let digits = match escape {
                'x' => 2,
                'u' => 4,
                'U' => 8,
                _ => 0,
            };
            match escape {
                'n' => value.push('\n'),
                't' => value.push('\t'),
                'r' => value.push('\r'),
                'b' => value.push('\u{8}'),
                'f' => value.push('\u{c}'),
                '\n' => {}
                '\\' | '\'' | '"' => value.push(escape),
                'x' | 'u' | 'U' if rest.get(..digits).and_then(character).is_some() => {
                    value.extend(rest.get(..digits).and_then(character));
                    rest = &rest[digits..];
                }
                // As in Python, a backslash that means nothing stays.
                other => value.extend(['\\', other]),
            }
        }
    }
}

fn character(digits: &str) -> Option<char> {
    u32::from_str_radix(digits, 16).ok().and_then(char::from_u32)
}
