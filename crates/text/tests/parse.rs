//! The output parser on golden answers and nasty ones, each cut in every way.

use mambo_text::parse::ReasoningStart;
use mambo_text::{Answer, Detokenizer, Event, OutputParser, OutputStyle, ParseOptions, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

const CHATS: &str = include_str!("../../../tests/fixtures/text/chats.json");
const TINY: &str = include_str!("../../../models/tiny-hybrid/chat_template.jinja");
const V2: &str = include_str!("../../../tests/fixtures/text/templates/v2-style.jinja");

fn tools() -> Vec<Value> {
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

fn thinking() -> OutputStyle {
    OutputStyle::detect(TINY, "<|im_start|>assistant\n<think>\n")
}

fn not_thinking() -> OutputStyle {
    OutputStyle::detect(TINY, "<|im_start|>assistant\n<think></think>")
}

fn unsaid() -> OutputStyle {
    OutputStyle::detect(TINY, "<|im_start|>assistant\n")
}

fn v2() -> OutputStyle {
    OutputStyle::detect(V2, "<SPECIAL_11>Assistant\n<think>\n")
}

fn stream<'a>(style: OutputStyle, pieces: impl IntoIterator<Item = &'a str>) -> Vec<Event> {
    let options = ParseOptions { force_nonempty_content: true };
    let mut parser = OutputParser::new(style, &tools(), options);
    let mut events: Vec<Event> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    Event::merge(events)
}

fn whole(style: OutputStyle, text: &str) -> Answer {
    OutputParser::new(style, &tools(), ParseOptions::default()).parse_whole(text)
}

#[track_caller]
fn check(style: OutputStyle, text: &str, reasoning: &str, content: &str, calls: Value) {
    let answer = whole(style, text);
    assert_eq!(answer.reasoning, reasoning, "reasoning of {text:?}");
    assert_eq!(answer.content, content, "content of {text:?}");
    assert_eq!(json!(answer.tool_calls), calls, "calls of {text:?}");
}

/// One call of `f` in the block notation.
fn block(parameters: &[(&str, &str)]) -> String {
    let inside: String = parameters
        .iter()
        .map(|(name, value)| format!("<parameter={name}>\n{value}\n</parameter>\n"))
        .collect();
    format!("<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>")
}

#[test]
fn styles_come_from_template_and_prompt() {
    assert_eq!(thinking().reasoning, Some(ReasoningStart::Open));
    assert_eq!(not_thinking().reasoning, Some(ReasoningStart::Closed));
    assert_eq!(unsaid().reasoning, Some(ReasoningStart::Unknown));
    assert_eq!(thinking().calls.unwrap().open, "<tool_call>");
    assert_eq!(v2().calls.unwrap().open, "<TOOLCALL>");
    assert_eq!(OutputStyle::detect("{{ messages }}", "User: hi"), OutputStyle::PLAIN);
    assert_eq!(v2().markers(), ["</think>", "<think>", "<TOOLCALL>", "</TOOLCALL>"]);
}

#[test]
fn golden_answers() {
    let chats: Vec<Value> = serde_json::from_str(CHATS).unwrap();
    let mut calls = Vec::new();
    for chat in &chats {
        let style = OutputStyle::detect(TINY, chat["rendered"].as_str().unwrap());
        let text = chat["text"].as_str().unwrap().trim_end_matches("<|im_end|>");
        let answer = whole(style, text);
        match text.split_once("\n</think>\n") {
            Some((reasoning, rest)) => {
                assert_eq!(answer.reasoning, reasoning);
                let expected = if rest.starts_with("<tool_call>") { "" } else { rest };
                assert_eq!(answer.content, expected);
            }
            None => assert_eq!(answer, Answer { content: text.into(), ..Answer::default() }),
        }
        calls.extend(answer.tool_calls);
    }
    let expected = json!([
        ["get_weather", {"city": "Paris"}],
        ["calculator", {"expression": "8 * 7"}],
        ["search", {"query": "robot"}]
    ]);
    assert_eq!(json!(calls), expected);
}

/// The path of a real answer: ids, text, events.
#[test]
fn golden_answers_from_ids() {
    let json = include_str!("../../../models/tiny-hybrid/tokenizer.json");
    let tokenizer = Tokenizer::from_json(json, None).unwrap();
    let chats: Vec<Value> = serde_json::from_str(CHATS).unwrap();
    for chat in &chats {
        let style = OutputStyle::detect(TINY, chat["rendered"].as_str().unwrap());
        let ids: Vec<u32> = serde_json::from_value(chat["greedy"].clone()).unwrap();
        let mut detokenizer = Detokenizer::keeping(&tokenizer, &style.markers());
        let mut parser = OutputParser::new(style, &tools(), ParseOptions::default());
        let mut events: Vec<Event> = Vec::new();
        for id in ids {
            events.extend(parser.push(&detokenizer.push(id)));
        }
        events.extend(parser.push(&detokenizer.finish()));
        events.extend(parser.finish());
        let text = chat["text"].as_str().unwrap().trim_end_matches("<|im_end|>");
        assert_eq!(Event::merge(events), stream(style, [text]));
    }
}

#[test]
fn reasoning() {
    let none = || json!([]);
    check(thinking(), "a\nb\n</think>\n\nc\n", "a\nb", "c\n", none());
    check(thinking(), "\n\na</think>b", "a", "b", none());
    check(thinking(), "</think>b", "", "b", none());
    check(thinking(), "<think>\na\n</think>\nb", "a", "b", none());
    check(thinking(), "a <think> b</think>c", "a <think> b", "c", none());
    check(thinking(), "lost in thought", "lost in thought", "", none());
    check(thinking(), "a</think>b</think>c", "a", "bc", none());
    check(thinking(), "a</thin", "a</thin", "", none());
    check(not_thinking(), "a\n\nb\n", "", "a\n\nb\n", none());
    check(not_thinking(), "</think>\na", "", "a", none());
    check(not_thinking(), "<think>a", "", "<think>a", none());
    check(unsaid(), "\n<think>\na\n</think>\nb", "a", "b", none());
    check(unsaid(), "a <think> b", "", "a <think> b", none());
    check(OutputStyle::PLAIN, "<think>a</think> <tool_call>", "", "<think>a</think> <tool_call>", none());
}

#[test]
fn nonempty_content_can_be_forced() {
    let options = ParseOptions { force_nonempty_content: true };
    let parse = |text| OutputParser::new(thinking(), &[], options).parse_whole(text);
    assert_eq!(parse("lost"), Answer { content: "lost".into(), ..Answer::default() });
    let usual = Answer { reasoning: "a".into(), content: "b".into(), tool_calls: vec![] };
    assert_eq!(parse("a</think>b"), usual);
    let events = stream(thinking(), ["lo", "st"]);
    assert_eq!(events, [Event::Reasoning("lost".into()), Event::Content("lost".into())]);
    let call = block(&[]);
    assert_eq!(parse(&format!("a</think>{call}")).content, "");
}

#[test]
fn calls_in_blocks() {
    let two = format!("why</think>\nSo:\n{}\n{}\n", block(&[("text", "x")]), block(&[]));
    check(thinking(), &two, "why", "So:", json!([["f", {"text": "x"}], ["f", {}]]));
    // The reasoning was never closed.
    let open = format!("why\n{}", block(&[("text", "x")]));
    check(thinking(), &open, "why", "", json!([["f", {"text": "x"}]]));
    // Two functions in one block, tags on one line, a quoted name.
    let dense =
        "<tool_call><function=f></function><function=\"g\"><parameter=a>1</parameter></function></tool_call>";
    check(not_thinking(), dense, "", "", json!([["f", {}], ["g", {"a": "1"}]]));
    // Content between and after calls.
    let mixed = format!("a {} b {} c", block(&[]), block(&[]));
    check(not_thinking(), &mixed, "", "a b c", json!([["f", {}], ["f", {}]]));
}

#[test]
fn values_are_framed_by_one_newline() {
    let value = |text: &str| whole(not_thinking(), &block(&[("text", text)])).tool_calls[0].1["text"].clone();
    for text in ["", "x", " x ", "\nx\n", "a\n\n b", "42", "null", "{\"a\": 1}", "<tool_call>", "é<"] {
        assert_eq!(value(text), text);
    }
    // Tags inside a value, as when the model writes code about itself.
    for text in
        ["a</tool_call>b", "a</parameter>b", "<function=g>", "</think>", "a</tool_call>\n</tool_call>"]
    {
        assert_eq!(value(text), text);
    }
}

#[test]
fn values_have_the_type_of_the_schema() {
    let cases = [
        ("count", "42", json!(42)),
        ("count", "-7", json!(-7)),
        ("count", "18446744073709551615", json!(u64::MAX)),
        ("count", "many", json!("many")),
        ("ratio", "1.5", json!(1.5)),
        ("ratio", "2", json!(2)),
        ("ratio", "1e3", json!(1000.0)),
        ("ratio", "inf", json!("inf")),
        ("flag", "true", json!(true)),
        ("flag", "False", json!(false)),
        ("flag", "maybe", json!("maybe")),
        ("items", "[1, 2]", json!([1, 2])),
        ("items", "1, 2", json!("1, 2")),
        ("object", "{\"b\": 1, \"a\": null}", json!({"b": 1, "a": null})),
        ("maybe", "null", Value::Null),
        ("maybe", "3", json!(3)),
        ("maybe_text", "null", Value::Null),
        ("maybe_text", "3", json!("3")),
        ("level", "2", json!(2)),
        ("loop", "2", json!("2")),
        ("unheard_of", "2", json!("2")),
    ];
    for (name, text, expected) in cases {
        let answer = whole(not_thinking(), &block(&[(name, text)]));
        assert_eq!(answer.tool_calls[0].1[name], expected, "{name} = {text}");
    }
}

#[test]
fn calls_in_json() {
    let text = "hm\n</think>\n\nLooking.\n<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": \"x</TOOLCALL>y\"}}, {\"name\": \"g\"}]</TOOLCALL>\n";
    let calls = json!([["f", {"b": 1, "a": "x</TOOLCALL>y"}], ["g", {}]]);
    check(v2(), text, "hm", "Looking.", calls);
    let as_string = r#"x</think><TOOLCALL>{"name": "f", "arguments": "{\"a\": 1}"}</TOOLCALL>"#;
    check(v2(), as_string, "x", "", json!([["f", {"a": 1}]]));
    let within = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1]}}\n</tool_call>";
    check(not_thinking(), within, "", "", json!([["f", {"a": [1]}]]));
}

#[test]
fn broken_calls_come_back_as_content() {
    let texts = [
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n",
        "<tool_call>\n<function=f",
        "<tool_call>\n",
        "a\n\n<tool_call>\n<func",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\nwhat?\n</function>\n</tool_call> after",
        "<tool_call>\n<function=f>\n</function>\ntail\n</tool_call>",
        "<tool_call>{\"name\": 7}</tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{oops}</tool_call>",
        "use <tool_call> to call, </tool_call> to end",
        "</tool_call> orphan",
        "<tool_call></tool_call>",
    ];
    for text in texts {
        check(not_thinking(), text, "", text, json!([]));
        // The same inside reasoning that has no end: nothing is lost, wherever it goes.
        let answer = whole(thinking(), &format!("why {text}"));
        assert!(answer.tool_calls.is_empty());
        assert_eq!(format!("{}{}", answer.reasoning, answer.content), format!("why {text}"));
    }
    check(thinking(), "use <tool_call> now</think>ok", "use <tool_call> now", "ok", json!([]));
    check(thinking(), "so\n<tool_call>\n<function=f", "so", "\n<tool_call>\n<function=f", json!([]));
    check(v2(), "x</think><TOOLCALL>[{\"name\": \"f\"", "x", "<TOOLCALL>[{\"name\": \"f\"", json!([]));
}

#[test]
fn a_good_call_inside_a_broken_one_is_found() {
    let text = format!("<tool_call>\n<function=f>\n{}", block(&[("text", "x")]));
    check(not_thinking(), &text, "", "<tool_call>\n<function=f>", json!([["f", {"text": "x"}]]));
    // The last value was not closed, but the function was.
    let text = "<tool_call>\n<function=f>\n<parameter=count>\n1\n</function>\n</tool_call>";
    check(not_thinking(), text, "", "", json!([["f", {"count": 1}]]));
    let text = "<tool_call>\n<function=f>\n<parameter=count>\n1\n</parameter>\n</tool_call>";
    check(not_thinking(), text, "", "", json!([["f", {"count": 1}]]));
}

#[test]
fn only_what_might_be_a_tag_is_held_back() {
    let mut parser = OutputParser::new(thinking(), &[], ParseOptions::default());
    assert_eq!(parser.push("abc"), [Event::Reasoning("abc".into())]);
    assert_eq!(parser.push(" </thi"), []);
    assert_eq!(parser.push("s is <"), [Event::Reasoning(" </this is".into())]);
    assert_eq!(parser.push("/think>\n"), []);
    assert_eq!(parser.push("4"), [Event::Content("4".into())]);
    assert_eq!(parser.push("2 <tool_call>"), [Event::Content("2".into())]);
    assert_eq!(parser.push("\nno"), [Event::Content(" <tool_call>\nno".into())]);
}

/// Answers worth cutting everywhere.
fn nasty() -> Vec<(OutputStyle, String)> {
    let chats: Vec<Value> = serde_json::from_str(CHATS).unwrap();
    let mut cases: Vec<(OutputStyle, String)> = chats
        .iter()
        .map(|chat| {
            let style = OutputStyle::detect(TINY, chat["rendered"].as_str().unwrap());
            (style, chat["text"].as_str().unwrap().to_owned())
        })
        .collect();
    let call = block(&[("text", "a</tool_call>\n</parameter> é"), ("count", "3")]);
    let texts = [
        format!("why\n {call}\n\n{call} \n"),
        format!("a</think>\n\n b <think> c </think> d {call} e\n"),
        format!("<think>\n\nx <tool_call> y\n</think>\n<tool_call>\n<function=f>\n{call}"),
        "日本<</think><<tool_call><tool_call>\n<function=f></function></tool_call>".to_owned(),
        "\n\n \n</think>\n\n \n<tool_call>[{\"name\": \"f\", \"arguments\": {}}]</tool_call> \n".to_owned(),
        "<tool_call>\n<function=f>\n<parameter=text>\nx\n</tool_call>\n</think>\nhm".to_owned(),
        "never ends \n\n <tool_call".to_owned(),
    ];
    for text in texts {
        for style in [thinking(), not_thinking(), unsaid(), OutputStyle::PLAIN] {
            cases.push((style, text.clone()));
        }
    }
    let json = "t\n</think>\n\nok <TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"a\": \"</TOOLCALL>\"}}]</TOOLCALL>\n<TOOLCALL>[oops]</TOOLCALL>";
    cases.push((v2(), json.to_owned()));
    cases
}

#[test]
fn every_cut_in_two_and_every_character_alone() {
    for (style, text) in nasty() {
        let expected = stream(style, [text.as_str()]);
        let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for &at in &cuts {
            assert_eq!(stream(style, [&text[..at], &text[at..]]), expected, "{text:?} cut at {at}");
        }
        let characters = cuts.iter().map(|&at| {
            let end = text[at..].chars().next().map_or(at, |c| at + c.len_utf8());
            &text[at..end]
        });
        assert_eq!(stream(style, characters), expected, "{text:?} by characters");
    }
}

/// Tags, halves of tags and text, in any order; digits stand for text that must not get lost.
fn soup() -> impl Strategy<Value = Vec<String>> {
    let parts = [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "</function>",
        "<parameter=text>",
        "<parameter=count>",
        "</parameter>",
        "{\"name\": \"f\"}",
        "[",
        "<",
        "</",
        ">",
        "\n",
        " ",
        "\n\n",
        "1",
        "2",
        "3x",
        "é4",
        "<tool_",
        "<TOOLCALL>",
        "</TOOLCALL>",
        "]",
        "call>",
        "think>",
    ];
    prop::collection::vec(prop::sample::select(parts.map(str::to_owned).to_vec()), 0..24)
}

fn digits<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    texts.into_iter().flat_map(str::chars).filter(char::is_ascii_digit).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn pieces_do_not_matter_and_text_is_kept(
        pieces in soup(),
        style in prop::sample::select(vec![thinking(), not_thinking(), unsaid(), v2(), OutputStyle::PLAIN]),
    ) {
        let text = pieces.concat();
        let mut parser = OutputParser::new(style, &tools(), ParseOptions::default());
        let mut events: Vec<Event> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
        events.extend(parser.finish());
        let events = Event::merge(events);
        let mut at_once = OutputParser::new(style, &tools(), ParseOptions::default());
        let mut expected = at_once.push(&text);
        expected.extend(at_once.finish());
        prop_assert_eq!(&events, &Event::merge(expected));
        let texts: Option<Vec<&str>> = events
            .iter()
            .map(|event| match event {
                Event::Reasoning(text) | Event::Content(text) => Some(text.as_str()),
                Event::ToolCall { .. } => None,
            })
            .collect();
        if let Some(texts) = texts {
            prop_assert_eq!(digits(texts), digits([text.as_str()]));
        }
    }

    #[test]
    fn random_cuts_of_nasty_answers(case in 0usize..39, sizes in prop::collection::vec(1usize..9, 1..200)) {
        let cases = nasty();
        let (style, text) = &cases[case % cases.len()];
        let mut pieces = Vec::new();
        let mut rest = text.as_str();
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let end = rest.char_indices().nth(*size).map_or(rest.len(), |(at, _)| at);
            pieces.push(&rest[..end]);
            rest = &rest[end..];
        }
        prop_assert_eq!(stream(*style, pieces), stream(*style, [text.as_str()]));
    }
}
