//! The output parser on answers that come in pieces: cut anywhere, they give the same events, and early.

mod answers;

use answers::{CHATS, TINY, block, not_thinking, stream, thinking, tools, unsaid, v2};
use mambo_text::{Event, OutputParser, OutputStyle, ParseOptions};
use proptest::prelude::*;
use serde_json::Value;

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
