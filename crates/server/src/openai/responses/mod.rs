//! `/v1/responses`: answers made of items, which the server remembers for the requests that go on from them.

mod request;
mod store;
mod stream;

use serde_json::{Value, json};

pub(crate) use request::ResponsesRequest;
pub(crate) use store::ResponseStore;

use crate::asked::Asked;
use crate::error::ApiError;
use crate::generation::{Delta, End, Generation, Usage};
use crate::http::Answer;
use crate::service::Service;
use crate::time::unix_seconds;

/// Answers input, at once or as it comes.
pub(crate) async fn responses(service: Asked, request: ResponsesRequest) -> Result<Answer, ApiError> {
    service.check_model(request.model.as_deref())?;
    let before = match &request.previous_response_id {
        Some(id) => service.responses.get(id)?,
        None => Vec::new(),
    };
    let (is_stream, keeps) = (request.stream, request.store.unwrap_or(true));
    let response = Response::new(&service, &request);
    let (chat, conversation) = request.into_chat(before)?;
    let prepared = service.prepare_chat(chat).await?;
    let generation = service.start(&prepared, 0)?;
    let keeping = keeps.then_some(conversation);
    if is_stream {
        return Ok(Answer::stream(move |events| async move {
            stream::run(&service, response, generation, keeping, &events).await;
        }));
    }
    whole(&service, response, generation, keeping).await.map(Answer::Json)
}

/// A response object that fills as the answer comes.
struct Response {
    id: String,
    body: Value,
    items: Vec<Value>,
}

impl Response {
    fn new(service: &Service, request: &ResponsesRequest) -> Response {
        let id = service.new_id("resp");
        let body = json!({
            "id": id, "object": "response", "created_at": unix_seconds(), "model": service.model_name(),
            "status": "in_progress", "error": null, "incomplete_details": null, "output": [],
            "instructions": request.instructions, "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata.clone().unwrap_or_default(),
            "parallel_tool_calls": request.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": request.previous_response_id, "store": request.store.unwrap_or(true),
            "temperature": request.temperature, "top_p": request.top_p, "truncation": "disabled",
            "tool_choice": request.tool_choice.clone().unwrap_or_else(|| "auto".into()),
            "tools": request.tools.clone().unwrap_or_default(),
            "text": request.text.clone().map_or_else(|| json!({"format": {"type": "text"}}), Value::Object),
            "reasoning": {"effort": request.effort(), "summary": null}, "usage": null,
        });
        Response { id, body, items: Vec::new() }
    }

    /// Ends the response; the name of the event that tells so.
    fn finish(&mut self, end: &End, usage: Usage) -> Result<&'static str, ApiError> {
        super::chat::name_of_end(end)?;
        let is_cut = *end == End::Length;
        self.body["status"] = if is_cut { "incomplete" } else { "completed" }.into();
        if is_cut {
            self.body["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        self.body["output"] = std::mem::take(&mut self.items).into();
        self.body["usage"] = json!({
            "input_tokens": usage.prompt_tokens, "input_tokens_details": {"cached_tokens": usage.reuse.tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        });
        Ok(if is_cut { "response.incomplete" } else { "response.completed" })
    }

    /// Remembers the conversation with this answer, if it is to be.
    fn keep(&self, service: &Service, conversation: Option<Vec<Value>>) {
        let Some(mut conversation) = conversation else { return };
        let output = self.body["output"].as_array().into_iter().flatten();
        conversation.push(request::assistant_message(output));
        service.responses.insert(self.id.clone(), conversation);
    }
}

fn reasoning_item(service: &Service, text: &str) -> Value {
    json!({
        "id": service.new_id("rs"), "type": "reasoning", "summary": [], "status": "completed",
        "content": [{"type": "reasoning_text", "text": text}],
    })
}

fn message_item(id: &str, text: &str) -> Value {
    json!({
        "id": id, "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}],
    })
}

fn call_item(service: &Service, name: &str, arguments: &Value) -> Value {
    json!({
        "id": service.new_id("fc"), "type": "function_call", "call_id": service.new_id("call"), "name": name,
        "arguments": arguments.to_string(), "status": "completed",
    })
}

async fn whole(
    service: &Service,
    mut response: Response,
    mut generation: Generation,
    keeping: Option<Vec<Value>>,
) -> Result<Value, ApiError> {
    let (mut thought, mut text, mut calls) = (String::new(), String::new(), Vec::new());
    let mut ended = End::Stop;
    while let Some(delta) = generation.next().await {
        match delta {
            Delta::Started | Delta::Tokens(_) => {}
            Delta::Reasoning(more) => thought += &more,
            Delta::Content(more) => text += &more,
            Delta::ToolCall { name, arguments } => calls.push(call_item(service, &name, &arguments)),
            Delta::End(end) => ended = end,
        }
    }
    if !thought.is_empty() {
        response.items.push(reasoning_item(service, &thought));
    }
    if !text.is_empty() || calls.is_empty() {
        response.items.push(message_item(&service.new_id("msg"), &text));
    }
    response.items.extend(calls);
    response.finish(&ended, generation.usage())?;
    response.keep(service, keeping);
    Ok(response.body)
}
