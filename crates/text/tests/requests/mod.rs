//! Requests as golden files write them.
#![allow(dead_code, reason = "each test program uses its part")]

use mambo_text::ChatRequest;
use serde_json::Value;

/// A list, empty where there is none.
pub fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// The request of a case.
pub fn request(case: &Value) -> ChatRequest {
    ChatRequest {
        tools: list(&case["tools"]),
        enable_thinking: case["enable_thinking"].as_bool(),
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap_or(true),
        kwargs: case["kwargs"].as_object().cloned().unwrap_or_default(),
        now_unix_s: Some(1_709_251_199),
        ..ChatRequest::new(list(&case["messages"]))
    }
}
