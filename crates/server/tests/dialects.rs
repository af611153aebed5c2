//! The same answers in every dialect, at once and as they come.

mod client;

use std::io::{Read, Write};

use client::{NAME, chat, serve};
use serde_json::{Value, json};

const QUESTION: &str = "What is 17 + 25?";

/// The pieces of a stream put together: thought, content, arguments of calls, the reason it ended.
fn joined(events: &[Value]) -> (String, String, Vec<Value>, String) {
    let (mut thought, mut content, mut calls, mut reason) =
        (String::new(), String::new(), Vec::new(), String::new());
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        let delta = &choice["delta"];
        thought += delta["reasoning_content"].as_str().unwrap_or_default();
        content += delta["content"].as_str().unwrap_or_default();
        calls.extend(delta["tool_calls"].as_array().into_iter().flatten().cloned());
        reason += choice["finish_reason"].as_str().unwrap_or_default();
    }
    (thought, content, calls, reason)
}

#[test]
fn a_stream_is_the_whole_answer_in_pieces() {
    let server = serve(2, |_| {});
    for effort in ["none", "high"] {
        let whole = server.ask(QUESTION, json!({"reasoning_effort": effort}));
        let message = &whole["choices"][0]["message"];
        assert!(message["content"].as_str().unwrap().contains("42"), "{whole}");
        assert_eq!(message.get("reasoning_content").is_some(), effort == "high", "{whole}");
        let more =
            json!({"reasoning_effort": effort, "stream": true, "stream_options": {"include_usage": true}});
        let reply = server.post("/v1/chat/completions", &chat(QUESTION, more));
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        assert!(reply.body.ends_with("data: [DONE]\n\n"), "{}", reply.body);
        let events = reply.events();
        let (thought, content, calls, reason) = joined(&events);
        assert_eq!(content, message["content"]);
        assert_eq!(thought, message["reasoning_content"].as_str().unwrap_or_default());
        assert!(calls.is_empty());
        assert_eq!((reason.as_str(), &whole["choices"][0]["finish_reason"]), ("stop", &json!("stop")));
        let usage = &events.last().unwrap()["usage"];
        assert_eq!(usage["completion_tokens"], whole["usage"]["completion_tokens"]);
        assert_eq!(usage["prompt_tokens"], whole["usage"]["prompt_tokens"]);
    }
}

#[test]
fn what_was_read_is_not_read_again() {
    let server = serve(2, |_| {});
    let system = "You answer questions about numbers, briefly and well. ".repeat(20);
    let messages = |extra: &[Value]| {
        let mut all =
            vec![json!({"role": "system", "content": system}), json!({"role": "user", "content": QUESTION})];
        all.extend_from_slice(extra);
        json!({"messages": all})
    };
    let first = server.ask("", messages(&[]));
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let answer = first["choices"][0]["message"]["content"].clone();
    let turn =
        [json!({"role": "assistant", "content": answer}), json!({"role": "user", "content": "And 3 + 4?"})];
    let second = server.ask("", messages(&turn));
    let usage = &second["usage"];
    let (read, cached) = (
        usage["prompt_tokens"].as_u64().unwrap(),
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap(),
    );
    assert!(cached + 60 > read && cached > 200, "{second}");
    assert!(second["mambo"]["reuse"].as_str().unwrap().contains("restored"), "{second}");
    // The same answer as a server without a cache gives.
    let plain =
        client::serve_with(mambo_runtime::LoadOptions { prefix_cache: None, ..client::options() }, |_| {});
    let want = plain.ask("", messages(&turn));
    assert_eq!(second["choices"][0]["message"]["content"], want["choices"][0]["message"]["content"]);
    assert_eq!(want["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

fn weather() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/text/weather-tool.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn tools_are_called_in_every_dialect() {
    let server = serve(2, |_| {});
    let question = "What is the weather in Paris?";
    let answer = server.ask(question, json!({"tools": weather()}));
    let choice = &answer["choices"][0];
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "get_weather", "{answer}");
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!((arguments, &choice["finish_reason"]), (json!({"city": "Paris"}), &json!("tool_calls")));

    let function = &weather()[0]["function"];
    let tool = json!({"name": function["name"], "description": function["description"], "input_schema": function["parameters"]});
    let request = json!({
        "model": NAME, "max_tokens": 300, "temperature": 0, "tools": [tool], "thinking": {"type": "disabled"},
        "messages": [{"role": "user", "content": question}],
    });
    let reply = server.post("/v1/messages", &request).json();
    let block = reply["content"].as_array().unwrap().iter().find(|block| block["type"] == "tool_use");
    assert_eq!(block.expect("a call")["input"], json!({"city": "Paris"}), "{reply}");
    assert_eq!(reply["stop_reason"], "tool_use");

    let request = json!({
        "model": NAME, "options": {"temperature": 0}, "tools": weather(), "think": false, "stream": false,
        "messages": [{"role": "user", "content": question}],
    });
    let reply = server.post("/api/chat", &request).json();
    assert_eq!(
        reply["message"]["tool_calls"][0]["function"]["arguments"],
        json!({"city": "Paris"}),
        "{reply}"
    );
}

#[test]
fn grammars_decide_the_form_of_an_answer() {
    let server = serve(2, |_| {});
    let schema = json!({
        "type": "object", "required": ["sum", "sure"], "additionalProperties": false,
        "properties": {"sum": {"type": "integer"}, "sure": {"type": "boolean"}},
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}});
    for effort in ["none", "high"] {
        let answer = server.ask(QUESTION, json!({"response_format": format, "reasoning_effort": effort}));
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {answer}"));
        assert!(value["sum"].is_i64() && value["sure"].is_boolean(), "{answer}");
    }
    let regex = json!({"response_format": {"type": "regex", "regex": "(yes|no), [0-9]{3}"}});
    let answer = server.ask(QUESTION, regex);
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.starts_with("yes, ") || text.starts_with("no, "), "{text}");
    // With tools on offer, either form is allowed and nothing else.
    let both = json!({"response_format": format, "tools": weather()});
    let called = server.ask("What is the weather in Paris?", both.clone());
    assert_eq!(
        called["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "get_weather",
        "{called}"
    );
    // Definitions that parameters refer to reach their grammar.
    let parameters = json!({
        "type": "object", "required": ["unit"], "properties": {"unit": {"$ref": "#/$defs/Unit"}},
        "$defs": {"Unit": {"type": "integer", "minimum": 1, "maximum": 9}},
    });
    let tool = json!([{"type": "function", "function": {"name": "set", "parameters": parameters}}]);
    let answer = server.ask("Hello!", json!({"tools": tool, "tool_choice": "required"}));
    let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!((1..10).contains(&arguments["unit"].as_i64().unwrap()), "{answer}");
    let required = json!({"tools": weather(), "tool_choice": "required"});
    let answer = server.ask("Tell me a story.", required);
    let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "get_weather", "{answer}");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["city"].is_string(), "{answer}");
}

#[test]
fn completions_continue_text() {
    let server = serve(2, |_| {});
    let request = json!({"model": NAME, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "logprobs": 2});
    let whole = server.post("/v1/completions", &request).json();
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &whole["usage"]["completion_tokens"]),
        (&json!("length"), &json!(8))
    );
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), 8);
    assert_eq!(choice["logprobs"]["top_logprobs"][0].as_object().unwrap().len(), 2);
    let text = choice["text"].as_str().unwrap();
    let stop: String = text.chars().skip(3).take(4).collect();
    let mut stopped = request.clone();
    stopped["stop"] = json!([stop]);
    let cut = server.post("/v1/completions", &stopped).json();
    assert_eq!(cut["choices"][0]["text"], text.split(&stop).next().unwrap(), "{cut}");
    assert_eq!(cut["choices"][0]["finish_reason"], "stop");
    let mut streamed = request;
    streamed["stream"] = true.into();
    let reply = server.post("/v1/completions", &streamed);
    let joined: String =
        reply.events().iter().filter_map(|e| e["choices"][0]["text"].as_str().map(str::to_owned)).collect();
    assert_eq!(joined, text);
    let offsets: Vec<Value> = reply
        .events()
        .iter()
        .flat_map(|event| {
            event["choices"][0]["logprobs"]["text_offset"].as_array().cloned().unwrap_or_default()
        })
        .collect();
    assert_eq!(Value::Array(offsets), choice["logprobs"]["text_offset"], "offsets go on across chunks");
}

#[test]
fn the_other_dialects_stream_and_count() {
    let server = serve(2, |_| {});
    let request = json!({
        "model": NAME, "max_tokens": 300, "temperature": 0, "stream": true, "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}],
    });
    let reply = server.post("/v1/messages", &request);
    let events = reply.events();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("message_start", "message_stop"), "{}", reply.body);
    let text: String =
        events.iter().filter_map(|event| event["delta"]["text"].as_str().map(str::to_owned)).collect();
    assert!(text.contains("42"), "{}", reply.body);
    let starts = kinds.iter().filter(|kind| **kind == "content_block_start").count();
    assert_eq!(starts, kinds.iter().filter(|kind| **kind == "content_block_stop").count());
    let count = server.post("/v1/messages/count_tokens", &request).json();
    let usage = &events[0]["message"]["usage"];
    let read = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(count["input_tokens"].as_u64(), Some(read));

    let request = json!({"model": format!("{NAME}:latest"), "prompt": QUESTION, "options": {"temperature": 0}, "think": false});
    let reply = server.post("/api/generate", &request);
    let lines: Vec<Value> = reply.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let text: String = lines.iter().filter_map(|line| line["response"].as_str().map(str::to_owned)).collect();
    assert!(text.contains("42"), "{}", reply.body);
    let last = lines.last().unwrap();
    assert!(last["done"] == true && last["eval_count"].as_u64() > Some(0), "{last}");
    assert_eq!(server.get("/api/tags").json()["models"][0]["name"], NAME);
    assert!(server.get("/api/version").json()["version"].is_string());
}

/// The numbers of a vector.
fn numbers(vector: &Value) -> Vec<f64> {
    vector.as_array().unwrap_or_else(|| panic!("{vector}")).iter().map(|v| v.as_f64().unwrap()).collect()
}

#[test]
fn embeddings_are_the_same_in_both_dialects() {
    let server = serve(2, |_| {});
    let texts = ["The cat sat on the mat.", "A dog barked.", "Seven"];
    let ask = |more: Value| {
        let mut request = json!({"model": NAME, "input": texts});
        more.as_object().unwrap().iter().for_each(|(key, value)| request[key] = value.clone());
        server.post("/v1/embeddings", &request)
    };
    let all = ask(json!({})).json();
    let vectors: Vec<Vec<f64>> =
        all["data"].as_array().unwrap().iter().map(|one| numbers(&one["embedding"])).collect();
    assert_eq!((vectors.len(), &all["data"][2]["index"]), (3, &json!(2)), "{all}");
    for vector in &vectors {
        assert!((vector.iter().map(|v| v * v).sum::<f64>() - 1.0).abs() < 1e-5);
    }
    assert_ne!(vectors[0], vectors[1]);
    // Tokens are as good as text, and one input as good as several.
    let tokens =
        texts.map(|text| server.post("/tokenize", &json!({"prompt": text})).json()["tokens"].clone());
    let count: usize = tokens.iter().map(|tokens| tokens.as_array().unwrap().len()).sum();
    assert_eq!(all["usage"], json!({"prompt_tokens": count, "total_tokens": count}));
    assert_eq!(ask(json!({"input": tokens})).json()["data"], all["data"]);
    assert_eq!(ask(json!({"input": tokens[1]})).json()["data"][0]["embedding"], all["data"][1]["embedding"]);
    assert_eq!(ask(json!({"input": texts[0]})).json()["data"][0], all["data"][0]);
    // Shorter ones are the beginning, as long as before.
    let short = numbers(&ask(json!({"dimensions": 8})).json()["data"][0]["embedding"]);
    let length = vectors[0][..8].iter().map(|v| v * v).sum::<f64>().sqrt();
    assert!(short.len() == 8 && (short[3] - vectors[0][3] / length).abs() < 1e-6, "{short:?}");
    let text = ask(json!({"encoding_format": "base64", "input": texts[0]})).json();
    let text = text["data"][0]["embedding"].as_str().unwrap().to_owned();
    assert_eq!(text.len(), (vectors[0].len() * 4).div_ceil(3) * 4);

    let reply = server.post("/api/embed", &json!({"model": NAME, "input": texts})).json();
    assert_eq!(reply["embeddings"][1], all["data"][1]["embedding"]);
    assert!(reply["prompt_eval_count"] == count && reply["total_duration"].as_u64() > Some(0), "{reply}");
    let old = server.post("/api/embeddings", &json!({"model": NAME, "prompt": texts[1]})).json();
    assert_eq!(old["embedding"], all["data"][1]["embedding"]);
    let long = "word ".repeat(4000);
    let cut = json!({"model": NAME, "input": long});
    assert_eq!(server.post("/api/embed", &cut).json()["prompt_eval_count"], 2048);
    let whole = json!({"model": NAME, "input": long, "truncate": false});
    assert_eq!(server.post("/api/embed", &whole).status, 400);

    let size = vectors[0].len();
    for (wrong, field) in [
        (json!({"input": ""}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": ["a", ""]}), "input[1]"),
        (json!({"input": [[1], []]}), "input[1]"),
        (json!({"input": long}), "input[0]"),
        (json!({"input": {"text": "a"}}), "input"),
        (json!({"input": [99_999_999]}), "vocabulary"),
        (json!({"encoding_format": "int8"}), "encoding_format"),
        (json!({"dimensions": size + 1}), "dimensions"),
        (json!({"dimensions": 0}), "dimensions"),
    ] {
        let reply = ask(wrong.clone());
        assert!(reply.status == 400 && reply.body.contains(field), "{wrong}: {}", reply.body);
    }
    assert_eq!(ask(json!({"model": "other"})).status, 404);
}

#[test]
fn tokens_go_both_ways() {
    let server = serve(1, |_| {});
    let tokens = server.post("/tokenize", &json!({"prompt": "Hello, world"})).json();
    let back = server.post("/detokenize", &json!({"tokens": tokens["tokens"]})).json();
    assert!(back["prompt"].as_str().unwrap().ends_with("Hello, world"), "{back}");
    assert_eq!(server.get("/v1/models").json()["data"][0]["id"], NAME);
    assert_eq!(server.get("/health").status, 200);
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("vllm:num_requests_running") && metrics.ends_with("# EOF\n"), "{metrics}");
}

/// Events of the live view until there are so many.
fn watch(stream: &mut std::net::TcpStream, count: usize) -> Vec<String> {
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    let events = |text: &str| -> Vec<String> {
        // Only whole lines: what follows the last may be half an event.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
    };
    while events(&text).len() < count {
        let read = stream.read(&mut buffer).unwrap();
        text += std::str::from_utf8(&buffer[..read]).unwrap();
    }
    events(&text)
}

#[test]
fn all_who_watch_see_the_same() {
    let server = serve(1, |_| {});
    let mut watchers = [server.connect(), server.connect()];
    for watcher in &mut watchers {
        watcher.write_all(&server.bytes("GET", "/api/mambo/live", &[], "")).unwrap();
    }
    server.ask("Tell me a story.", json!({"max_tokens": 100}));
    let [one, other] = watchers.each_mut().map(|watcher| watch(watcher, 4));
    let is_shared = |event: &&String| other.contains(event);
    assert!(one.iter().filter(is_shared).count() >= 3, "{one:?} {other:?}");
    assert!(one.iter().any(|event| event.contains("microseconds")), "{one:?}");
}

#[test]
fn the_api_describes_itself() {
    let server = serve(1, |config| config.api_keys = vec!["sesame".into()]);
    let document = server.get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    let temperature = document.pointer("/components/schemas/SamplingFields/properties/temperature");
    assert_eq!(temperature.unwrap()["minimum"].as_f64(), Some(0.0), "{temperature:?}");
    let page = server.get("/docs");
    assert!(page.status == 200 && page.body.contains("docs.js"), "{}", page.body);
}

#[test]
fn the_page_is_served_and_fed() {
    let server = serve(1, |_| {});
    let page = server.get("/");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(page.header("content-security-policy").is_some() && page.body.contains("app.js"));
    let script = server.get("/app.js");
    assert_eq!((script.status, script.header("content-type")), (200, Some("text/javascript; charset=utf-8")));
    assert_eq!(server.get("/api/mambo/model").json()["name"], NAME);
    // The live view, while a request runs.
    let mut live = server.connect();
    live.write_all(&server.bytes("GET", "/api/mambo/live", &[], "")).unwrap();
    server.ask(QUESTION, json!({}));
    let events = watch(&mut live, 2);
    assert!(events.iter().all(|event| event.contains("\"running\"") && event.contains("tokens_per_second")));
    let chosen = |event: &String| {
        let event: Value = serde_json::from_str(event).unwrap();
        let experts = event["experts"].as_object().unwrap();
        let is_counted = |counts: &Value| counts.as_array().unwrap().iter().any(|count| *count != 0);
        !experts.is_empty() && experts.values().all(is_counted)
    };
    assert!(events.iter().any(chosen), "{events:?}");
    drop(live);
    // Whoever watched has gone, and everything goes on.
    assert!(
        server.ask(QUESTION, json!({}))["choices"][0]["message"]["content"].as_str().unwrap().contains("42")
    );
}
