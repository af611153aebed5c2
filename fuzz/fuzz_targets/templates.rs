//! Any text as a chat template: refused, or it renders within its bounds, and the form of answers is found from it.
//! `tests/fixtures/text/templates/families` holds the seeds.
#![cfg_attr(fuzzing, no_main)]

use std::sync::LazyLock;

use mambo_fuzz::fuzz_target;
use mambo_text::{ChatRequest, ChatTemplate, OutputParser, OutputStyle, ParseOptions};
use serde_json::{Value, json};

static REQUESTS: LazyLock<Vec<ChatRequest>> = LazyLock::new(|| {
    let tool = json!({"type": "function", "function": {"name": "f", "description": "d",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}});
    let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}});
    let messages: Vec<Value> = vec![
        json!({"role": "system", "content": "s"}),
        json!({"role": "user", "content": "u"}),
        json!({"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "c1", "name": "f", "content": "3"}),
        json!({"role": "user", "content": "v"}),
    ];
    let plain = ChatRequest { now_unix_s: Some(0), ..ChatRequest::new(messages[1..2].to_vec()) };
    let full = ChatRequest {
        tools: vec![tool],
        enable_thinking: Some(true),
        now_unix_s: Some(1 << 40),
        ..ChatRequest::new(messages)
    };
    vec![plain, full]
});

fuzz_target!(|source: &str| {
    let Ok(template) = ChatTemplate::new("fuzz", source) else { return };
    for request in REQUESTS.iter() {
        let Ok(prompt) = template.render(request) else { continue };
        let style = OutputStyle::detect(source, &prompt);
        let _ = (style.markers(), style.starts_in_reasoning());
        let parser = OutputParser::new(style, &request.tools, ParseOptions::default());
        parser.parse_whole(&prompt);
    }
});
