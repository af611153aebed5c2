//! Tokenizers, templates and answers changed in many ways, the same ones every time: refused or read, never a panic, and
//! an answer is the same however it is cut. The fuzz targets do the same without an end.

#[path = "../../../fuzz/src/json_changes.rs"]
mod json_changes;

use std::fs;
use std::path::{Path, PathBuf};

use mambo_text::{
    CallDialect, ChatRequest, ChatTemplate, Detokenizer, Event, OutputParser, OutputStyle, ParseOptions,
    Specials, Tokenizer,
};
use serde_json::{Value, json};

const ROUNDS: u64 = 400;

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n.max(1)
    }

    /// A text with some of it left out, doubled, or replaced by a part of another.
    fn changed(&mut self, text: &str, others: &[String]) -> String {
        let mut text = text.to_owned();
        for _ in 0..=self.below(3) {
            let [from, to] = {
                let mut ends = [self.place(&text), self.place(&text)];
                ends.sort_unstable();
                ends
            };
            let to = to.min(text.ceil_char_boundary(from + 40));
            let with = match self.below(4) {
                0 => String::new(),
                1 => text[from..to].repeat(2),
                2 => ["\"", "\\", "{", "]", ")", "\n", "<", "|", "é", "日"][self.below(10)].to_owned(),
                _ => {
                    let other = &others[self.below(others.len())];
                    let start = self.place(other);
                    other[start..other.ceil_char_boundary(start + 30).min(other.len())].to_owned()
                }
            };
            text.replace_range(from..to, &with);
        }
        text
    }

    fn place(&mut self, text: &str) -> usize {
        text.floor_char_boundary(self.below(text.len() + 1))
    }
}

fn tokenizer(document: &Value) -> Option<Tokenizer> {
    if let Some(vocabulary) = document.get("gguf") {
        return Tokenizer::from_gguf(&serde_json::from_value(vocabulary.clone()).ok()?).ok();
    }
    let config = document.get("config").map(Value::to_string);
    Tokenizer::from_json(&document.get("json")?.to_string(), config.as_deref()).ok()
}

#[test]
fn changed_tokenizers_encode_and_decode_or_are_refused() {
    let mut accepted = 0;
    for path in files("fuzz/seeds/tokenizers") {
        let good: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert!(tokenizer(&good).is_some(), "{}", path.display());
        for round in 0..ROUNDS {
            let mut document = good.clone();
            json_changes::change(&mut document, round);
            let Some(tokenizer) = tokenizer(&document) else { continue };
            accepted += 1;
            for text in document["texts"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                let ids = tokenizer.encode(text, true);
                let mut stream = Detokenizer::new(&tokenizer, Specials::Show).beginning();
                let mut pieces: String = ids.iter().map(|id| stream.push(*id)).collect();
                pieces += &stream.finish();
                assert_eq!(pieces, tokenizer.decode(&ids, false), "{} {round}", path.display());
            }
            let _ = tokenizer.to_json();
        }
    }
    assert!(accepted > ROUNDS, "{accepted}");
}

#[test]
fn changed_templates_render_or_are_refused() {
    let paths = files("tests/fixtures/text/templates/families");
    let is_template = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "jinja");
    let sources: Vec<String> =
        paths.iter().filter(is_template).map(|path| fs::read_to_string(path).unwrap()).collect();
    let call = json!({"type": "function", "function": {"name": "f", "arguments": {"a": 1}}});
    let request = ChatRequest {
        tools: vec![json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})],
        now_unix_s: Some(0),
        ..ChatRequest::new(vec![
            json!({"role": "system", "content": "s"}),
            json!({"role": "user", "content": "u"}),
            json!({"role": "assistant", "content": "", "tool_calls": [call]}),
            json!({"role": "tool", "name": "f", "content": "3"}),
        ])
    };
    let (mut random, mut rendered) = (Random(3), 0);
    for source in &sources {
        for _ in 0..ROUNDS / 4 {
            let source = random.changed(source, &sources);
            let Ok(template) = ChatTemplate::new("changed", &source) else { continue };
            let Ok(prompt) = template.render(&request) else { continue };
            rendered += 1;
            let style = OutputStyle::detect(&source, &prompt);
            OutputParser::new(style, &request.tools, ParseOptions::default()).parse_whole(&prompt);
        }
    }
    assert!(rendered > ROUNDS / 10, "{rendered}");
}

/// What templates of a dialect show, and the end of their prompts.
fn style(calls: CallDialect, end: &str) -> OutputStyle {
    match calls {
        CallDialect::Harmony => OutputStyle::detect("<|channel|><|message|>", end),
        CallDialect::MistralNamed | CallDialect::MistralList => {
            OutputStyle { calls: Some(calls), ..OutputStyle::detect("[THINK][/THINK]", end) }
        }
        _ => OutputStyle { calls: Some(calls), ..OutputStyle::detect("<think></think>", end) },
    }
}

fn events(style: OutputStyle, tools: &[Value], pieces: &[&str]) -> Vec<Event> {
    let mut parser = OutputParser::new(style, tools, ParseOptions::default());
    let mut events: Vec<Event> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    Event::merge(events)
}

#[test]
fn changed_answers_are_the_same_however_they_are_cut() {
    // Two bytes before each text choose for the fuzzer.
    let texts = files("fuzz/seeds/answers").into_iter().map(|path| fs::read(path).unwrap()[2..].to_vec());
    let texts: Vec<String> = texts.map(|bytes| String::from_utf8(bytes).unwrap()).collect();
    let tools = [json!({"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}})];
    let ends = ["<think>\n", "assistant\n", "<|channel|>analysis<|message|>", "<|message|>", "[THINK]"];
    let mut random = Random(7);
    for dialect in CallDialect::ALL {
        for _ in 0..ROUNDS / 4 {
            let own = random.below(texts.len());
            let text = random.changed(&texts[own], &texts);
            let style = style(dialect, ends[random.below(ends.len())]);
            let whole = events(style, &tools, &[&text]);
            let characters: Vec<&str> = text.split("").collect();
            assert_eq!(events(style, &tools, &characters), whole, "{dialect:?} {text:?}");
            for (cut, _) in text.char_indices() {
                let (left, right) = text.split_at(cut);
                assert_eq!(events(style, &tools, &[left, right]), whole, "{dialect:?} {cut} {text:?}");
            }
        }
    }
}
