//! Any text as a model's answer, in every dialect of calls: cut into pieces of one size, or into two at any byte, it
//! gives the same events as whole. Bytes of half a character wait in the detokenizer, so that pieces are text.
#![cfg_attr(fuzzing, no_main)]

use mambo_fuzz::fuzz_target;
use mambo_text::{CallDialect, Event, OutputParser, OutputStyle, ParseOptions};
use serde_json::Value;

/// Two cuts at every byte of a longer text would take all the time there is.
const MOST_CUTS: usize = 400;

/// What templates of every kind show, and the end of their prompts.
fn style(choice: u8) -> OutputStyle {
    let dialect = CallDialect::ALL[usize::from(choice) % CallDialect::ALL.len()];
    let end = ["<think>\n", "assistant\n", "<|channel|>analysis<|message|>", "<|message|>", "[THINK]"]
        [usize::from(choice) / CallDialect::ALL.len() % 5];
    match dialect {
        CallDialect::Harmony => OutputStyle::detect("<|channel|><|message|>", end),
        CallDialect::MistralNamed | CallDialect::MistralList => {
            OutputStyle { calls: Some(dialect), ..OutputStyle::detect("[THINK][/THINK]", end) }
        }
        calls => OutputStyle { calls: Some(calls), ..OutputStyle::detect("<think></think>", end) },
    }
}

fn events<'t>(choice: u8, tools: &[Value], pieces: impl Iterator<Item = &'t str>) -> Vec<Event> {
    let mut parser = OutputParser::new(style(choice), tools, ParseOptions::default());
    let mut events: Vec<Event> = pieces.flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    Event::merge(events)
}

fuzz_target!(|input: (u8, u8, &str)| {
    let (choice, size, text) = input;
    let tool = r#"{"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}"#;
    let tools = [serde_json::from_str(tool).expect("the tool is JSON")];
    let whole = events(choice, &tools, [text].into_iter());
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let pieces = starts.chunks(usize::from(size).max(1)).map(|chunk| chunk[0]).collect::<Vec<_>>();
    let ends = pieces.iter().skip(1).copied().chain([text.len()]);
    assert_eq!(events(choice, &tools, pieces.iter().zip(ends).map(|(&from, to)| &text[from..to])), whole);
    for &cut in starts.iter().take(MOST_CUTS) {
        let (left, right) = text.split_at(cut);
        assert_eq!(events(choice, &tools, [left, right].into_iter()), whole, "cut at {cut}");
    }
});
