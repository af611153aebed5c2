//! Calls of tools as a grammar, in the form that the model's template writes them. Knows Lark and schemas; the tags and
//! the order of things are the dialect's.

use llguidance::api::TopLevelGrammar;
use mambo_runtime::Prompt;
use mambo_text::{Arguments, OutputStyle, ReasoningStart, Tokenizer};
use serde_json::{Value, json};

use crate::error::ApiError;

/// Calls of tools in the form that the model's template writes them, as Lark.
pub(crate) struct Calls {
    /// What `calls` is.
    all: String,
    /// The rules behind it.
    rules: String,
    /// What stands before an answer that is no call.
    header: String,
}

impl Calls {
    /// A grammar of calls alone.
    pub fn alone(&self) -> String {
        format!("start: calls\ncalls: {}\n{}", self.all, self.rules)
    }

    /// A grammar of calls or of JSON after a schema.
    pub fn or_json(&self, schema: &Value) -> String {
        let Calls { all, rules, header } = self;
        let answer = json_rules(header, schema);
        format!("start: calls | answer\n{answer}calls: {all}\n{rules}")
    }

    /// Calls of the named tools, one or several.
    pub fn of(
        prompt: &Prompt,
        names: &[&str],
        parallel: bool,
        tokenizer: &Tokenizer,
    ) -> Result<Calls, ApiError> {
        let Some(dialect) = prompt.style.calls else {
            let message =
                "this model's chat template has no form for tool calls; use `auto` or another model";
            return Err(ApiError::field("tool_choice", message));
        };
        let (form, tags) = (dialect.calls(), dialect.tags());
        let literal = |text: &str| literal(text, &tags, tokenizer);
        let [open, to_arguments, close] = form.call;
        let mut rules = Vec::new();
        let mut choices = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let tool = prompt
                .tools
                .iter()
                .find(|tool| tool.pointer("/function/name").and_then(Value::as_str) == Some(*name));
            let schema = tool.and_then(|tool| tool.pointer("/function/parameters")).cloned();
            let schema = schema.filter(Value::is_object).unwrap_or_else(|| json!({"type": "object"}));
            choices.push(format!("call{index}"));
            let (arguments, definitions) = match form.arguments {
                Arguments::Json => json_arguments(index, &schema),
                Arguments::Blocks => block_arguments(index, &schema),
                Arguments::Keywords => keyword_arguments(index, &schema),
            };
            let is_string = open.ends_with('"');
            let name = if is_string { quoted(name).trim_matches('"').to_owned() } else { (*name).to_owned() };
            let head = literal(&format!("{open}{name}{to_arguments}"));
            rules.push(format!("call{index}: {head} {arguments} {}\n{definitions}", literal(close)));
        }
        let between = literal(form.between);
        let more = if parallel { format!(" ({between} one)*") } else { String::new() };
        let (before, after) = (literal(form.before), literal(form.after));
        let all = format!("{before} one{more} {after}\none: {}", choices.join(" | "));
        // After a thought in a channel the next message begins.
        let all = if prompt.style.channels { format!("({})? {all}", literal(NEXT)) } else { all };
        Ok(Calls { all, rules: rules.concat(), header: header(&prompt.style, tokenizer) })
    }
}

/// How a message after another one begins, where answers are messages in channels.
const NEXT: &str = "<|start|>assistant";
/// How the message of an answer goes on from there.
const FINAL: &str = "<|channel|>final<|message|>";

/// What has to stand before an answer: nothing, or the header of its message.
fn header(style: &OutputStyle, tokenizer: &Tokenizer) -> String {
    if !style.channels || style.reasoning == Some(ReasoningStart::Closed) {
        return String::new();
    }
    let literal = |text: &str| literal(text, &style.markers(), tokenizer);
    format!("({})? {}", literal(NEXT), literal(FINAL))
}

/// The rule `answer`: JSON after a schema.
fn json_rules(header: &str, schema: &Value) -> String {
    format!("answer: {header} answer_json\nanswer_json: %json {}\n", compact(schema))
}

/// A grammar of an answer in JSON after a schema.
pub(crate) fn json_answer(schema: &Value, style: &OutputStyle, tokenizer: &Tokenizer) -> TopLevelGrammar {
    match header(style, tokenizer).as_str() {
        "" => TopLevelGrammar::from_json_schema(compact(schema)),
        header => TopLevelGrammar::from_lark(format!("start: answer\n{}", json_rules(header, schema))),
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Text as Lark. A tag that is a special token is no text: the grammar names it.
fn literal(text: &str, tags: &[&str], tokenizer: &Tokenizer) -> String {
    let special = |tag: &&str| tokenizer.id_of(tag).filter(|id| tokenizer.is_special(*id));
    let first = tags.iter().filter_map(|tag| Some((text.find(tag)?, *tag, special(tag)?))).min();
    let Some((at, tag, id)) = first else {
        return if text.is_empty() { String::new() } else { quoted(text) };
    };
    let before = literal(&text[..at], tags, tokenizer);
    let is_plain = tag.starts_with('<') && !tag[1..].contains(['<', '[', ' ']);
    let name = if is_plain { tag.to_owned() } else { format!("<[{id}]>") };
    let after = literal(&text[at + tag.len()..], tags, tokenizer);
    [before, name, after].join(" ")
}

/// Arguments as one JSON object: what stands in the call, and the rules behind it.
fn json_arguments(index: usize, schema: &Value) -> (String, String) {
    (format!("args{index}"), format!("args{index}: %json {}\n", compact(schema)))
}

/// Arguments as `name=value`: required ones in order, then others where the model likes.
fn keyword_arguments(index: usize, root: &Value) -> (String, String) {
    let required = required(root);
    let mut definitions = String::new();
    let (mut wanted, mut others) = (Vec::new(), Vec::new());
    for (number, (key, schema)) in root["properties"].as_object().into_iter().flatten().enumerate() {
        let (argument, value) = (format!("arg{index}_{number}"), format!("value{index}_{number}"));
        let schema = compact(&with_definitions(schema, root));
        let open = quoted(&format!("{key}="));
        definitions += &format!("{argument}: {open} {value}\n{value}: %json {schema}\n");
        let place = if required.contains(&key.as_str()) { &mut wanted } else { &mut others };
        place.push(argument);
    }
    let may_follow = |rest: &[String]| rest.iter().map(|one| format!(" (\", \" {one})?")).collect::<String>();
    let arguments = if wanted.is_empty() {
        let firsts: Vec<String> = (0..others.len())
            .map(|first| format!("{}{}", others[first], may_follow(&others[first + 1..])))
            .collect();
        if firsts.is_empty() { String::new() } else { format!("({})?", firsts.join(" | ")) }
    } else {
        format!("{}{}", wanted.join(" \", \" "), may_follow(&others))
    };
    (arguments, definitions)
}

fn required(schema: &Value) -> Vec<&str> {
    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Arguments as tagged parameters: required ones in order, others where the model likes.
fn block_arguments(index: usize, root: &Value) -> (String, String) {
    let required = required(root);
    let close = quoted("\n</parameter>\n");
    let (mut rule, mut definitions) = (String::new(), String::new());
    for (number, (key, schema)) in root["properties"].as_object().into_iter().flatten().enumerate() {
        let (parameter, value) = (format!("param{index}_{number}"), format!("value{index}_{number}"));
        rule += &format!(" {parameter}{}", if required.contains(&key.as_str()) { "" } else { "?" });
        let open = quoted(&format!("<parameter={key}>\n"));
        let words = schema["enum"].as_array().filter(|words| words.iter().all(Value::is_string));
        let is_any = ["type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"]
            .iter()
            .all(|k| schema.get(k).is_none());
        let is_text = schema["type"] == "string" || is_any;
        definitions += &match words {
            Some(words) if is_text || schema.get("type").is_none() => {
                let words: Vec<String> = words.iter().filter_map(Value::as_str).map(quoted).collect();
                format!("{parameter}: {open} ({}) {close}\n", words.join(" | "))
            }
            // Any text up to the closing tag.
            _ if is_text => format!("{parameter}: {open} {value}\n{value}[suffix={close}]: /(?s:.*)/\n"),
            _ => {
                let schema = compact(&with_definitions(schema, root));
                format!("{parameter}: {open} {value} {close}\n{value}: %json {schema}\n")
            }
        };
    }
    (rule, definitions)
}

/// A part of a schema with the definitions that its references lead to.
fn with_definitions(part: &Value, root: &Value) -> Value {
    let mut part = part.clone();
    for key in ["$defs", "definitions"] {
        if let Some(definitions) = root.get(key) {
            part[key] = definitions.clone();
        }
    }
    part
}

/// A schema whose JSON is written in one way: a model that may put blanks anywhere can go on with them for ever.
fn compact(schema: &Value) -> Value {
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    let form = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    schema.insert("x-guidance".into(), form);
    schema.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{Format, ToolChoice};
    use crate::grammar::{Constraint, Grammars};
    use mambo_text::{CallDialect, GgufVocabulary, OutputParser, ParseOptions};

    /// A vocabulary of all bytes and the tags of every dialect, which are special tokens.
    fn tokenizer() -> Tokenizer {
        let mut unprinted = '\u{100}'..;
        let byte = |byte: u8| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte).to_string(),
            _ => unprinted.next().map(String::from).unwrap_or_default(),
        };
        let mut tokens: Vec<String> = (0..=255).map(byte).collect();
        for tag in CallDialect::ALL.into_iter().flat_map(CallDialect::tags).chain(["<end>"]) {
            if !tokens.iter().any(|token| token == tag) && !tag.starts_with('`') {
                tokens.push(tag.to_owned());
            }
        }
        let token_types = (0..tokens.len()).map(|id| if id < 256 { 1 } else { 3 }).collect();
        let eos = Some(tokens.len() as u32 - 1);
        let (model, pre) = ("gpt2".into(), "gpt-2".into());
        let vocabulary = GgufVocabulary { model, pre, tokens, token_types, eos, ..GgufVocabulary::default() };
        Tokenizer::from_gguf(&vocabulary).unwrap()
    }

    #[test]
    fn an_answer_in_a_channel_has_its_header() {
        let tokenizer = tokenizer();
        let end = tokenizer.eos().unwrap();
        let grammars = Grammars::new(&tokenizer, &[end], tokenizer.vocab_size());
        let style = |end: &str| OutputStyle::detect("<|channel|><|message|>", end);
        let format = Format::JsonSchema(json!({"type": "integer"}));
        let thought = "<|channel|>analysis<|message|>so<|end|>";
        let cases = [
            ("<|start|>assistant", "<|channel|>final<|message|>42".to_owned(), true),
            ("<|start|>assistant", format!("{thought}<|start|>assistant<|channel|>final<|message|>42"), true),
            ("<|start|>assistant", "42".to_owned(), false),
            ("<|channel|>final<|message|>", "42".to_owned(), true),
        ];
        for (prompt_end, text, expected) in cases {
            let prompt = Prompt::new(Vec::new(), style(prompt_end));
            let constraint = Constraint::of(&ToolChoice::Auto, true, &format, &prompt, &tokenizer).unwrap();
            let mask = grammars.mask(&grammars.compile(constraint.unwrap()).unwrap());
            let mut tokens = tokenizer.encode(&text, false);
            tokens.push(end);
            let is_allowed = |at: usize| {
                let mut words = vec![0; tokenizer.vocab_size().div_ceil(32)];
                mask.allow(&tokens[..at], &mut words);
                words[tokens[at] as usize / 32] >> (tokens[at] % 32) & 1 == 1
            };
            assert_eq!((0..tokens.len()).all(is_allowed), expected, "{prompt_end} {text}");
        }
    }

    #[test]
    fn every_dialect_has_a_grammar_of_what_its_parser_reads() {
        let tokenizer = tokenizer();
        let end = tokenizer.eos().unwrap();
        let grammars = Grammars::new(&tokenizer, &[end], tokenizer.vocab_size());
        let properties = json!({"city": {"type": "string"}, "days": {"type": "integer"}});
        let parameters = json!({"type": "object", "properties": properties, "required": ["city"]});
        let tool = json!({"type": "function", "function": {"name": "weather", "parameters": parameters}});
        for dialect in CallDialect::ALL {
            let channels = dialect == CallDialect::Harmony;
            let style = OutputStyle { calls: Some(dialect), channels, ..OutputStyle::PLAIN };
            let style = OutputStyle { reasoning: channels.then_some(ReasoningStart::Unknown), ..style };
            let prompt = Prompt { tools: vec![tool.clone()], ..Prompt::new(Vec::new(), style) };
            let form = dialect.calls();
            let arguments = match form.arguments {
                Arguments::Json => r#"{"city": "Rome", "days": 2}"#,
                Arguments::Keywords => r#"city="Rome", days=2"#,
                Arguments::Blocks => {
                    "<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
                }
            };
            let [open, middle, close] = form.call;
            let call = format!("{open}weather{middle}{arguments}{close}");
            let one = format!("{}{call}{}", form.before, form.after);
            let two = format!("{}{call}{}{call}{}", form.before, form.between, form.after);
            let expected = json!(["weather", {"city": "Rome", "days": 2}]);
            for (text, count) in [(one, 1), (two, 2)] {
                let tools = [tool.clone()];
                let read = OutputParser::new(style, &tools, ParseOptions::default()).parse_whole(&text);
                assert_eq!(json!(read.tool_calls), json!(vec![&expected; count]), "{dialect:?}: {text}");
                assert_eq!(read.content, "", "{dialect:?}: {text}");
                let tokens = tokenizer.encode(&text, false);
                for parallel in [true, false] {
                    let choice = ToolChoice::Required;
                    let constraint =
                        Constraint::of(&choice, parallel, &Format::Text, &prompt, &tokenizer).unwrap();
                    let compiled = grammars.compile(constraint.unwrap()).map_err(|error| error.message);
                    let mask =
                        grammars.mask(&compiled.unwrap_or_else(|error| panic!("{dialect:?}: {error}")));
                    let is_allowed = |at: usize, token: u32| {
                        let mut words = vec![0; tokenizer.vocab_size().div_ceil(32)];
                        mask.allow(&tokens[..at], &mut words);
                        words[token as usize / 32] >> (token % 32) & 1 == 1
                    };
                    let allowed = (0..tokens.len()).take_while(|&at| is_allowed(at, tokens[at])).count();
                    let is_whole = allowed == tokens.len() && is_allowed(tokens.len(), end);
                    assert_eq!(
                        is_whole,
                        parallel || count == 1,
                        "{dialect:?}, {parallel}, {allowed}: {text}"
                    );
                }
            }
        }
    }
}
