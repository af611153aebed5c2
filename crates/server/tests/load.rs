//! Many at once: every stream gets its own tokens, clients that go take nothing along, and the queue has an end.

mod client;

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{chat, never_ending, serve};
use serde_json::json;

fn content(reply: &client::Reply) -> String {
    let events = reply.events();
    events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect()
}

#[test]
fn streams_are_never_mixed() {
    let server = Arc::new(serve(6, |_| {}));
    let question = |n: usize| format!("What is {} + {}?", 3 + n % 7, 10 + n % 5);
    let request = |n: usize| chat(&question(n), json!({"stream": true, "max_tokens": 24}));
    let alone: Vec<String> =
        (0..12).map(|n| content(&server.post("/v1/chat/completions", &request(n)))).collect();
    let threads: Vec<_> = (0..36)
        .map(|n| {
            let (server, body) = (Arc::clone(&server), request(n % 12));
            std::thread::spawn(move || {
                if n % 5 == 4 {
                    // Goes away in the middle.
                    let mut stream = server.connect();
                    let bytes = server.bytes("POST", "/v1/chat/completions", &[], &body.to_string());
                    stream.write_all(&bytes).unwrap();
                    let _ = stream.read(&mut [0; 200]);
                    return None;
                }
                Some(content(&server.post("/v1/chat/completions", &body)))
            })
        })
        .collect();
    for (n, thread) in threads.into_iter().enumerate() {
        if let Some(got) = thread.join().unwrap() {
            assert_eq!(got, alone[n % 12], "stream {n}");
        }
    }
    // Those that went have left their places.
    let deadline = Instant::now() + Duration::from_secs(10);
    while !server.get("/metrics").body.contains("vllm:num_requests_running 0") {
        assert!(Instant::now() < deadline, "{}", server.get("/metrics").body);
        std::thread::sleep(Duration::from_millis(50));
        server.ask("Hello!", json!({"max_tokens": 1}));
    }
}

#[test]
fn a_full_queue_is_refused_and_time_limits_hold() {
    let server = Arc::new(serve(1, |config| {
        config.queue = 2;
        config.time_limit = Duration::from_millis(1500);
    }));
    let long = json!({"max_tokens": 1500, "logit_bias": never_ending()});
    let long = chat("Tell me a very long story.", long);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (server, body) = (Arc::clone(&server), long.clone());
            std::thread::spawn(move || server.post("/v1/chat/completions", &body))
        })
        .collect();
    let replies: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let refused: Vec<_> = replies.iter().filter(|reply| reply.status == 429).collect();
    assert!(!refused.is_empty(), "{replies:?}");
    assert!(refused.iter().all(|reply| reply.header("retry-after").is_some()));
    assert!(refused[0].json()["error"]["message"].as_str().unwrap().contains("wait already"));
    assert!(replies.iter().all(|reply| matches!(reply.status, 200 | 429 | 504)), "{replies:?}");
    assert_eq!(server.post("/v1/chat/completions", &chat("Hello!", json!({"max_tokens": 2}))).status, 200);
}

#[test]
fn what_finds_a_slot_does_not_wait() {
    let server = serve(2, |config| config.queue = 0);
    assert_eq!(
        server.ask("Hello!", json!({"max_tokens": 2, "n": 2}))["choices"].as_array().unwrap().len(),
        2
    );
}

#[test]
fn a_long_prompt_does_not_stall_a_stream() {
    let server = serve(2, |_| {});
    let endless = json!({"stream": true, "max_tokens": 1500, "logit_bias": never_ending()});
    let body = chat("Tell me a very long story.", endless).to_string();
    let mut running = server.connect();
    running.write_all(&server.bytes("POST", "/v1/chat/completions", &[], &body)).unwrap();
    let _ = running.read(&mut [0; 4096]);
    let generated = || -> u64 {
        let metrics = server.get("/metrics").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix("vllm:generation_tokens_total "));
        line.expect("tokens are counted").parse().unwrap()
    };
    let before = generated();
    let prompt = "The quick brown fox jumps over the lazy dog. ".repeat(120);
    let long = server.ask(&prompt, json!({"max_tokens": 1}));
    assert!(long["usage"]["prompt_tokens"].as_u64() > Some(1000), "{long}");
    // Read in whole steps, the prompt would take three; the stream gets a token in each.
    let tokens = generated() - before;
    assert!(tokens > 20, "{tokens} tokens came while the prompt was read");
}
