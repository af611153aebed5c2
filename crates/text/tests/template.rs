//! Chat templates against prompts rendered by Jinja2 with the settings models are trained under, the golden
//! chats of the tiny model, and requests that are wrong.

mod requests;

use mambo_text::{ChatRequest, ChatTemplate, GgufVocabulary, TextError, Tokenizer};
use requests::{list, request};
use serde_json::{Value, json};

const CHATS: &str = include_str!("../../../tests/fixtures/text/chats.json");
const TINY: &str = include_str!("../../../models/tiny-hybrid/chat_template.jinja");
const CASES: &str = include_str!("../../../tests/fixtures/text/templates/cases.json");
const WEATHER: &str = include_str!("../../../tests/fixtures/text/weather-tool.json");
const GEN3: &str = include_str!("../../../tests/fixtures/text/templates/gen3-style.jinja");
const V2: &str = include_str!("../../../tests/fixtures/text/templates/v2-style.jinja");
const DIALECT: &str = include_str!("../../../tests/fixtures/text/templates/dialect.jinja");

fn tiny() -> ChatTemplate {
    ChatTemplate::new("tiny-hybrid", TINY).expect("the template compiles")
}

#[test]
fn golden_chats() {
    let vocabulary: GgufVocabulary =
        serde_json::from_str(include_str!("../../../tests/fixtures/text/tiny-hybrid.gguf-vocabulary.json"))
            .unwrap();
    let json = include_str!("../../../models/tiny-hybrid/tokenizer.json");
    let tokenizers = [Tokenizer::from_json(json, None).unwrap(), Tokenizer::from_gguf(&vocabulary).unwrap()];
    let chats: Vec<Value> = serde_json::from_str(CHATS).unwrap();
    assert_eq!(chats.len(), 10);
    for chat in &chats {
        let rendered = tiny().render(&request(&chat["request"])).unwrap();
        assert_eq!(rendered, chat["rendered"].as_str().unwrap());
        for tokenizer in &tokenizers {
            assert_eq!(json!(tokenizer.encode(&rendered, false)), chat["ids"], "{rendered}");
            let answer: Vec<u32> = serde_json::from_value(chat["greedy"].clone()).unwrap();
            assert_eq!(tokenizer.decode(&answer, false), chat["text"].as_str().unwrap());
        }
    }
}

#[test]
fn as_jinja2_renders() {
    let cases: Vec<Value> = serde_json::from_str(CASES).unwrap();
    assert_eq!(cases.len(), 19);
    for case in &cases {
        let name = case["template"].as_str().unwrap();
        let source = match name {
            "gen3-style" => GEN3,
            "v2-style" => V2,
            "dialect" => DIALECT,
            other => panic!("no template {other}"),
        };
        let template = ChatTemplate::new(name, source).unwrap();
        match (template.render(&request(case)), case["rendered"].as_str()) {
            (Ok(rendered), Some(expected)) => assert_eq!(rendered, expected, "{name}"),
            (Err(TextError::TemplateRefused { message, .. }), None) => assert_eq!(message, case["refused"]),
            (result, _) => panic!("{name}: {result:?}"),
        }
    }
}

#[test]
fn messages_in_the_forms_clients_send() {
    let render = |messages: Value| tiny().render(&ChatRequest::new(list(&messages))).unwrap();
    let plain = render(json!([
        {"role": "user", "content": "Hi there"},
        {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [
            {"function": {"name": "f", "arguments": {"b": [1], "a": "x"}}},
            {"function": {"name": "g", "arguments": {}}}]},
        {"role": "tool", "content": "done"}
    ]));
    let as_sent = render(json!([
        {"role": "user", "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}]},
        {"role": "assistant", "content": null, "reasoning": "r", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": [1], \"a\": \"x\"}"}},
            {"id": "2", "type": "function", "function": {"name": "g", "arguments": ""}}]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "done"}]}
    ]));
    assert_eq!(plain, as_sent);
    assert!(plain.contains("<think>\nr\n</think>"), "{plain}");
    assert!(plain.contains("<parameter=b>\n[1]\n</parameter>\n<parameter=a>\nx\n"), "{plain}");
    let null_calls = render(json!([{"role": "assistant", "content": "a", "tool_calls": null}]));
    assert!(null_calls.contains("<think></think>a<|im_end|>"), "{null_calls}");
}

#[test]
fn wrong_messages_are_named() {
    let cases = [
        (json!(["hi"]), "messages[0]"),
        (json!([{"content": "x"}]), "messages[0].role"),
        (json!([{"role": "user", "content": "x"}, {"role": "user", "content": 7}]), "messages[1].content"),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
            "messages[0].content[0]: a part of type 'image_url'",
        ),
        (
            json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{oops"}}]}]),
            "messages[0].tool_calls[0].arguments",
        ),
        (json!([{"role": "assistant", "tool_calls": {"name": "f"}}]), "messages[0].tool_calls"),
        (json!([{"role": "assistant", "tool_calls": ["f"]}]), "messages[0].tool_calls[0]"),
    ];
    for (messages, expected) in cases {
        let error = tiny().render(&ChatRequest::new(list(&messages))).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn requests_that_nothing_can_answer_are_named() {
    let request = |messages: Value, tools: Value| ChatRequest {
        tools: list(&tools),
        ..ChatRequest::new(list(&messages))
    };
    let hello = json!([{"role": "user", "content": "Hello"}]);
    let cases = [
        (json!([]), json!([]), "messages: expected at least one message"),
        (json!([7]), json!([]), "messages[0]: "),
        (hello.clone(), json!(["f"]), "tools[0]: expected an object"),
        (hello.clone(), json!([{"name": "f"}, []]), "tools[1]: expected an object"),
        (hello.clone(), json!([{"type": "function", "function": "f"}]), "tools[0].function: "),
        (hello.clone(), json!([{"type": "function", "function": {}}]), "tools[0].function.name: "),
        (hello.clone(), json!([{"role": "user", "content": "Hello"}]), "tools[0].name: "),
        (hello.clone(), json!([{"name": "f", "parameters": "x"}]), "tools[0].parameters: "),
    ];
    for (messages, tools, expected) in cases {
        let error = request(messages, tools).check().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let tool: Value = serde_json::from_str(WEATHER).unwrap();
    for tools in [json!([]), tool, json!([{"name": "f"}]), json!([{"name": "f", "parameters": null}])] {
        request(hello.clone(), tools).check().unwrap();
    }
}

#[test]
fn errors_name_the_template_and_line() {
    let error = ChatTemplate::new("mine.jinja", "a\n{% if %}\nb").unwrap_err();
    assert!(error.to_string().starts_with("chat template mine.jinja, line 2: "), "{error}");
    let template = ChatTemplate::new("mine.jinja", "a\n\n{{ missing.deeper.still }}").unwrap();
    let error = template.render(&ChatRequest::new(vec![])).unwrap_err();
    assert!(matches!(error, TextError::TemplateRender { line: 3, .. }), "{error}");
    let template = ChatTemplate::new("mine.jinja", "\n{{ raise_exception('no ' ~ 'way') }}").unwrap();
    let error = template.render(&ChatRequest::new(vec![])).unwrap_err();
    assert_eq!(error.to_string(), "chat template mine.jinja, line 2 refuses the request: no way");
    let template = ChatTemplate::new("mine.jinja", "{{ missing | tojson }}").unwrap();
    assert!(template.render(&ChatRequest::new(vec![])).is_err());
}

#[test]
fn hostile_templates_end_with_an_error() {
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}\
                 {% endfor %}{% endfor %}{% endfor %}";
    let macros = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}";
    for (source, words) in [(loops, "does not end within"), (macros, "recursion")] {
        let template = ChatTemplate::new("mine.jinja", source).unwrap();
        let error = template.render(&ChatRequest::new(vec![])).unwrap_err().to_string();
        assert!(error.starts_with("chat template mine.jinja, line 1: ") && error.contains(words), "{error}");
    }
}

/// Each would take gigabytes, or for ever, in a few steps.
#[test]
fn templates_that_make_much_of_little_end_with_an_error() {
    let double = |step: &str| {
        format!(
            "{{% set ns = namespace(s='0123456789abcdef') %}}{{% for i in range(60) %}}{step}{{% endfor %}}{{{{ ns.s }}}}"
        )
    };
    let cases = [
        double("{% set ns.s = ns.s ~ ns.s %}"),
        double("{% set ns.s = ns.s + ns.s %}"),
        double("{% set ns.s = ns.s * 9 %}"),
        double("{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"),
        double("{% set ns.s = ns.s|replace('0', ns.s) %}"),
        double("{% set ns.s = ns.s.replace('0', ns.s) %}"),
        double("{% set ns.s = [ns.s, ns.s]|join %}"),
        double("{% set ns.s = ns.s.join([ns.s, ns.s]) %}"),
        double("{% set ns.s = '%s%s'|format(ns.s, ns.s) %}"),
        double("{% set ns.s = '{}{}'.format(ns.s, ns.s) %}"),
        double("{% set ns.s = [ns.s, ns.s]|tojson %}"),
        double("{% set ns.s = [ns.s, ns.s] %}"),
        double("{% set ns.s = {'a': ns.s, 'b': ns.s} %}"),
        double("{% set ns.s = dict(a=ns.s, b=ns.s) %}"),
        double("{% set ns.s = [ns.s] + [ns.s] %}"),
        double("{% set ns.s = [ns.s]|zip([ns.s])|list %}"),
        "{% macro m(s, n) %}{% if n %}{{ m(s ~ s, n - 1) }}{% else %}{{ s }}{% endif %}{% endmacro %}{{ m('0123456789abcdef', 60) }}".into(),
        "{% set l = [1, 2] %}{% set ns = namespace(l=l) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l|length }}".into(),
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}".into(),
        "{% set n = 10 ** 9 %}{{ 'x' * n }}".into(),
        "{% set n = 10 ** 9 %}{{ [1] * n }}".into(),
        "{% set n = 10 ** 9 %}{{ (1, 2) * n }}".into(),
        // Constants, which a compiler may fold.
        "{{ 'x' * 99999999 }}".into(),
        "{{ 99999999 * 'x' }}".into(),
        "{% if false %}{% endif %}{{ ('x') * (9999 * 9999)|int }}".into(),
        "{{ ([1, 2] * 99999999)|length }}".into(),
        "{{ ('x' * 9999) * 9999 }}".into(),
        "{{ '{{' ~ 'x' * 99999999 }}".into(),
        "{% set n = 10 ** 9 %}{{ 'x'|indent(n, true) }}".into(),
        "{% set n = 10 ** 9 %}{{ 'x'|indent(width=n, first=true) }}".into(),
        "{% set n = 10 ** 9 %}{{ [1]|batch(n, 'x')|list }}".into(),
        "{% set n = 10 ** 9 %}{{ [1]|slice(n)|list }}".into(),
        "{% set n = 10 ** 9 %}{{ [1]|tojson(indent=n) }}".into(),
        "{{ '%1000000000d'|format(1) }}".into(),
        "{{ '{:1000000000}'.format(1) }}".into(),
        format!("{{% set x %}}{{% for a in range(99999) %}}{{% for b in range(99) %}}{}{{% endfor %}}{{% endfor %}}{{% endset %}}", "y".repeat(20_000)),
        "{% set s = 'x' * 60000000 %}{% set ns = namespace(l=[]) %}{% for i in range(99) %}{% set ns.l = ns.l + [i] %}{{ s }}{% endfor %}".into(),
        "{% set s = 'x' * 6000000 %}{% for i in range(9999) %}{% set t = s|upper %}{% endfor %}".into(),
    ];
    for source in cases {
        let template = ChatTemplate::new("mine.jinja", &source).unwrap();
        let error = template.render(&ChatRequest::new(vec![])).unwrap_err().to_string();
        assert!(error.starts_with("chat template mine.jinja, line 1: "), "{source}: {error}");
        let says_why = ["makes a value", "makes values", "makes lists", "recursion"];
        assert!(says_why.iter().any(|why| error.contains(why)), "{source}: {error}");
    }
}

#[test]
fn products_are_what_they_are_in_python() {
    let source = "{% macro m(a, b=2 * 3) %}{{ a * b }}{% endmacro %}{% set l = [1, 2] %}\
                  {{ m(2) }} {{ 'ab' * 2 }} {{ 2 * 'ab' }} {{ -2 * 3 }} {{ 2 ** 2 * 3 }} {{ l[0] * 4 + 1 }} \
                  {{ (l * 2)|length }} {{ {'a': 2}['a'] * 2 }} {{ 1 if 2 * 3 == 6 else 0 }} {{ m(*[2, 5]) }} {{- ' * ' }}\
                  {# 2 * 2 #} * {% raw %}{{ 2 * 2 }}{% endraw %}";
    let text = ChatTemplate::new("t", source).unwrap().render(&ChatRequest::new(vec![])).unwrap();
    assert_eq!(text, "12 abab abab -6 12 5 4 4 1 10 *  * {{ 2 * 2 }}");
}

#[test]
fn a_long_conversation_is_no_hostile_one() {
    let turn =
        |i: usize| json!({"role": if i.is_multiple_of(2) { "user" } else { "assistant" }, "content": "x"});
    let request = ChatRequest::new((0..2001).map(turn).collect());
    for source in [TINY, GEN3, V2] {
        ChatTemplate::new("long", source).unwrap().render(&request).unwrap();
    }
}

#[test]
fn a_model_without_template_is_told_what_to_do() {
    let error = ChatTemplate::require("model.gguf", None).unwrap_err().to_string();
    assert!(error.contains("model.gguf") && error.contains("plain text"), "{error}");
    assert!(ChatTemplate::require("model.gguf", Some("x")).is_ok());
}

#[test]
fn special_tokens_are_variables() {
    let template = ChatTemplate::new("t", "{{ bos_token }}x{{ eos_token }}").unwrap();
    let template = template.with_tokens(Some("<s>"), Some("</s>"));
    assert_eq!(template.render(&ChatRequest::new(vec![])).unwrap(), "<s>x</s>");
}

#[test]
fn the_time_comes_from_the_request_or_the_given_clock() {
    let source = "{% if strftime_now is defined %}{{ strftime_now('%F') }}{% else %}no date{% endif %}";
    let template = ChatTemplate::new("t", source).unwrap();
    let mut request = ChatRequest::new(vec![]);
    assert_eq!(template.render(&request).unwrap(), "no date");
    let template = template.with_clock(|| 951_782_400);
    assert_eq!(template.render(&request).unwrap(), "2000-02-29");
    request.now_unix_s = Some(0);
    assert_eq!(template.render(&request).unwrap(), "1970-01-01");
}

#[test]
fn half_a_tag_is_no_tag() {
    for source in ["{%}", "a {%} b", "{%", "{%-}", "{%%}", "%}{%"] {
        if let Ok(template) = ChatTemplate::new("half", source) {
            let _ = template.render(&ChatRequest::new(vec![json!({"role": "user", "content": "u"})]));
        }
    }
}
