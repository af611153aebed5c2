//! Wrong requests are answered with what is wrong, in the dialect of their path, and never end the server.

mod client;

use client::{NAME, chat, serve};
use serde_json::{Value, json};

#[test]
fn a_wrong_value_is_named() {
    let server = serve(1, |_| {});
    let cases = [
        (json!({"temperature": -1}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"top_p": 2}), "top_p"),
        (json!({"n": 0}), "n"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"content": "hi"}]}), "messages[0].role"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (json!({"response_format": {"type": "xml"}}), "response_format"),
        (json!({"response_format": {"type": "regex", "regex": "("}}), "response_format"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 7}}}}),
            "response_format",
        ),
        (json!({"response_format": {"type": "lark", "lark": "start: start"}}), "response_format"),
        (json!({"tools": [{}]}), "tools[0].name"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "nothing"}}}), "tool_choice"),
        (json!({"reasoning_effort": "most"}), "reasoning_effort"),
        (json!({"top_logprobs": 99}), "top_logprobs"),
        (json!({"stop": [1]}), "stop"),
    ];
    for (more, field) in cases {
        let reply = server.post("/v1/chat/completions", &chat("hi", more.clone()));
        assert_eq!(reply.status, 400, "{more}: {}", reply.body);
        let error = &reply.json()["error"];
        let names =
            error["param"].as_str().unwrap_or_default().to_owned() + error["message"].as_str().unwrap();
        assert!(names.contains(field), "{more}: {error}");
    }
    // A field that is missing is named without a search that grows with the body.
    let many: serde_json::Map<String, Value> = (0..5000).map(|n| (format!("k{n}"), json!(n))).collect();
    let reply = server.post("/v1/chat/completions", &many.into());
    assert!(reply.status == 400 && reply.body.contains("messages"), "{}", reply.body);
    let nulls = json!({"stream": null, "logprobs": null, "stream_options": null, "stop": null, "seed": null});
    assert_eq!(server.post("/v1/chat/completions", &chat("hi", nulls)).status, 200);
    let unknown = json!({"nonsense": 7, "user": "somebody", "metadata": {"a": 1}, "store": true});
    assert_eq!(server.post("/v1/chat/completions", &chat("hi", unknown)).status, 200);
}

/// What the document leaves open, the server takes; what it bounds, the server refuses.
#[test]
fn the_document_says_what_is_taken() {
    let server = serve(1, |_| {});
    let document = server.get("/openapi.json").json();
    let schemas = &document["components"]["schemas"];
    let tool = |name: &str| json!({"tools": [{"type": "function", "function": {"name": name}}]});
    let taken = [
        json!({"temperature": 1e30}),
        json!({"presence_penalty": 1e9, "frequency_penalty": -1e9, "repetition_penalty": 1e9}),
        json!({"messages": [{"role": "narrator", "content": "hi"}]}),
        tool("Größe, 2 m?"),
    ];
    for more in taken {
        let mut body = chat("hi", json!({"max_tokens": 1}));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = server.post("/v1/chat/completions", &body);
        assert_eq!(reply.status, 200, "{more}: {}", reply.body);
    }
    assert_eq!(server.post("/v1/chat/completions", &chat("hi", tool(""))).status, 400);
    let sampling = &schemas["SamplingFields"]["properties"];
    for (field, minimum) in [("temperature", json!(0)), ("presence_penalty", Value::Null)] {
        let bounds = (&sampling[field]["minimum"], &sampling[field]["maximum"]);
        assert_eq!(bounds, (&minimum, &Value::Null), "{field}");
    }
    assert_eq!(sampling["repetition_penalty"]["exclusiveMinimum"], 0);
    assert_eq!(schemas["ChatMessage"]["properties"]["role"]["pattern"], Value::Null);
}

#[test]
fn the_document_has_every_method_of_a_path() {
    let server = serve(1, |_| {});
    let document = server.get("/openapi.json").json();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let reply = server.request("PATCH", &path.replace("{name}", "x"), &[], "");
        assert_eq!(reply.status, 405, "{path}: {}", reply.body);
        let allowed = reply.header("allow").unwrap_or_default().to_lowercase();
        // What answers GET answers HEAD too.
        let mut allowed: Vec<&str> = allowed.split(',').map(str::trim).filter(|m| *m != "head").collect();
        allowed.sort_unstable();
        let mut described: Vec<&str> = methods.as_object().unwrap().keys().map(String::as_str).collect();
        described.sort_unstable();
        assert_eq!(allowed, described, "{path}: the server on the left, the document on the right");
    }
}

#[test]
fn a_token_that_the_model_does_not_have_is_refused_before_the_stream() {
    let server = serve(1, |_| {});
    let bias = json!({"99999999": 1});
    let all: serde_json::Map<String, Value> = (0..4096).map(|id| (id.to_string(), json!(-100))).collect();
    let reply = server.post("/v1/chat/completions", &chat("hi", json!({"logit_bias": all})));
    assert!(reply.status == 400 && reply.body.contains("bans every token"), "{}", reply.body);
    let cases = [
        ("/v1/chat/completions", chat("hi", json!({"logit_bias": bias, "stream": true})), "logit_bias"),
        ("/v1/completions", json!({"prompt": "hi", "logit_bias": bias, "stream": true}), "logit_bias"),
        ("/v1/completions", json!({"prompt": [1, 99999999], "stream": true}), "prompt"),
        ("/v1/embeddings", json!({"input": [[1], [99999999]]}), "input[1]"),
    ];
    for (path, body, field) in cases {
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 400, "{body}: {}", reply.body);
        let error = &reply.json()["error"];
        assert_eq!(error["param"], field, "{error}");
        assert!(error["message"].as_str().unwrap().contains("token 99999999"), "{error}");
    }
}

#[test]
fn every_path_has_its_dialect_of_errors() {
    let server = serve(1, |_| {});
    let wrong = json!({"model": "other", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "max_tokens": 3});
    for (path, pointer) in [
        ("/v1/chat/completions", "/error/message"),
        ("/v1/completions", "/error/message"),
        ("/v1/messages", "/error/message"),
        ("/api/chat", "/error"),
        ("/api/generate", "/error"),
    ] {
        let reply = server.post(path, &wrong);
        assert_eq!(reply.status, 404, "{path}: {}", reply.body);
        let message = reply.json().pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        assert!(message.contains("other") && message.contains(NAME), "{path}: {message}");
        assert_eq!(server.request("GET", path, &[], "").status, 405);
        assert_eq!(server.request("POST", path, &[], "{").status, 400);
        // What a body calls itself does not matter.
        assert_eq!(server.request("POST", path, &[("content-type", "text/plain")], "{").status, 400);
    }
    assert_eq!(server.get("/nowhere").status, 404);
    assert_eq!(server.get("/../../etc/passwd").status, 404);
}

#[test]
fn images_are_refused_by_the_name_of_their_field() {
    let server = serve(1, |_| {});
    let content = |part: Value| json!([{"role": "user", "content": [{"type": "text", "text": "hi"}, part]}]);
    let url = json!({"type": "image_url", "image_url": {"url": "data:,"}});
    let block = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}});
    let input = json!({"type": "input_image", "image_url": "data:,"});
    let cases = [
        ("/v1/chat/completions", json!({"messages": content(url)}), "messages[0].content[1]"),
        ("/v1/messages", json!({"max_tokens": 1, "messages": content(block)}), "messages[0].content[1]"),
        ("/v1/responses", json!({"input": content(input)}), "input[0].content[1]"),
        (
            "/api/chat",
            json!({"messages": [{"role": "user", "content": "hi", "images": ["aa"]}]}),
            "messages[0].images",
        ),
        ("/api/generate", json!({"prompt": "hi", "images": ["aa"]}), "images"),
    ];
    for (path, body, field) in cases {
        let reply = server.post(path, &body);
        assert!(reply.status == 400 && reply.body.contains(field), "{path}: {} {}", reply.status, reply.body);
    }
}

#[test]
fn pages_elsewhere_and_strangers_stay_out() {
    let server = serve(1, |config| config.api_keys = vec!["sesame".into()]);
    let get = |headers: &[(&str, &str)]| server.request("GET", "/v1/models", headers, "").status;
    assert_eq!(get(&[]), 401);
    assert_eq!(get(&[("authorization", "Bearer sesame")]), 200);
    assert_eq!(get(&[("authorization", "Bearer sesame"), ("host", "evil.example")]), 403);
    assert_eq!(get(&[("authorization", "Bearer sesame"), ("origin", "https://evil.example")]), 403);
    assert_eq!(server.request("GET", "/health", &[], "").status, 200);
}

#[test]
fn hostile_bodies_do_no_harm() {
    let server = serve(1, |config| config.body_bytes = 100_000);
    let deep = "[".repeat(40_000) + &"]".repeat(40_000);
    assert_eq!(server.request("POST", "/v1/chat/completions", &[], &deep).status, 400);
    let nested = format!(
        "{{\"messages\":[{{\"role\":\"user\",\"content\":{}1{}}}]}}",
        "[".repeat(100),
        "]".repeat(100)
    );
    let status = server.request("POST", "/v1/chat/completions", &[], &nested).status;
    assert!(status < 500, "{status}");
    let large = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}}]}}", "x".repeat(200_000));
    assert_eq!(server.request("POST", "/v1/chat/completions", &[], &large).status, 413);
    let long = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}}]}}", "word ".repeat(15_000));
    let reply = server.request("POST", "/v1/chat/completions", &[], &long);
    assert_eq!(reply.status, 400, "{}", reply.body);
    assert!(reply.body.contains("context"), "{}", reply.body);
    // Every cut and many flips of a good request.
    let good =
        chat("hi", json!({"max_tokens": 1, "tools": [], "stop": ["a"], "logit_bias": {"1": 1}})).to_string();
    for cut in 0..good.len() {
        let status = server.request("POST", "/v1/chat/completions", &[], &good[..cut]).status;
        assert_eq!(status, 400, "{}", &good[..cut]);
    }
    for at in 0..good.len() {
        for byte in [b'{', b'"', b'9', b'\\', 0x80] {
            let mut bytes = server.bytes("POST", "/v1/chat/completions", &[], &good);
            let start = bytes.len() - good.len();
            bytes[start + at] = byte;
            let status = server.send_raw(&bytes).status;
            assert!(status < 500, "{status} at {at} with {byte}");
        }
    }
    assert_eq!(server.get("/health").status, 200);
}
