//! The `tojson` filter as chat templates were trained with it: Python's `json.dumps` without ASCII escapes.
//! Spaces and escapes are part of the prompt, so they must be the same characters. Knows JSON only.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::bounds;

/// `value | tojson(indent=2, ensure_ascii=true, separators=(',', ':'), sort_keys=true)`.
pub(super) fn filter(
    state: &mut State,
    value: &Value,
    indent: Option<usize>,
    options: Kwargs,
) -> Result<Value, Error> {
    let indent = match indent {
        Some(width) => Some(width),
        None => options.get::<Option<usize>>("indent")?,
    };
    let separators = match options.get::<Option<Vec<String>>>("separators")?.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators must be two strings"));
        }
    };
    let bytes = bounds::size(state, value)?;
    // Every item may stand on a line of its own, as deep as lists go.
    bounds::take(state, bytes.saturating_mul(1 + indent.unwrap_or(0) as u64))?;
    let mut writer = Writer {
        output: String::new(),
        indent,
        item_separator: separators.0,
        key_separator: separators.1,
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(Value::from(writer.output))
}

struct Writer {
    output: String,
    indent: Option<usize>,
    item_separator: String,
    key_separator: String,
    ascii: bool,
    sort: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.output.push_str("null"),
            ValueKind::Bool => self.output.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.output.push_str(&value.to_string()),
            ValueKind::Number => self.output.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
                self.list('[', ']', items.len(), depth, |writer, index, depth| {
                    writer.value(&items[index], depth)
                })?;
            }
            ValueKind::Map => {
                let mut keys = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
                if self.sort {
                    keys.sort();
                }
                self.list('{', '}', keys.len(), depth, |writer, index, depth| {
                    let key = &keys[index];
                    match key.as_str() {
                        Some(text) => writer.text(text),
                        None => writer.text(&key.to_string()),
                    }
                    let separator = writer.key_separator.clone();
                    writer.output.push_str(&separator);
                    writer.value(&value.get_item(key)?, depth)
                })?;
            }
            kind => {
                let detail = format!("tojson: a value of type {kind} has no JSON form");
                return Err(Error::new(ErrorKind::BadSerialization, detail));
            }
        }
        Ok(())
    }

    fn list(
        &mut self,
        open: char,
        close: char,
        count: usize,
        depth: usize,
        mut item: impl FnMut(&mut Self, usize, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.output.push(open);
        for index in 0..count {
            if index > 0 {
                let separator = self.item_separator.clone();
                self.output.push_str(&separator);
            }
            self.new_line(depth + 1);
            item(self, index, depth + 1)?;
        }
        if count > 0 {
            self.new_line(depth);
        }
        self.output.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(width) = self.indent {
            self.output.push('\n');
            self.output.extend(std::iter::repeat_n(' ', width * depth));
        }
    }

    fn text(&mut self, text: &str) {
        self.output.push('"');
        for c in text.chars() {
            match c {
                '"' => self.output.push_str("\\\""),
                '\\' => self.output.push_str("\\\\"),
                '\n' => self.output.push_str("\\n"),
                '\r' => self.output.push_str("\\r"),
                '\t' => self.output.push_str("\\t"),
                '\u{8}' => self.output.push_str("\\b"),
                '\u{c}' => self.output.push_str("\\f"),
                c if c < ' ' || (self.ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.output.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.output.push(c),
            }
        }
        self.output.push('"');
    }
}

/// A float as Python writes it: shortest digits, an exponent of two digits below 1e-4 and from 1e16.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    fn floats_as_python_writes_them() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e300, "1.25e+300"),
        ];
        for (value, text) in cases {
            assert_eq!(float(value), text);
        }
    }
}
