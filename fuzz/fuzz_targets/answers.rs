//! Any text as a model's answer, in every dialect of calls: cut into pieces it gives the same events as whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mambo_text::{CallDialect, Event, OutputParser, OutputStyle, ParseOptions};

/// What templates of every kind show, and the end of their prompts.
fn style(choice: u8) -> OutputStyle {
    let dialect = CallDialect::ALL[usize::from(choice) % CallDialect::ALL.len()];
    let end = ["<think>\n", "assistant\n", "<|channel|>analysis<|message|>"][usize::from(choice) / 16 % 3];
    match dialect {
        CallDialect::Harmony => OutputStyle::detect("<|channel|><|message|>", end),
        calls => OutputStyle { calls: Some(calls), ..OutputStyle::detect("<think></think>", end) },
    }
}

fuzz_target!(|input: (u8, u8, &str)| {
    let (choice, size, text) = input;
    let tool = r#"{"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}"#;
    let tools = [serde_json::from_str(tool).expect("the tool is JSON")];
    let events = |pieces: &[String]| {
        let mut parser = OutputParser::new(style(choice), &tools, ParseOptions::default());
        let mut events: Vec<Event> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
        events.extend(parser.finish());
        Event::merge(events)
    };
    let characters: Vec<char> = text.chars().collect();
    let pieces: Vec<String> = characters.chunks(usize::from(size).max(1)).map(String::from_iter).collect();
    assert_eq!(events(&pieces), events(&[text.to_owned()]));
});
