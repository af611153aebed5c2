//! Ollama's dialect, which desktop programs speak.

mod describe;
mod embed;
mod request;

use std::time::Instant;

use serde_json::{Value, json};

pub(crate) use describe::{operations, refusals};
pub(crate) use embed::{EmbedRequest, OldEmbedRequest, embed, old_embed};
pub(crate) use request::{ChatRequest, GenerateRequest, ShowRequest};

use crate::asked::Asked;
use crate::error::ApiError;
use crate::generation::{Delta, End, Generation, Usage};
use crate::http::{Answer, EventSender};
use crate::openai::finish_error;
use crate::service::Service;
use crate::time::{rfc3339, unix_seconds};

/// What an answer looks like: a message, or text alone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Chat,
    Generate,
}

/// `/api/chat`.
pub(crate) async fn chat(service: Asked, request: ChatRequest) -> Result<Answer, ApiError> {
    service.check_model(request.model.as_deref())?;
    let is_stream = request.stream.unwrap_or(true);
    if request.messages.is_empty() {
        // Asking for nothing loads a model; this one is loaded.
        let mut body = object(&service, Shape::Chat, "", "", Vec::new());
        (body["done"], body["done_reason"]) = (true.into(), "load".into());
        return Ok(Answer::Json(body));
    }
    let prepared = service.prepare_chat(request.into_chat()?).await?;
    let generation = service.start(&prepared, 0)?;
    answer(service, generation, Shape::Chat, is_stream).await
}

/// `/api/generate`.
pub(crate) async fn generate(service: Asked, request: GenerateRequest) -> Result<Answer, ApiError> {
    service.check_model(request.model.as_deref())?;
    let is_stream = request.stream.unwrap_or(true);
    let prompt = request.prompt.clone().unwrap_or_default();
    if prompt.is_empty() {
        // Asking for nothing loads a model; this one is loaded.
        let body = json!({
            "model": service.model_name(), "created_at": rfc3339(unix_seconds()), "response": "", "done": true,
            "done_reason": "load",
        });
        return Ok(Answer::Json(body));
    }
    let prepared = if request.raw {
        service.prepare_text(prompt, request.into_common()?).await?
    } else {
        service.prepare_chat(request.into_chat()?).await?
    };
    let generation = service.start(&prepared, 0)?;
    answer(service, generation, Shape::Generate, is_stream).await
}

async fn answer(
    service: Asked,
    generation: Generation,
    shape: Shape,
    is_stream: bool,
) -> Result<Answer, ApiError> {
    let begun = Instant::now();
    if is_stream {
        return Ok(Answer::lines(move |events| async move {
            stream(&service, generation, shape, begun, &events).await
        }));
    }
    whole(&service, generation, shape, begun).await.map(Answer::Json)
}

/// One object: the pieces of an answer, or all of it.
fn object(service: &Service, shape: Shape, thinking: &str, content: &str, calls: Vec<Value>) -> Value {
    let mut object = json!({"model": service.model_name(), "created_at": rfc3339(unix_seconds())});
    match shape {
        Shape::Chat => {
            let mut message = json!({"role": "assistant", "content": content});
            if !thinking.is_empty() {
                message["thinking"] = thinking.into();
            }
            if !calls.is_empty() {
                message["tool_calls"] = calls.into();
            }
            object["message"] = message;
        }
        Shape::Generate => {
            object["response"] = content.into();
            if !thinking.is_empty() {
                object["thinking"] = thinking.into();
            }
        }
    }
    object["done"] = false.into();
    object
}

fn finish(object: &mut Value, end: &End, usage: Usage, begun: Instant) -> Result<(), ApiError> {
    let reason = match end {
        End::Stop | End::StopString(_) | End::ToolCalls => "stop",
        End::Length => "length",
        other => return Err(finish_error(other)),
    };
    let first = usage.time_to_first_token.unwrap_or_default();
    object["done"] = true.into();
    object["done_reason"] = reason.into();
    object["total_duration"] = (begun.elapsed().as_nanos() as u64).into();
    object["load_duration"] = 0.into();
    object["prompt_eval_count"] = usage.prompt_tokens.into();
    object["prompt_eval_duration"] = (first.as_nanos() as u64).into();
    object["eval_count"] = usage.completion_tokens.into();
    object["eval_duration"] = (usage.generating.as_nanos() as u64).into();
    Ok(())
}

fn call(name: &str, arguments: &Value) -> Value {
    json!({"function": {"name": name, "arguments": arguments}})
}

async fn whole(
    service: &Service,
    mut generation: Generation,
    shape: Shape,
    begun: Instant,
) -> Result<Value, ApiError> {
    let (mut thinking, mut content, mut calls) = (String::new(), String::new(), Vec::new());
    let mut ended = End::Stop;
    while let Some(delta) = generation.next().await {
        match delta {
            Delta::Started | Delta::Tokens(_) => {}
            Delta::Reasoning(text) => thinking += &text,
            Delta::Content(text) => content += &text,
            Delta::ToolCall { name, arguments } => calls.push(call(&name, &arguments)),
            Delta::End(end) => ended = end,
        }
    }
    let mut object = object(service, shape, &thinking, &content, calls);
    finish(&mut object, &ended, generation.usage(), begun)?;
    Ok(object)
}

async fn stream(
    service: &Service,
    mut generation: Generation,
    shape: Shape,
    begun: Instant,
    events: &EventSender,
) {
    while let Some(delta) = generation.next().await {
        let line = match delta {
            Delta::Started | Delta::Tokens(_) => continue,
            Delta::Reasoning(text) => object(service, shape, &text, "", Vec::new()),
            Delta::Content(text) => object(service, shape, "", &text, Vec::new()),
            Delta::ToolCall { name, arguments } => {
                object(service, shape, "", "", vec![call(&name, &arguments)])
            }
            Delta::End(end) => {
                let mut line = object(service, shape, "", "", Vec::new());
                match finish(&mut line, &end, generation.usage(), begun) {
                    Ok(()) => line,
                    Err(error) => error_body(&error),
                }
            }
        };
        events.send_line(&line);
    }
}

fn details(service: &Service) -> Value {
    let info = &service.info;
    json!({
        "parent_model": "", "format": info.format, "family": info.architecture, "families": [info.architecture],
        "parameter_size": info.parameter_size, "quantization_level": info.quantization,
    })
}

/// `/api/tags`.
pub(crate) fn tags(service: &Service) -> Value {
    let model = |name: &String| {
        json!({
            "name": name, "model": name, "modified_at": rfc3339(service.started), "size": service.info.file_bytes,
            "digest": service.info.fingerprint, "details": details(service),
        })
    };
    json!({"models": service.config.model_names.iter().map(model).collect::<Vec<_>>()})
}

/// `/api/show`.
pub(crate) async fn show(service: Asked, request: ShowRequest) -> Result<Answer, ApiError> {
    service.check_model(request.model.as_deref().or(request.name.as_deref()))?;
    let template = service.text.template().map_or(String::new(), |template| template.source().to_owned());
    let mut capabilities = vec!["completion"];
    if service.embedding_size.is_some() {
        capabilities.push("embedding");
    }
    if template.contains("tools") {
        capabilities.push("tools");
    }
    if template.contains("<think>") {
        capabilities.push("thinking");
    }
    let context = format!("{}.context_length", service.info.architecture);
    Ok(Answer::Json(json!({
        "modelfile": "", "parameters": "", "template": template, "details": details(&service),
        "model_info": {"general.architecture": service.info.architecture, context: service.context_tokens},
        "capabilities": capabilities, "modified_at": rfc3339(service.started),
    })))
}

/// An error as Ollama's clients expect it.
pub(crate) fn error_body(error: &ApiError) -> Value {
    json!({"error": error.message})
}
