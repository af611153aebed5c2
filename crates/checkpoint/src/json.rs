//! JSON as model publishers write it: with bare `Infinity`, `-Infinity` and `NaN`.
//!
//! Knows no configuration keys. Nesting is bounded by the parser beneath (128 levels).

use serde_json::Value;

/// The key of the object that stands for a number JSON cannot write.
const FLOAT_KEY: &str = "__float__";

/// Parses JSON in which bare `Infinity`, `-Infinity` and `NaN` are allowed outside strings. They become
/// `{"__float__": "Infinity"}` and so on, the form some publishers write themselves; see [`json_number`].
pub fn parse_json(text: &str) -> Result<Value, String> {
    serde_json::from_str(&spell_out_specials(text)).map_err(|e| e.to_string())
}

/// An f32 as JSON shows it best: the shortest decimal that reads back as the same f32.
pub fn json_f32(value: f32) -> Value {
    Value::from(value.to_string().parse::<f64>().unwrap_or_else(|_| value.into()))
}

/// The number a JSON value stands for, whether plain or in the `{"__float__": ...}` form.
pub fn json_number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(n) => n.as_f64(),
        Value::Object(map) if map.len() == 1 => match map.get(FLOAT_KEY)? {
            Value::String(s) => match s.as_str() {
                "Infinity" | "inf" => Some(f64::INFINITY),
                "-Infinity" | "-inf" => Some(f64::NEG_INFINITY),
                "NaN" | "nan" => Some(f64::NAN),
                other => other.parse().ok(),
            },
            Value::Number(n) => n.as_f64(),
            _ => None,
        },
        _ => None,
    }
}

fn spell_out_specials(text: &str) -> String {
    const SPECIALS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut in_string = false;
    while let Some(c) = rest.chars().next() {
        if !in_string && let Some(special) = SPECIALS.iter().find(|s| rest.starts_with(**s)) {
            out.push_str(&format!("{{\"{FLOAT_KEY}\":\"{special}\"}}"));
            rest = &rest[special.len()..];
            continue;
        }
        let mut length = c.len_utf8();
        match c {
            '"' => in_string = !in_string,
            // The escaped character goes along, so that an escaped quote does not end the string.
            '\\' if in_string => length += rest[1..].chars().next().map_or(0, char::len_utf8),
            _ => {}
        }
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specials_outside_strings_only() {
        let v = parse_json(r#"{"a": [0.0, Infinity], "b": -Infinity, "c": "a \" Infinity NaN", "d": NaN}"#)
            .unwrap();
        assert_eq!(json_number(&v["a"][1]), Some(f64::INFINITY));
        assert_eq!(json_number(&v["b"]), Some(f64::NEG_INFINITY));
        assert_eq!(v["c"], "a \" Infinity NaN");
        assert!(json_number(&v["d"]).unwrap().is_nan());
        let v = parse_json(r#"[{"__float__": "Infinity"}, 3, {"__float__": "x"}, "\\", "é\u00e9"]"#).unwrap();
        assert_eq!(json_number(&v[0]), Some(f64::INFINITY));
        assert_eq!(json_number(&v[1]), Some(3.0));
        assert_eq!(json_number(&v[2]), None);
        assert_eq!(v[3], "\\");
    }

    #[test]
    fn nesting_is_bounded() {
        let deep = "[".repeat(100_000);
        assert!(parse_json(&deep).unwrap_err().contains("recursion limit"));
        assert!(parse_json("{\"a\": Infinity").is_err());
        assert!(parse_json("\"\\").is_err());
        assert!(parse_json("").is_err());
    }
}
