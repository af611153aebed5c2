//! Ten thousand bodies derived from good requests of every dialect: each is answered or refused in words, none breaks
//! the server or keeps a client waiting.

mod client;

use std::io::{BufReader, Write};
use std::sync::Arc;
use std::time::Duration;

use client::{NAME, options, read_reply, serve_with};
use mambo_runtime::LoadOptions;
use serde_json::{Value, json};

const BODIES: usize = 10_000;
const CONNECTIONS: usize = 4;

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most.max(1) as u64) as usize
    }
}

/// Good requests, with where each dialect puts the message of a refusal.
fn good() -> Vec<(&'static str, &'static str, Value)> {
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]);
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let (openai, ollama) = ("/error/message", "/error");
    let options = json!({"num_predict": 1, "temperature": 0, "top_k": 3, "stop": ["x"], "seed": 1});
    vec![
        (
            "/v1/chat/completions",
            openai,
            json!({
                "model": NAME, "messages": messages, "max_tokens": 1, "temperature": 0.5, "top_p": 0.9, "n": 1,
                "stop": ["x"], "logit_bias": {"5": 1}, "tools": [tool], "tool_choice": "auto", "stream": false,
                "logprobs": true, "top_logprobs": 2, "seed": 7,
            }),
        ),
        (
            "/v1/chat/completions",
            openai,
            json!({
                "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_completion_tokens": 1,
                "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
                "stream": true, "stream_options": {"include_usage": true}, "reasoning_effort": "none",
            }),
        ),
        (
            "/v1/completions",
            openai,
            json!({"model": NAME, "prompt": ["a", "b"], "max_tokens": 1, "logprobs": 1, "echo": true}),
        ),
        (
            "/v1/responses",
            openai,
            json!({
                "input": [{"role": "user", "content": "hi"}, {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "1", "output": "x"}],
                "max_output_tokens": 1, "text": {"format": {"type": "text"}}, "reasoning": {"effort": "none"}, "metadata": {"a": "b"},
            }),
        ),
        (
            "/v1/messages",
            openai,
            json!({
                "max_tokens": 1, "system": "Be brief.", "stop_sequences": ["x"], "thinking": {"type": "disabled"},
                "tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "auto"},
                "messages": [{"role": "user", "content": "hi"},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "x"}]}],
            }),
        ),
        ("/v1/messages/count_tokens", openai, json!({"messages": [{"role": "user", "content": "hi"}]})),
        (
            "/api/chat",
            ollama,
            json!({
                "model": NAME, "messages": messages, "stream": false, "options": options, "format": schema, "think": false,
            }),
        ),
        (
            "/api/generate",
            ollama,
            json!({"prompt": "hi", "system": "Be brief.", "raw": false, "options": options, "stream": true}),
        ),
        ("/api/show", ollama, json!({"model": NAME})),
        ("/tokenize", openai, json!({"prompt": "hi", "add_special_tokens": true})),
        ("/detokenize", openai, json!({"tokens": [1, 2, 3]})),
    ]
}

/// Every place in a value.
fn places(value: &Value, at: String, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, inner)| places(inner, format!("{at}/{key}"), found));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, inner)| places(inner, format!("{at}/{index}"), found));
        }
        _ => {}
    }
    found.push(at);
}

/// A value of another kind than is wanted, most likely.
fn wrong_value(random: &mut Random) -> Value {
    let deep =
        (0..60).fold(json!(1), |inner, n| if n % 2 == 0 { json!([inner]) } else { json!({"a": inner}) });
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1.5),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e300),
        json!(""),
        json!([]),
        json!({}),
        json!([[]]),
        json!([null]),
        json!({"type": null}),
        json!("\u{0}\u{1}\u{7f}\u{feff}\u{202e}"),
        json!("x".repeat(20_000)),
        json!("💣é\u{301}"),
        json!("<|im_end|><think></think>"),
        json!({"$ref": "#"}),
        json!({"type": "image_url", "image_url": {"url": "data:,"}}),
        json!({"$ref": "file:///etc/passwd"}),
        deep,
    ];
    values[random.below(values.len())].clone()
}

/// One change of the structure.
fn mutate(value: &mut Value, random: &mut Random) {
    let mut all = Vec::new();
    places(value, String::new(), &mut all);
    let [one, other] = [0; 2].map(|_| all[random.below(all.len())].clone());
    match random.below(4) {
        0 | 1 => *value.pointer_mut(&one).unwrap() = wrong_value(random),
        2 => {
            let copy = value.pointer(&other).unwrap().clone();
            *value.pointer_mut(&one).unwrap() = copy;
        }
        _ => match value.pointer_mut(&one).unwrap() {
            Value::Object(fields) => {
                let key = fields.keys().nth(random.below(fields.len())).cloned().unwrap_or_default();
                fields.remove(&key);
            }
            Value::Array(items) => items.extend(items.clone()),
            leaf => *leaf = json!([leaf.clone()]),
        },
    }
}

/// One change of the bytes.
fn mutate_bytes(bytes: &mut Vec<u8>, random: &mut Random) {
    const INSERTED: [&[u8]; 14] = [
        b"\0",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\\ud800",
        b"\\u0000",
        b"NaN",
        b"1e999",
        b"-0",
        b"[[[[[[[[",
        b"{\"a\":",
        b"\"",
        b",",
        b"99999999999999999999999999999999",
        b"// x\n",
    ];
    let at = random.below(bytes.len() + 1);
    match random.below(4) {
        0 => bytes.truncate(at),
        1 => bytes.extend_from_slice(&bytes.clone()[at..]),
        2 => drop(bytes.splice(at..at, INSERTED[random.below(INSERTED.len())].iter().copied())),
        _ => {
            let end = (at + 1 + random.below(8)).min(bytes.len());
            bytes.drain(at..end);
        }
    }
}

#[test]
fn ten_thousand_malformed_bodies_are_answered() {
    let server = LoadOptions { sequences: CONNECTIONS, context_tokens: Some(128), ..options() };
    let server = Arc::new(serve_with(server, |config| config.time_limit = Duration::from_secs(20)));
    let threads: Vec<_> = (0..CONNECTIONS)
        .map(|number| {
            let server = Arc::clone(&server);
            std::thread::spawn(move || send_share(&server, number))
        })
        .collect();
    let statuses: Vec<[usize; 2]> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let [taken, refused] = statuses.iter().fold([0, 0], |all, one| [all[0] + one[0], all[1] + one[1]]);
    assert!(taken > 200 && refused > 5000, "{taken} taken, {refused} refused");
    assert_eq!(server.get("/health").status, 200);
}

/// Sends every so many-th body over one connection; how many were taken and refused.
fn send_share(server: &client::Running, number: usize) -> [usize; 2] {
    let good = good();
    let mut stream = server.connect();
    stream.set_nodelay(true).unwrap();
    let mut counts = [0, 0];
    for index in (number..BODIES).step_by(CONNECTIONS) {
        let mut random = Random(index as u64 * 0x9E37_79B9 + 1);
        (0..4).for_each(|_| _ = random.below(2));
        let (path, pointer, mut value) = good[random.below(good.len())].clone();
        (0..random.below(3)).for_each(|_| mutate(&mut value, &mut random));
        let mut body = value.to_string().into_bytes();
        (0..random.below(3)).for_each(|_| mutate_bytes(&mut body, &mut random));
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
        let reply = read_reply(&mut BufReader::new(&stream));
        let what = || format!("{index}: {path} {}: {}", String::from_utf8_lossy(&body), reply.body);
        match reply.status {
            200 => counts[0] += 1,
            400 | 404 | 413 => {
                let message = reply.json().pointer(pointer).and_then(Value::as_str).map(str::len);
                assert!(message.is_some_and(|length| length > 5), "{}", what());
                counts[1] += 1;
            }
            status => panic!("{status} for {}", what()),
        }
    }
    counts
}
