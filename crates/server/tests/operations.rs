//! Priorities, requests that can never fit, and long texts beside running answers.

mod client;

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{Running, chat, never_ending, options, serve, serve_with};
use mambo_runtime::LoadOptions;
use serde_json::{Value, json};

/// A request for a short answer on every path that generates.
fn on_every_path() -> [(&'static str, Value); 6] {
    let messages = json!([{"role": "user", "content": "hi"}]);
    [
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 1})),
        ("/v1/completions", json!({"prompt": "hi", "max_tokens": 1})),
        ("/v1/responses", json!({"input": "hi", "max_output_tokens": 1})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 1})),
        ("/api/chat", json!({"messages": messages, "stream": false, "options": {"num_predict": 1}})),
        ("/api/generate", json!({"prompt": "hi", "stream": false, "options": {"num_predict": 1}})),
    ]
}

#[test]
fn a_wrong_priority_is_named_in_every_dialect() {
    let server = serve(1, |_| {});
    for (path, body) in on_every_path() {
        let post = |value: &str| server.request("POST", path, &[("x-priority", value)], &body.to_string());
        assert_eq!(post("-2").status, 200, "{path}");
        let wrong = post("urgent");
        assert!(wrong.status == 400 && wrong.body.contains("x-priority"), "{path}: {}", wrong.body);
    }
}

/// Sends a request on a thread; the moment at which its answer was there.
fn timed(
    server: &Arc<Running>,
    path: &'static str,
    priority: Option<&'static str>,
    body: Value,
) -> std::thread::JoinHandle<Instant> {
    let server = Arc::clone(server);
    std::thread::spawn(move || {
        let headers: Vec<(&str, &str)> = priority.map(|value| ("x-priority", value)).into_iter().collect();
        let reply = server.request("POST", path, &headers, &body.to_string());
        assert_eq!(reply.status, 200, "{}", reply.body);
        Instant::now()
    })
}

/// Waits until this many requests wait for a seat.
fn until_waiting(server: &Running, count: usize) {
    let line = format!("vllm:num_requests_waiting {count}\n");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !server.get("/metrics").body.contains(&line) {
        assert!(Instant::now() < deadline, "{count} do not wait: {}", server.get("/metrics").body);
    }
}

#[test]
fn a_header_decides_what_goes_first_unless_the_body_does() {
    let roomy = LoadOptions { sequences: 1, context_tokens: Some(40_000), ..options() };
    let server = Arc::new(serve_with(roomy, |_| {}));
    // Holds the only seat until all others wait for it.
    let endless =
        chat("Tell me a story.", json!({"max_tokens": 39_000, "stream": true, "logit_bias": never_ending()}));
    let mut seat = server.connect();
    seat.write_all(&server.bytes("POST", "/v1/chat/completions", &[], &endless.to_string())).unwrap();
    assert!(seat.read(&mut [0; 200]).unwrap() > 0);

    let short = chat("Tell me a story.", json!({"max_tokens": 60, "logit_bias": never_ending()}));
    let mut by_body = short.clone();
    by_body["priority"] = json!(-5);
    let low = timed(&server, "/v1/chat/completions", Some("9"), by_body);
    until_waiting(&server, 1);
    let middle = timed(&server, "/v1/chat/completions", None, short);
    until_waiting(&server, 2);
    let messages = json!([{"role": "user", "content": "Tell me a story."}]);
    let high = json!({"messages": messages, "max_tokens": 60});
    let high = timed(&server, "/v1/messages", Some("9"), high);
    until_waiting(&server, 3);
    drop(seat);
    let (low, middle, high) = (low.join().unwrap(), middle.join().unwrap(), high.join().unwrap());
    assert!(high < middle && middle < low, "{:?} {:?}", middle.checked_duration_since(high), low - middle);
}

#[test]
fn what_can_never_fit_is_the_requests_mistake() {
    let server = serve(1, |config| config.queue = 2);
    let refused = |path: &str, body: Value, field: &str| {
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert_eq!(reply.json()["error"]["param"], field, "{}", reply.body);
    };
    refused("/v1/chat/completions", chat("hi", json!({"n": 4})), "n");
    refused("/v1/completions", json!({"prompt": "hi", "n": 4}), "n");
    refused("/v1/completions", json!({"prompt": ["a", "b"], "n": 2}), "prompt");
    let fits = json!({"prompt": ["a", "b", "c"], "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &fits).status, 200);
}

#[test]
fn long_texts_do_not_hold_up_other_answers() {
    let server = Arc::new(serve(2, |_| {}));
    let text = "The quick brown fox jumps over the lazy dog, 12345 times. ".repeat(40_000);
    let begun = Instant::now();
    let busy: Vec<_> = (0..4).map(|_| timed(&server, "/tokenize", None, json!({"prompt": text}))).collect();
    let mut answered = 0;
    while !busy.iter().all(|thread| thread.is_finished()) {
        assert_eq!(server.get("/health").status, 200);
        answered += 1;
    }
    // On the two threads that answer, four texts would leave none for anything else until they are done.
    assert!(answered > 10, "/health was answered {answered} times in {:?}", begun.elapsed());
}
