//! The output parser on golden answers and nasty ones: what is thought, what is said, what is called.

mod answers;

use answers::{CHATS, TINY, block, check, not_thinking, stream, thinking, tools, unsaid, v2, whole};
use mambo_text::parse::ReasoningStart;
use mambo_text::{
    Answer, CallDialect, Detokenizer, Event, OutputParser, OutputStyle, ParseOptions, Tokenizer,
};
use serde_json::{Value, json};

#[test]
fn styles_come_from_template_and_prompt() {
    assert_eq!(thinking().reasoning, Some(ReasoningStart::Open));
    assert_eq!(not_thinking().reasoning, Some(ReasoningStart::Closed));
    assert_eq!(unsaid().reasoning, Some(ReasoningStart::Unknown));
    assert_eq!(thinking().calls, Some(CallDialect::Blocks));
    assert_eq!(v2().calls, Some(CallDialect::Nemotron));
    let plain = OutputStyle { is_turn: true, ..OutputStyle::PLAIN };
    assert_eq!(OutputStyle::detect("{{ messages }}", "User: hi"), plain);
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
