//! Changes of JSON documents that stay documents: random bytes nearly always give text that no parser takes, which tests
//! nothing behind the parser. Tests of the crates use it as well.

use serde_json::{Value, json};

/// Changes one to three places of a document, the same ones for the same seed.
pub fn change(document: &mut Value, seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..=random.below(3) {
        change_once(document, &mut random);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

fn change_once(document: &mut Value, random: &mut Random) {
    let mut places = Vec::new();
    collect(document, String::new(), &mut places);
    let [at, from] = [(); 2].map(|()| places[random.below(places.len())].clone());
    let other = document.pointer(&from).cloned().unwrap_or_default();
    let Some(value) = document.pointer_mut(&at) else { return };
    match (random.below(8), &mut *value) {
        (0, value) => *value = other,
        (1, value) => *value = odd_value(random),
        (2 | 3, Value::Object(map)) if !map.is_empty() => {
            let key = map.keys().nth(random.below(map.len())).cloned().unwrap_or_default();
            map.remove(&key);
        }
        (2 | 3, Value::Array(list)) if !list.is_empty() => _ = list.remove(random.below(list.len())),
        (4, Value::Array(list)) => list.push(other),
        (5, Value::String(text)) => *text = odd_text(text, random),
        (_, value) => {
            if let Some(number) = value.as_f64() {
                *value = near(number, random);
            }
        }
    }
}

/// Every place, those in deep objects as often as their number says.
fn collect(value: &Value, path: String, places: &mut Vec<String>) {
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, value)| collect(value, format!("{path}/{}", escaped(key)), places))
        }
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, value)| collect(value, format!("{path}/{i}"), places))
        }
        _ => {}
    }
    places.push(path);
}

fn near(number: f64, random: &mut Random) -> Value {
    let whole = number as i64;
    match random.below(8) {
        0 => json!(0),
        1 => json!(whole.wrapping_add(1)),
        2 => json!(whole.wrapping_sub(1)),
        3 => json!(whole.wrapping_mul(2)),
        4 => json!(whole / 2),
        5 => json!(-number),
        6 => json!(1u64 << random.below(64)),
        _ => json!(number * 1e9),
    }
}

fn odd_value(random: &mut Random) -> Value {
    match random.below(12) {
        0 => json!(null),
        1 => json!(true),
        2 => json!(0),
        3 => json!(-1),
        4 => json!(u64::MAX),
        5 => json!(0.5),
        6 => json!(1e300),
        7 => json!(""),
        8 => json!([]),
        9 => json!({}),
        10 => json!({"__float__": (["NaN", "Infinity", "-Infinity"][random.below(3)])}),
        _ => json!("\u{2581}é日\u{10ffff}\0"),
    }
}

fn odd_text(text: &str, random: &mut Random) -> String {
    let cut = text.char_indices().nth(random.below(text.chars().count())).map_or(0, |(at, _)| at);
    match random.below(4) {
        0 => text[..cut].to_owned(),
        1 => text[cut..].to_owned(),
        2 => format!("{}{}", &text[cut..], &text[..cut]),
        _ => format!("{text}{text}"),
    }
}
