//! Every way to write calls: what is called, what is left as text, and the same for any cut of the stream.

mod answers;

use answers::{check, stream, tools, whole};
use mambo_text::parse::ReasoningStart;
use mambo_text::{CallDialect, Event, OutputParser, OutputStyle, ParseOptions};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A style by what its template would show.
fn style(dialect: CallDialect) -> OutputStyle {
    OutputStyle { calls: Some(dialect), is_turn: true, ..OutputStyle::PLAIN }
}

fn harmony() -> OutputStyle {
    OutputStyle::detect("<|start|><|channel|><|message|>", "<|start|>assistant")
}

fn mistral() -> OutputStyle {
    OutputStyle::detect("[THINK] [/THINK] [TOOL_CALLS] [ARGS]", "[/INST]")
}

#[test]
fn dialects_show_in_templates() {
    let cases = [
        ("<|start|>x<|channel|>final<|message|>", CallDialect::Harmony),
        ("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}", CallDialect::MistralNamed),
        ("{{ '[TOOL_CALLS] [' }}", CallDialect::MistralList),
        ("List of tools: <|tool_list_start|>", CallDialect::Lfm2),
        ("<tool_call>\n<function=f>\n<parameter=a>", CallDialect::Blocks),
        ("<tool_call>{{ call | tojson }}</tool_call>", CallDialect::Hermes),
        ("<TOOLCALL>", CallDialect::Nemotron),
        ("<|tool_call|>", CallDialect::Granite),
        (r#"<|start_header_id|>{"name": n, "parameters": p}"#, CallDialect::Llama3),
        (r#"<|start_header_id|>{{ "{\"name\": n, \"parameters\": p}" }}"#, CallDialect::Llama3),
        ("<start_of_turn>```tool_code", CallDialect::Fenced),
    ];
    for (template, dialect) in cases {
        assert_eq!(OutputStyle::detect(template, "x").calls, Some(dialect), "{template}");
    }
    assert_eq!(OutputStyle::detect("<|start_header_id|>user<|eot_id|>", "x").calls, None);
    assert_eq!(harmony().reasoning, Some(ReasoningStart::Unknown));
    let prefilled = |end: &str| OutputStyle::detect("<|channel|><|message|>", end).reasoning;
    assert_eq!(prefilled("<|channel|>analysis<|message|>"), Some(ReasoningStart::Open));
    assert_eq!(prefilled("<|channel|>final<|message|>"), Some(ReasoningStart::Closed));
    assert_eq!(mistral().markers(), ["[/THINK]", "[THINK]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"]);
}

#[test]
fn mistral_calls() {
    let (list, named) = (style(CallDialect::MistralList), style(CallDialect::MistralNamed));
    for style in [list, named] {
        let two = r#"[TOOL_CALLS] [{"name": "f", "arguments": {"text": "]}'"}, "id": "a1"}, {"name": "g", "arguments": {}}]"#;
        check(style, two, "", "", json!([["f", {"text": "]}'"}], ["g", {}]]));
        let named = r#"Sure.[TOOL_CALLS]f[ARGS]{"text": "x"}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}"#;
        check(style, named, "", "Sure.", json!([["f", {"text": "x"}], ["g", {}]]));
        for text in [
            "[TOOL_CALLS] is a tag",
            "[TOOL_CALLS]",
            "[TOOL_CALLS][{\"name\": 7}]",
            "[TOOL_CALLS]f[ARGS]{\"text\"",
            "[TOOL_CALLS]f[ARGS]{oops}",
            "[TOOL_CALLS]f[AR",
        ] {
            check(style, text, "", text, json!([]));
        }
    }
    check(mistral(), "[THINK]hm[/THINK]ok", "hm", "ok", json!([]));
    check(mistral(), "[THINK]hm[TOOL_CALLS]f[ARGS]{}", "hm", "", json!([["f", {}]]));
}

#[test]
fn llama3_calls() {
    let llama = style(CallDialect::Llama3);
    check(llama, r#"{"name": "f", "parameters": {"count": "3"}}"#, "", "", json!([["f", {"count": 3}]]));
    check(llama, r#" {"type": "function", "name": "f", "parameters": {}}"#, "", "", json!([["f", {}]]));
    let two = r#"{"name": "f", "parameters": {"text": "{;"}}; {"name": "f", "parameters": {}}"#;
    check(llama, two, "", "", json!([["f", {"text": "{;"}], ["f", {}]]));
    check(llama, &format!("<|python_tag|>{two}"), "", "", json!([["f", {"text": "{;"}], ["f", {}]]));
    let built_in = r#"<|python_tag|>brave_search.call(query="rust (lang)")"#;
    check(llama, built_in, "", "", json!([["brave_search", {"query": "rust (lang)"}]]));
    for text in [
        // An answer in JSON is an answer: only a tool on offer makes it a call.
        r#"{"name": "Bob", "parameters": {}}"#,
        r#"{"city": "Paris"}"#,
        r#"{"name": "f", "parameters": {"#,
        r#"So: {"name": "f", "parameters": {}}"#,
        r#"{"name": "f", "parameters": [1]}"#,
        "{",
        "<|python_tag|>",
        "<|python_tag|>x = 1",
    ] {
        check(llama, text, "", text, json!([]));
    }
    let text = r#"{"name": "f", "parameters": {}}"#;
    let without_tools = OutputParser::new(llama, &[], ParseOptions::default()).parse_whole(text);
    assert_eq!((without_tools.content.as_str(), without_tools.tool_calls.len()), (text, 0));
    check(llama, &format!("{text}; then"), "", "; then", json!([["f", {}]]));
}

#[test]
fn python_calls() {
    let lfm2 = style(CallDialect::Lfm2);
    let call = |inside: &str| format!("<|tool_call_start|>{inside}<|tool_call_end|>");
    let cases = [
        ("[f(text=\"a\", count=3), g()]", json!([["f", {"text": "a", "count": 3}], ["g", {}]])),
        ("f(text='it\\'s \\u00e9\\n')", json!([["f", {"text": "it's é\n"}]])),
        (
            "[f(items=[1, -2.5, (True, None)], object={'a': {\"b\": false}},)]",
            json!([["f", {"items": [1, -2.5, [true, null]], "object": {"a": {"b": false}}}]]),
        ),
        (
            "[f(count=\"42\", flag='true', text=\"7\")]",
            json!([["f", {"count": 42, "flag": true, "text": "7"}]]),
        ),
        ("[f(text=\"\"\"a\n\"b\"\"\"\")]", json!(null)),
        ("[f(text=\"\"\"a\n\"b\" \"\"\")]", json!([["f", {"text": "a\n\"b\" "}]])),
        ("[f(text=\"<|tool_call_end|>\")]", json!([["f", {"text": "<|tool_call_end|>"}]])),
        (r#"[{"name": "f", "arguments": {"text": "x"}}]"#, json!([["f", {"text": "x"}]])),
        ("[f(1)]", json!(null)),
        ("[f(text=x)]", json!(null)),
        ("[f(text=1+1)]", json!(null)),
        ("[f(text=\"a\"", json!(null)),
        ("[f(text=\"a)]", json!(null)),
        ("[]", json!(null)),
        ("nothing", json!(null)),
    ];
    for (inside, calls) in cases {
        match calls {
            Value::Null => check(lfm2, &call(inside), "", &call(inside), json!([])),
            calls => check(lfm2, &format!("Ok.\n{}", call(inside)), "", "Ok.", calls),
        }
    }
    let fenced = style(CallDialect::Fenced);
    let text = "Let me see.\n```tool_code\nprint(f(text=\"a\"))\ng(count=1)\n```\n";
    check(fenced, text, "", "Let me see.", json!([["f", {"text": "a"}], ["g", {"count": 1}]]));
    for text in ["```tool_code\nimport os\n```", "```python\nf()\n```", "```tool_codes", "```tool_code\nf("] {
        check(fenced, text, "", text, json!([]));
    }
}

#[test]
fn json_calls() {
    let granite = style(CallDialect::Granite);
    let text = r#"<|tool_call|>[{"name": "f", "arguments": {"ratio": "1.5"}}] after"#;
    check(granite, text, "", " after", json!([["f", {"ratio": 1.5}]]));
    check(granite, "<|tool_call|>none", "", "<|tool_call|>none", json!([]));
    let hermes = style(CallDialect::Hermes);
    let text =
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"text\": \"7\", \"count\": \"7\"}}\n</tool_call>";
    check(hermes, text, "", "", json!([["f", {"text": "7", "count": 7}]]));
    let nested = r#"<tool_call>{"type": "function", "function": {"name": "f", "arguments": {}}}</tool_call>"#;
    check(hermes, nested, "", "", json!([["f", {}]]));
}

const ANALYSIS: &str = "<|channel|>analysis<|message|>";
const FINAL: &str = "<|start|>assistant<|channel|>final<|message|>";

#[test]
fn harmony_messages() {
    let none = || json!([]);
    check(
        harmony(),
        &format!("{ANALYSIS}hm <b<|end|>{FINAL}Hi <|there<|return|>"),
        "hm <b",
        "Hi <|there",
        none(),
    );
    check(harmony(), &format!("{ANALYSIS}a<|end|>\n<|start|>assistant{ANALYSIS}b"), "a\nb", "", none());
    check(harmony(), "<|channel|>final<|message|>x", "", "x", none());
    check(harmony(), "<|message|>x", "", "x", none());
    check(harmony(), &format!("{ANALYSIS}a<|channel|>final<|message|>b"), "a", "b", none());
    check(harmony(), "<|channel|>commentary<|message|>I look.<|end|>", "", "I look.", none());
    // Without any header it is an answer.
    check(harmony(), "Hello <|end|>\nthere", "", "Hello \nthere", none());
    check(harmony(), "assistants help", "", "assistants help", none());
    // Cut off inside a header.
    check(harmony(), &format!("{ANALYSIS}a<|end|><|start|>assistant<|chan"), "a", "", none());
    check(harmony(), &format!("{ANALYSIS}a<|end|><|start|>assistant<|channel|>fin"), "a", "", none());
}

#[test]
fn harmony_calls() {
    let ways = [
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"count\": 3}<|call|>",
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"count\": 3}",
        " to=functions.f<|channel|>commentary json<|message|>{\"count\": \"3\"}<|call|>",
        "<|start|>assistant to=functions.f<|channel|>analysis<|message|>{\"count\": 3}",
    ];
    for text in ways {
        check(harmony(), text, "", "", json!([["f", {"count": 3}]]));
    }
    let after = format!("{ANALYSIS}why<|end|><|start|>assistant{}", ways[0]);
    check(harmony(), &after, "why", "", json!([["f", {"count": 3}]]));
    let tag_inside = "<|channel|>commentary to=functions.f<|message|>{\"text\": \"<|end|>\"}<|call|>";
    check(harmony(), tag_inside, "", "", json!([["f", {"text": "<|end|>"}]]));
    let broken = "<|channel|>commentary to=functions.f<|message|>{\"count\": 3";
    check(harmony(), broken, "", broken, json!([]));
    let code = "<|channel|>commentary to=python<|message|>print(1)<|call|>";
    check(harmony(), code, "", "<|channel|>commentary to=python<|message|>print(1)", json!([]));
    let no_calls = OutputStyle { calls: None, ..harmony() };
    check(no_calls, ways[1], "", ways[1], json!([]));
}

/// Answers worth cutting everywhere, in every style.
fn nasty() -> Vec<String> {
    let texts = [
        r#"[TOOL_CALLS] [{"name": "f", "arguments": {"text": "]}é"}}] x [TOOL_CALLS]f[ARGS]{"a": "\"}"}"#,
        r#"{"name": "f", "parameters": {"text": "{;"}} ; {"name": "f", "parameters": {}}; end"#,
        r#" <|python_tag|>f.call(a="x") <|python_tag|>no {"name": "f"}"#,
        "a <|tool_call_start|>[f(text='<|tool_call_end|>')]<|tool_call_end|>\n\nb <|tool_call_start|>[f(",
        "```tool_code\nf(a='```')\n``` 日本 ```tool_code\nno\n```",
        "<|tool_call|>[{\"name\": \"f\"}] <|tool_call|>[{]",
        "<|channel|>analysis<|message|>a <|x<|end|> \n<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"<|end|>\"}<|call|><|start|>assistant<|channel|>final<|message|>é<|return|>",
        "<|channel|>analysis<|end|>x<|start|>user<|message|>y<|channel|>commentary to=functions.f<|message|>{oops}<|call|> z",
        "[THINK]a [TOOL_CALLS]b[/THINK]\n\nc[TOOL_CALLS]g[CALL_ID]1[ARGS]{} ",
        "assistant to=functions.f<|channel|>commentary<|message|>{}",
    ];
    texts.map(str::to_owned).to_vec()
}

fn styles() -> Vec<OutputStyle> {
    let prefilled = OutputStyle::detect("<|channel|><|message|>", "<|channel|>analysis<|message|>");
    let mut styles: Vec<OutputStyle> = CallDialect::ALL.into_iter().skip(1).map(style).collect();
    styles.extend([harmony(), prefilled, mistral(), OutputStyle { calls: None, ..harmony() }]);
    styles
}

#[test]
fn every_cut_in_two_and_every_character_alone() {
    for text in nasty() {
        for style in styles() {
            let expected = stream(style, [text.as_str()]);
            let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            for &at in &cuts {
                assert_eq!(stream(style, [&text[..at], &text[at..]]), expected, "{style:?} {text:?} at {at}");
            }
            let ends = cuts.iter().skip(1).copied().chain([text.len()]);
            let characters: Vec<&str> = cuts.iter().zip(ends).map(|(&at, end)| &text[at..end]).collect();
            assert_eq!(stream(style, characters), expected, "{style:?} {text:?} by characters");
        }
    }
}

const PARTS: [&str; 44] = [
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "[THINK]",
    "[/THINK]",
    "<|python_tag|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|tool_call|>",
    "```tool_code",
    "```",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|start|>",
    "<|call|>",
    "<|constrain|>",
    "assistant",
    "analysis",
    "final",
    "commentary",
    " to=functions.f",
    "json",
    "{\"name\": \"f\", \"parameters\": {}}",
    "{\"name\": \"f\"}",
    "{}",
    "[",
    "]",
    "{",
    "}",
    "f(",
    "f",
    "a=1",
    ")",
    "; ",
    "\"",
    "'",
    "\n",
    " ",
    "1",
    "2x",
    "é3",
    "<|",
    "|>",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn pieces_do_not_matter_and_text_is_kept(
        pieces in prop::collection::vec(prop::sample::select(PARTS.to_vec()), 0..20),
        style in prop::sample::select(styles()),
    ) {
        let text = pieces.concat();
        let events = stream(style, pieces);
        prop_assert_eq!(&events, &stream(style, [text.as_str()]));
        let by_characters: Vec<String> = text.chars().map(String::from).collect();
        prop_assert_eq!(&events, &stream(style, by_characters.iter().map(String::as_str)));
        let calls = events.iter().any(|event| matches!(event, Event::ToolCall { .. }));
        let digits = |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>();
        if !calls {
            let answer = whole(style, &text);
            let kept = |part: &str| digits(part).len();
            prop_assert_eq!(kept(&answer.reasoning) + kept(&answer.content), kept(&text), "{:?}", text);
        }
    }
}

#[test]
fn deep_brackets_end() {
    let deep = format!("<|tool_call_start|>[f(a={})]<|tool_call_end|>", "[".repeat(100_000));
    assert_eq!(whole(style(CallDialect::Lfm2), &deep).content, deep);
    let deep = format!("[TOOL_CALLS]{}{}", "[".repeat(50_000), "]".repeat(50_000));
    assert_eq!(whole(style(CallDialect::MistralList), &deep).content, deep);
    assert!(!tools().is_empty());
}
