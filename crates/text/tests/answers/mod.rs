//! Styles of answers, tools and ways to parse, for the tests of the output parser.
#![allow(dead_code, reason = "every test file uses its own part")]

use mambo_text::{Answer, Event, OutputParser, OutputStyle, ParseOptions};
use serde_json::{Value, json};

pub const CHATS: &str = include_str!("../../../../tests/fixtures/text/chats.json");
pub const TINY: &str = include_str!("../../../../models/tiny-hybrid/chat_template.jinja");
pub const V2: &str = include_str!("../../../../tests/fixtures/text/templates/v2-style.jinja");

pub fn tools() -> Vec<Value> {
    vec![json!({"type": "function", "function": {"name": "f", "parameters": {
    "type": "object",
    "$defs": {"flag": {"type": "boolean"}},
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"$ref": "#/$defs/flag"},
        "items": {"type": "array", "items": {"type": "integer"}},
        "object": {"type": "object"},
        "maybe": {"type": ["integer", "null"]},
        "maybe_text": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "level": {"enum": [1, 2, 3]},
        "loop": {"$ref": "#/properties/loop"}
    }}}})]
}

pub fn thinking() -> OutputStyle {
    OutputStyle::detect(TINY, "<|im_start|>assistant\n<think>\n")
}

pub fn not_thinking() -> OutputStyle {
    OutputStyle::detect(TINY, "<|im_start|>assistant\n<think></think>")
}

pub fn unsaid() -> OutputStyle {
    OutputStyle::detect(TINY, "<|im_start|>assistant\n")
}

pub fn v2() -> OutputStyle {
    OutputStyle::detect(V2, "<SPECIAL_11>Assistant\n<think>\n")
}

pub fn stream<'a>(style: OutputStyle, pieces: impl IntoIterator<Item = &'a str>) -> Vec<Event> {
    let options = ParseOptions { force_nonempty_content: true };
    let mut parser = OutputParser::new(style, &tools(), options);
    let mut events: Vec<Event> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    Event::merge(events)
}

pub fn whole(style: OutputStyle, text: &str) -> Answer {
    OutputParser::new(style, &tools(), ParseOptions::default()).parse_whole(text)
}

#[track_caller]
pub fn check(style: OutputStyle, text: &str, reasoning: &str, content: &str, calls: Value) {
    let answer = whole(style, text);
    assert_eq!(answer.reasoning, reasoning, "reasoning of {text:?}");
    assert_eq!(answer.content, content, "content of {text:?}");
    assert_eq!(json!(answer.tool_calls), calls, "calls of {text:?}");
}

/// One call of `f` in the block notation.
pub fn block(parameters: &[(&str, &str)]) -> String {
    let inside: String = parameters
        .iter()
        .map(|(name, value)| format!("<parameter={name}>\n{value}\n</parameter>\n"))
        .collect();
    format!("<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>")
}
