//! Templates in the structure of published families: rendered as Jinja2 renders them, and the calls they write
//! are read by the dialect that is found from them.

mod requests;

use mambo_text::{
    CallDialect, ChatRequest, ChatTemplate, OutputParser, OutputStyle, ParseOptions, TextError,
};
use requests::{list, request};
use serde_json::{Value, json};

const CASES: &str = include_str!("../../../tests/fixtures/text/templates/families/cases.json");

/// Every template and the way it writes calls.
const TEMPLATES: [(&str, &str, Option<CallDialect>); 10] = [
    (
        "llama3",
        include_str!("../../../tests/fixtures/text/templates/families/llama3.jinja"),
        Some(CallDialect::Llama3),
    ),
    (
        "mistral",
        include_str!("../../../tests/fixtures/text/templates/families/mistral.jinja"),
        Some(CallDialect::MistralList),
    ),
    (
        "tekken",
        include_str!("../../../tests/fixtures/text/templates/families/tekken.jinja"),
        Some(CallDialect::MistralNamed),
    ),
    (
        "qwen3",
        include_str!("../../../tests/fixtures/text/templates/families/qwen3.jinja"),
        Some(CallDialect::Hermes),
    ),
    (
        "gemma3",
        include_str!("../../../tests/fixtures/text/templates/families/gemma3.jinja"),
        Some(CallDialect::Fenced),
    ),
    (
        "gpt-oss",
        include_str!("../../../tests/fixtures/text/templates/families/gpt-oss.jinja"),
        Some(CallDialect::Harmony),
    ),
    (
        "granite4",
        include_str!("../../../tests/fixtures/text/templates/families/granite4.jinja"),
        Some(CallDialect::Hermes),
    ),
    ("smollm2", include_str!("../../../tests/fixtures/text/templates/families/smollm2.jinja"), None),
    (
        "lfm2",
        include_str!("../../../tests/fixtures/text/templates/families/lfm2.jinja"),
        Some(CallDialect::Lfm2),
    ),
    (
        "falcon-h1",
        include_str!("../../../tests/fixtures/text/templates/families/falcon-h1.jinja"),
        Some(CallDialect::Hermes),
    ),
];

fn source(name: &str) -> &'static str {
    TEMPLATES.iter().find(|(known, ..)| *known == name).unwrap_or_else(|| panic!("no template {name}")).1
}

#[test]
fn as_jinja2_renders() {
    let cases: Vec<Value> = serde_json::from_str(CASES).unwrap();
    assert!(cases.len() > 70);
    for case in &cases {
        let name = case["template"].as_str().unwrap();
        let template = ChatTemplate::new(name, source(name)).unwrap();
        match (template.render(&request(case)), case["rendered"].as_str()) {
            (Ok(rendered), Some(expected)) => assert_eq!(rendered, expected, "{name}"),
            (Err(TextError::TemplateRefused { message, .. }), None) => assert_eq!(message, case["refused"]),
            (result, _) => panic!("{name}: {result:?} for {case}"),
        }
    }
}

#[test]
fn dialects_are_found() {
    for (name, source, dialect) in TEMPLATES {
        assert_eq!(CallDialect::of_template(source), dialect, "{name}");
    }
    assert_eq!(OutputStyle::detect(source("tekken"), "[/INST]").think.open, "[THINK]");
    assert_eq!(OutputStyle::detect(source("qwen3"), "assistant\n").think.open, "<think>");
    for plain in ["smollm2", "llama3", "lfm2", "granite4", "gemma3"] {
        assert_eq!(OutputStyle::detect(source(plain), "x").reasoning, None, "{plain}");
    }
}

/// What a template writes for a call is what the model learned to write, so it has to be read as that call.
#[test]
fn calls_in_histories_are_read_as_calls() {
    let cases: Vec<Value> = serde_json::from_str(CASES).unwrap();
    let mut read = 0;
    for case in &cases {
        let messages = list(&case["messages"]);
        let Some((last, before)) = messages.split_last() else { continue };
        let calls = list(&last["tool_calls"]);
        let (Some(full), false) = (case["rendered"].as_str(), calls.is_empty()) else { continue };
        let name = case["template"].as_str().unwrap();
        if case["add_generation_prompt"] != json!(false) || name == "gemma3" && before.len() > 2 {
            continue;
        }
        let template = ChatTemplate::new(name, source(name)).unwrap();
        let prompt = ChatRequest { add_generation_prompt: true, ..request(case) };
        let prompt = template.render(&ChatRequest { messages: before.to_vec(), ..prompt }).unwrap();
        // Mistral's system message moves to the last turn, so the history is not the prompt.
        let answer =
            full.strip_prefix(prompt.as_str()).or(full.rsplit_once("[/INST]").map(|(_, answer)| answer));
        let answer = answer.unwrap_or_else(|| panic!("{name}: {prompt} {full}"));
        let ends = ["<|eot_id|>", "</s>", "<|im_end|>", "<end_of_turn>", "<|end_of_text|>", "<|call|>"];
        let end = ends.iter().filter_map(|end| answer.find(end)).min().unwrap_or(answer.len());
        let style = OutputStyle::detect(source(name), &prompt);
        let parser = OutputParser::new(style, &list(&case["tools"]), ParseOptions::default());
        let parsed = parser.parse_whole(&answer[..end]);
        let expected: Vec<Value> = calls
            .iter()
            .map(|call| json!([call["function"]["name"], call["function"]["arguments"]]))
            .collect();
        assert_eq!(json!(parsed.tool_calls), json!(expected), "{name}: {answer}");
        let said = last["content"].as_str().filter(|content| full.contains(content)).unwrap_or("");
        assert_eq!(parsed.content, said, "{name}: {answer}");
        read += 1;
    }
    assert!(read >= 12, "{read} calls were read");
}
