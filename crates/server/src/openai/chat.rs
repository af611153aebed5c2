//! `/v1/chat/completions`.

use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::chunk::{ChatChoice, ChatDelta, Head};
use super::types::{ChatCompletionRequest, count, error_body, format, thinking, tool_choice};
use crate::asked::Asked;
use crate::chat::Chat;
use crate::error::{ApiError, Kind};
use crate::generation::{Delta, End, Generation, TokenLogprobs, Usage};
use crate::http::{Answer, EventSender};
use crate::service::Service;

/// Most answers to one request.
pub(super) const MOST_ANSWERS: i64 = 16;
/// What OpenAI calls a piece of a stream.
const CHUNK: &str = "chat.completion.chunk";
/// Most alternatives of a token.
pub(super) const MOST_LOGPROBS: i64 = 20;

/// Answers a conversation, at once or as it comes.
pub(crate) async fn chat_completions(
    service: Asked,
    request: ChatCompletionRequest,
) -> Result<Answer, ApiError> {
    service.check_model(request.model.as_deref())?;
    service.record.note_user(request.sampling.user.as_deref());
    let answers = count("n", request.n, 1, MOST_ANSWERS)?.unwrap_or(1);
    service.check_count("n", answers)?;
    let (stream, options) = (request.stream, request.stream_options.unwrap_or_default());
    let mut chat = chat_of(request)?;
    chat.common.token_times = stream && options.token_times;
    let prepared = service.prepare_chat(chat).await?;
    let generations =
        (0..answers).map(|index| service.start(&prepared, index)).collect::<Result<Vec<_>, _>>()?;
    let head = Head::new(&service, "chatcmpl");
    if stream {
        return Ok(Answer::stream(move |events| {
            stream_chat(service, head, generations, options.include_usage, events)
        }));
    }
    whole_chat(&service, head, generations).await.map(Answer::Json)
}

/// The conversation that a request asks to go on with.
pub(crate) fn chat_of(request: ChatCompletionRequest) -> Result<Chat, ApiError> {
    if request.messages.is_empty() {
        return Err(ApiError::field("messages", "is empty; give at least one message"));
    }
    for (index, message) in request.messages.iter().enumerate() {
        if !message.get("role").is_some_and(Value::is_string) {
            return Err(ApiError::field(
                format!("messages[{index}].role"),
                "is missing; give a role, such as `user`",
            ));
        }
        text_alone(&format!("messages[{index}].content"), message.get("content"))?;
    }
    let alternatives = count("top_logprobs", request.top_logprobs, 0, MOST_LOGPROBS)?;
    let logprobs = (request.logprobs || alternatives.is_some()).then(|| alternatives.unwrap_or(0));
    let mut kwargs = request.chat_template_kwargs.unwrap_or_default();
    let by_kwargs = kwargs.remove("enable_thinking").and_then(|value| value.as_bool());
    let thinking =
        by_kwargs.map_or_else(|| thinking(request.reasoning_effort.as_deref()), |on| Ok(Some(on)))?;
    Ok(Chat {
        messages: request.messages.into_iter().map(Value::Object).collect(),
        tools: request.tools.unwrap_or_default().into_iter().map(Value::Object).collect(),
        tool_choice: tool_choice(request.tool_choice)?,
        parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
        thinking,
        kwargs,
        common: request.sampling.into_common(
            request.max_completion_tokens,
            logprobs,
            format(request.response_format)?,
        )?,
    })
}

/// Refuses content that has parts of something else than text.
pub(crate) fn text_alone(field: &str, content: Option<&Value>) -> Result<(), ApiError> {
    let parts = content.and_then(Value::as_array).into_iter().flatten().enumerate();
    for (index, part) in parts {
        if !part.get("text").is_some_and(Value::is_string) {
            let kind = part.get("type").and_then(Value::as_str).unwrap_or("nothing");
            let problem = format!("is `{kind}`; this model takes text alone");
            return Err(ApiError::field(format!("{field}[{index}]"), problem));
        }
    }
    Ok(())
}

/// The name of an end, or the error that it is.
pub(super) fn name_of_end(end: &End) -> Result<&'static str, ApiError> {
    match end {
        End::Stop | End::StopString(_) => Ok("stop"),
        End::Length => Ok("length"),
        End::ToolCalls => Ok("tool_calls"),
        other => Err(finish_error(other)),
    }
}

/// The error that an end is which no answer has.
pub(crate) fn finish_error(end: &End) -> ApiError {
    match end {
        End::Failed(error) => error.clone(),
        End::TimedOut => {
            ApiError::new(Kind::Timeout, "the time for this request is over; ask for fewer tokens")
        }
        _ => ApiError::new(Kind::Unavailable, "the server is stopping; send the request again"),
    }
}

fn call_object(service: &Service, index: usize, name: &str, arguments: &Value) -> Value {
    json!({
        "index": index, "id": service.new_id("call"), "type": "function",
        "function": {"name": name, "arguments": arguments.to_string()},
    })
}

/// Log probabilities of tokens as chat answers carry them.
fn logprobs_of(service: &Service, tokens: &[TokenLogprobs]) -> Value {
    let tokenizer = service.text.tokenizer();
    let entry = |token: u32, logprob: f32| {
        let bytes = tokenizer.token_bytes(token);
        json!({"token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes})
    };
    let content: Vec<Value> = tokens
        .iter()
        .map(|TokenLogprobs { token, logprobs }| {
            let mut chosen = entry(*token, logprobs.chosen);
            let top: Vec<Value> =
                logprobs.top.iter().map(|(token, logprob)| entry(*token, *logprob)).collect();
            chosen["top_logprobs"] = top.into();
            chosen
        })
        .collect();
    json!({"content": content, "refusal": null})
}

/// The tokens that answers took together: the prompt counts once.
pub(super) fn usage_of(usages: &[Usage]) -> Value {
    let prompt = usages.first().map_or(0, |usage| usage.prompt_tokens);
    let completion: usize = usages.iter().map(|usage| usage.completion_tokens).sum();
    let reasoning: usize = usages.iter().map(|usage| usage.reasoning_tokens).sum();
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": usages.first().map_or(0, |usage| usage.reuse.tokens)},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    })
}

/// What mambo tells besides: speeds, and where the match with the prefix cache ended.
pub(super) fn extra_of(usage: Usage) -> Value {
    let per_second = |tokens: usize, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
    let first = usage.time_to_first_token.unwrap_or_default().as_secs_f64();
    let read = usage.prompt_tokens - usage.reuse.tokens;
    json!({
        "time_to_first_token_ms": first * 1e3,
        "prompt_tokens_per_second": per_second(read, first),
        "tokens_per_second": per_second(usage.completion_tokens.saturating_sub(1), usage.generating.as_secs_f64()),
        "reuse": usage.reuse.to_string(),
    })
}

async fn whole_chat(service: &Service, head: Head, generations: Vec<Generation>) -> Result<Value, ApiError> {
    let (mut choices, mut usages) = (Vec::new(), Vec::new());
    for (index, mut generation) in generations.into_iter().enumerate() {
        let (mut reasoning, mut content, mut calls, mut tokens) =
            (String::new(), String::new(), Vec::new(), Vec::new());
        let mut finish = "stop";
        while let Some(delta) = generation.next().await {
            match delta {
                Delta::Started => {}
                Delta::Reasoning(text) => reasoning += &text,
                Delta::Content(text) => content += &text,
                Delta::ToolCall { name, arguments } => {
                    let mut call = call_object(service, calls.len(), &name, &arguments);
                    call.as_object_mut().map(|call| call.remove("index"));
                    calls.push(call);
                }
                Delta::Tokens(more) => tokens.extend(more),
                Delta::End(end) => finish = name_of_end(&end)?,
            }
        }
        let content = if content.is_empty() && !calls.is_empty() { Value::Null } else { content.into() };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        let logprobs = if tokens.is_empty() { Value::Null } else { logprobs_of(service, &tokens) };
        choices
            .push(json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish}));
        usages.push(generation.usage());
    }
    let mut object = head.object("chat.completion");
    object.insert("choices".into(), choices.into());
    object.insert("usage".into(), usage_of(&usages));
    object.insert("mambo".into(), extra_of(usages[0]));
    Ok(Value::Object(object))
}

async fn stream_chat(
    service: Asked,
    head: Head,
    generations: Vec<Generation>,
    include_usage: bool,
    events: EventSender,
) {
    let (head, service) = (Arc::new(head), &service);
    let streams = generations.into_iter().enumerate().map(|(index, generation)| {
        let (head, events) = (Arc::clone(&head), events.clone());
        async move { stream_one(service, &head, index, generation, &events).await }
    });
    let Some(ended): Option<Vec<Generation>> = join_all(streams).await.into_iter().collect() else { return };
    if include_usage {
        let usages: Vec<Usage> = ended.iter().map(Generation::usage).collect();
        let mut extra = extra_of(usages[0]);
        if let Some(times) = ended[0].token_times() {
            extra["token_times_ms"] = json!(times);
        }
        let mut chunk = head.object(CHUNK);
        chunk.insert("choices".into(), json!([]));
        chunk.insert("usage".into(), usage_of(&usages));
        chunk.insert("mambo".into(), extra);
        events.send(&chunk);
    }
    events.send_done();
}

/// Streams one answer to its end, and gives it back unless it failed.
async fn stream_one(
    service: &Service,
    head: &Head,
    index: usize,
    mut generation: Generation,
    events: &EventSender,
) -> Option<Generation> {
    let mut calls = 0;
    let mut pending: Vec<TokenLogprobs> = Vec::new();
    while let Some(delta) = generation.next().await {
        let (mut added, mut finish_reason) = (ChatDelta::default(), None);
        match &delta {
            Delta::Started => (added.role, added.content) = (Some("assistant"), Some("")),
            Delta::Reasoning(text) => added.reasoning_content = Some(text),
            Delta::Content(text) => added.content = Some(text),
            Delta::ToolCall { name, arguments } => {
                added.tool_calls = Some([call_object(service, calls, name, arguments)]);
                calls += 1;
            }
            Delta::Tokens(more) => {
                pending.extend_from_slice(more);
                continue;
            }
            Delta::End(end) => match name_of_end(end) {
                Ok(reason) => finish_reason = Some(reason),
                Err(error) => {
                    events.send(&error_body(&error));
                    return None;
                }
            },
        }
        let logprobs = match pending.is_empty() {
            true => Value::Null,
            false => logprobs_of(service, &std::mem::take(&mut pending)),
        };
        events.send(&head.chunk(CHUNK, ChatChoice { index, delta: added, logprobs, finish_reason }));
    }
    Some(generation)
}
