//! Anthropic's dialect: `/v1/messages` and `/v1/messages/count_tokens`.

mod describe;
mod request;
mod stream;

use serde_json::{Value, json};

pub(crate) use describe::{operations, refusals};
pub(crate) use request::{CountRequest, MessagesRequest};

use crate::asked::Asked;
use crate::error::{ApiError, Kind};
use crate::generation::{Delta, End, Generation, Usage};
use crate::http::Answer;
use crate::openai::finish_error;
use crate::service::Service;

/// Answers a conversation, at once or as it comes.
pub(crate) async fn messages(service: Asked, request: MessagesRequest) -> Result<Answer, ApiError> {
    service.check_model(request.model.as_deref())?;
    let is_stream = request.stream;
    let prepared = service.prepare_chat(request.into_chat()?).await?;
    let generation = service.start(&prepared, 0)?;
    if is_stream {
        return Ok(Answer::stream(
            move |events| async move { stream::run(&service, generation, &events).await },
        ));
    }
    whole(&service, generation).await.map(Answer::Json)
}

/// Counts the tokens of a conversation.
pub(crate) async fn count_tokens(service: Asked, request: CountRequest) -> Result<Answer, ApiError> {
    service.check_model(request.0.model.as_deref())?;
    let chat = request.0.into_chat()?;
    let prompt = service.work(|service| Ok(service.text.chat(service.chat_request(chat).0)?)).await?;
    Ok(Answer::Json(json!({"input_tokens": prompt.tokens.len()})))
}

/// The reason and the stop string of an end, or the error that it is.
fn stop_reason(end: &End) -> Result<(&'static str, Option<&str>), ApiError> {
    match end {
        End::Stop => Ok(("end_turn", None)),
        End::StopString(text) => Ok(("stop_sequence", Some(text))),
        End::Length => Ok(("max_tokens", None)),
        End::ToolCalls => Ok(("tool_use", None)),
        other => Err(finish_error(other)),
    }
}

fn usage_of(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens - usage.reuse.tokens,
        "cache_read_input_tokens": usage.reuse.tokens, "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    })
}

fn message(service: &Service, content: Vec<Value>, usage: Usage) -> Value {
    json!({
        "id": service.new_id("msg"), "type": "message", "role": "assistant", "model": service.model_name(),
        "content": content, "stop_reason": null, "stop_sequence": null, "usage": usage_of(usage),
    })
}

async fn whole(service: &Service, mut generation: Generation) -> Result<Value, ApiError> {
    let (mut thought, mut text, mut calls) = (String::new(), String::new(), Vec::new());
    let (mut reason, mut sequence) = ("end_turn", None);
    while let Some(delta) = generation.next().await {
        match delta {
            Delta::Started | Delta::Tokens(_) => {}
            Delta::Reasoning(more) => thought += &more,
            Delta::Content(more) => text += &more,
            Delta::ToolCall { name, arguments } => {
                let id = service.new_id("toolu");
                calls.push(json!({"type": "tool_use", "id": id, "name": name, "input": arguments}));
            }
            Delta::End(end) => {
                let (why, stop) = stop_reason(&end)?;
                (reason, sequence) = (why, stop.map(str::to_owned));
            }
        }
    }
    let mut content = Vec::new();
    if !thought.is_empty() {
        content.push(json!({"type": "thinking", "thinking": thought, "signature": ""}));
    }
    if !text.is_empty() || calls.is_empty() {
        content.push(json!({"type": "text", "text": text}));
    }
    content.extend(calls);
    let mut message = message(service, content, generation.usage());
    message["stop_reason"] = reason.into();
    message["stop_sequence"] = sequence.into();
    Ok(message)
}

/// An error as Anthropic's clients expect it.
pub(crate) fn error_body(error: &ApiError) -> Value {
    let kind = match error.kind {
        Kind::Unauthorized => "authentication_error",
        Kind::Forbidden => "permission_error",
        Kind::NotFound => "not_found_error",
        Kind::TooLarge => "request_too_large",
        Kind::Busy => "rate_limit_error",
        Kind::Unavailable => "overloaded_error",
        Kind::Timeout => "timeout_error",
        Kind::Internal | Kind::Storage => "api_error",
        Kind::Invalid | Kind::Method | Kind::Conflict => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": error.message}})
}
