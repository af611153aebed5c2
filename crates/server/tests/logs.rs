//! What the log says of requests: one line each, with its id and numbers, and no text of prompts or answers.

mod client;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use client::{chat, serve};
use serde_json::{Value, json};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The fields of the line about a request, which comes when its last byte has been sent.
    fn line(&self, id: &str, message: &str) -> Value {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let text = self.text();
            let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let mut found = lines.iter().map(|line| &line["fields"]);
            if let Some(fields) = found.find(|fields| fields["id"] == id && fields["message"] == message) {
                return fields.clone();
            }
            assert!(Instant::now() < deadline, "no `{message}` of {id} in {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_request_is_one_line() {
    let log = Log::default();
    // One subscriber for all threads of this program, which has this one test.
    let subscriber = tracing_subscriber::fmt().json().with_writer(log.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let server = serve(2, |_| {});
    let post = |id: &str, path: &str, body: &Value| {
        let reply = server.request("POST", path, &[("x-request-id", id)], &body.to_string());
        assert_eq!(reply.header("x-request-id"), Some(id));
        reply
    };
    let secret = "What is 17 + 25? My password is swordfish.";
    for stream in [false, true] {
        let id = format!("chat-{stream}");
        let more = json!({"stream": stream, "max_tokens": 5, "n": 2, "user": "someone"});
        assert_eq!(post(&id, "/v1/chat/completions", &chat(secret, more)).status, 200);
        let line = log.line(&id, "request");
        assert_eq!((&line["method"], &line["status"]), (&json!("POST"), &json!(200)), "{line}");
        assert_eq!((&line["path"], &line["user"]), (&json!("/v1/chat/completions"), &json!("someone")));
        assert_eq!((&line["answer_tokens"], &line["finish"]), (&json!(10), &json!("length")), "{line}");
        assert!(
            line["prompt_tokens"].as_u64() > Some(10) && line["prompt_tokens"].as_u64() < Some(80),
            "{line}"
        );
        assert!(line["cached_tokens"].is_u64() && line["total_ms"].is_u64(), "{line}");
        assert!(line["first_token_ms"].as_u64() <= line["total_ms"].as_u64(), "{line}");
    }
    // Inputs of embeddings are prompts like others.
    let texts = json!({"input": [secret, secret]});
    let used = post("embed", "/v1/embeddings", &texts).json()["usage"]["prompt_tokens"].clone();
    let line = log.line("embed", "request");
    assert_eq!((&line["prompt_tokens"], &line["finish"]), (&used, &json!("stop")), "{line}");
    post("embed-again", "/v1/embeddings", &texts);
    assert!(log.line("embed-again", "request")["cached_tokens"].as_u64() > Some(0));
    post("refused", "/v1/messages", &json!({"messages": [], "secret": "swordfish"}));
    assert_eq!(log.line("refused", "request")["status"], 400);
    let made = server.get("/v1/models").header("x-request-id").unwrap().to_owned();
    assert_eq!(log.line(&made, "request")["path"], "/v1/models");
    let plain = server.request("GET", "/v1/models", &[("x-request-id", "no good")], "");
    assert!(plain.header("x-request-id").is_some_and(|id| id.starts_with("req-")), "{plain:?}");
    // A client that leaves is logged too.
    let body =
        chat("Tell me a story.", json!({"stream": true, "max_tokens": 1500, "temperature": 1})).to_string();
    let mut stream = server.connect();
    let headers = [("x-request-id", "leaves")];
    stream.write_all(&server.bytes("POST", "/v1/chat/completions", &headers, &body)).unwrap();
    std::io::Read::read_exact(&mut stream, &mut [0; 300]).unwrap();
    drop(stream);
    assert_eq!(log.line("leaves", "request")["finish"], "cancelled");
    server.get("/health");
    drop(server);
    let text = log.text();
    assert!(!text.contains("swordfish") && !text.contains("/health"), "{text}");
    for word in ["listening", "stopping", "stopped"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let server = serve(1, |config| config.log_prompts = true);
    let body = chat(secret, json!({"max_tokens": 5})).to_string();
    server.request("POST", "/v1/chat/completions", &[("x-request-id", "told")], &body);
    assert!(log.line("told", "prompt")["prompt"].as_str().unwrap().contains("swordfish"));
    assert!(log.line("told", "answer")["answer"].is_string());
}
