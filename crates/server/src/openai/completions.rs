//! `/v1/completions`.

use futures_util::future::try_join_all;
use mambo_runtime::Prompt;
use mambo_text::OutputStyle;
use serde_json::{Value, json};

use super::chat::{MOST_ANSWERS, extra_of, name_of_end, usage_of};
use super::chunk::{Head, TextChoice};
use super::types::{CompletionRequest, PromptField, count, error_body, format};
use crate::asked::Asked;
use crate::chat::{Common, Prepared};
use crate::error::ApiError;
use crate::generation::{Delta, Generation, TokenLogprobs, Usage};
use crate::http::{Answer, EventSender};
use crate::service::Service;

/// What OpenAI calls these answers, and their pieces.
const OBJECT: &str = "text_completion";
/// Most prompts of one request.
const MOST_PROMPTS: usize = 64;

/// Goes on with text, at once or as it comes.
pub(crate) async fn completions(service: Asked, request: CompletionRequest) -> Result<Answer, ApiError> {
    service.check_model(request.model.as_deref())?;
    service.record.note_user(request.sampling.user.as_deref());
    let answers = count("n", request.n, 1, MOST_ANSWERS)?.unwrap_or(1);
    let include_usage = request.stream_options.unwrap_or_default().include_usage;
    let (is_echo, is_stream) = (request.echo, request.stream);
    let (prompt, common) = prompt_of(request)?;
    let prepared = prompts(&service, prompt, &common, answers).await?;
    let mut parts = Vec::new();
    for prepared in &prepared {
        let echo = is_echo.then(|| service.text.tokenizer().decode(&prepared.prompt.tokens, true));
        for index in 0..answers {
            parts.push(Part { generation: service.start(prepared, index)?, echo: echo.clone() });
        }
    }
    let head = Head::new(&service, "cmpl");
    if is_stream {
        return Ok(Answer::stream(move |events| {
            stream(service, head, parts, include_usage.then_some(answers), events)
        }));
    }
    whole(&service, head, parts, answers).await.map(Answer::Json)
}

/// What a request asks to go on with, and how.
pub(crate) fn prompt_of(request: CompletionRequest) -> Result<(PromptField, Common), ApiError> {
    let logprobs = count("logprobs", request.logprobs, 0, 5)?;
    let common = request.sampling.into_common(None, logprobs, format(request.response_format)?)?;
    // As OpenAI has it.
    let common = Common { max_tokens: common.max_tokens.or(Some(16)), ..common };
    Ok((request.prompt, common))
}

/// Usage of several prompts, of which each counts once however many answers it got.
fn usage_of_prompts(usages: &[Usage], answers: usize) -> Value {
    let mut total = usage_of(usages);
    let prompts = usages.iter().step_by(answers.max(1));
    let prompt: usize = prompts.clone().map(|usage| usage.prompt_tokens).sum();
    let cached: usize = prompts.map(|usage| usage.reuse.tokens).sum();
    let completion: usize = usages.iter().map(|usage| usage.completion_tokens).sum();
    total["prompt_tokens"] = prompt.into();
    total["prompt_tokens_details"]["cached_tokens"] = cached.into();
    total["total_tokens"] = (prompt + completion).into();
    total
}

struct Part {
    generation: Generation,
    echo: Option<String>,
}

async fn prompts(
    service: &Asked,
    field: PromptField,
    common: &Common,
    answers: usize,
) -> Result<Vec<Prepared>, ApiError> {
    let count = match &field {
        PromptField::Text(_) | PromptField::Tokens(_) => 1,
        PromptField::Texts(many) => many.len(),
        PromptField::TokenLists(many) => many.len(),
    };
    if count > MOST_PROMPTS {
        let problem = format!("has {count} prompts; at most {MOST_PROMPTS} go at once");
        return Err(ApiError::field("prompt", problem));
    }
    service.check_count(if count > 1 { "prompt" } else { "n" }, count * answers)?;
    let texts = |texts: Vec<String>| texts.into_iter().map(|text| service.prepare_text(text, common.clone()));
    let tokens =
        |tokens: Vec<u32>| service.prepare_tokens(Prompt::new(tokens, OutputStyle::PLAIN), common.clone());
    let prepared: Vec<Prepared> = match field {
        PromptField::Text(one) => try_join_all(texts(vec![one])).await?,
        PromptField::Texts(many) => try_join_all(texts(many)).await?,
        PromptField::Tokens(one) => vec![tokens(one).await?],
        PromptField::TokenLists(many) => try_join_all(many.into_iter().map(tokens)).await?,
    };
    match prepared.len() {
        0 => Err(ApiError::field("prompt", "is empty; give text or tokens")),
        _ => Ok(prepared),
    }
}

/// Log probabilities in the older form; `offset` counts the characters of the choice's text before these tokens.
fn logprobs_of(service: &Service, tokens: &[TokenLogprobs], offset: &mut usize) -> Value {
    if tokens.is_empty() {
        return Value::Null;
    }
    let word = |token: u32| String::from_utf8_lossy(service.text.tokenizer().token_bytes(token)).into_owned();
    let offsets: Vec<usize> = tokens
        .iter()
        .map(|one| {
            let at = *offset;
            *offset += characters_begun(service.text.tokenizer().token_bytes(one.token));
            at
        })
        .collect();
    let top: Vec<Value> = tokens
        .iter()
        .map(|one| one.logprobs.top.iter().map(|(token, logprob)| (word(*token), json!(logprob))).collect())
        .collect();
    json!({
        "tokens": tokens.iter().map(|one| word(one.token)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|one| one.logprobs.chosen).collect::<Vec<_>>(),
        "top_logprobs": top, "text_offset": offsets,
    })
}

/// Characters whose first byte is among these: tokens may hold parts of one.
fn characters_begun(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count()
}

async fn whole(service: &Service, head: Head, parts: Vec<Part>, answers: usize) -> Result<Value, ApiError> {
    let (mut choices, mut usages) = (Vec::new(), Vec::new());
    for (index, Part { mut generation, echo }) in parts.into_iter().enumerate() {
        let (mut text, mut tokens, mut finish) = (echo.unwrap_or_default(), Vec::new(), "stop");
        let mut offset = text.chars().count();
        while let Some(delta) = generation.next().await {
            match delta {
                Delta::Content(more) => text += &more,
                Delta::Tokens(more) => tokens.extend(more),
                Delta::End(end) => finish = name_of_end(&end)?,
                Delta::Started | Delta::Reasoning(_) | Delta::ToolCall { .. } => {}
            }
        }
        let logprobs = logprobs_of(service, &tokens, &mut offset);
        let choice = TextChoice { index, text: &text, logprobs, finish_reason: Some(finish) };
        choices.push(json!(choice));
        usages.push(generation.usage());
    }
    let mut object = head.object(OBJECT);
    object.insert("choices".into(), choices.into());
    object.insert("usage".into(), usage_of_prompts(&usages, answers));
    object.insert("mambo".into(), extra_of(usages[0]));
    Ok(Value::Object(object))
}

async fn stream(
    service: Asked,
    head: Head,
    parts: Vec<Part>,
    usage_answers: Option<usize>,
    events: EventSender,
) {
    let mut usages: Vec<Usage> = Vec::new();
    // One after the other: they run at the same time, and what is not read yet waits.
    for (index, Part { mut generation, echo }) in parts.into_iter().enumerate() {
        let mut pending: Vec<TokenLogprobs> = Vec::new();
        let mut offset = echo.as_ref().map_or(0, |echo| echo.chars().count());
        let mut send = |text: &str, pending: &mut Vec<TokenLogprobs>, finish_reason| {
            let logprobs = logprobs_of(&service, &std::mem::take(pending), &mut offset);
            events.send(&head.chunk(OBJECT, TextChoice { index, text, logprobs, finish_reason }));
        };
        if let Some(echo) = echo {
            send(&echo, &mut pending, None);
        }
        while let Some(delta) = generation.next().await {
            match delta {
                Delta::Content(text) => send(&text, &mut pending, None),
                Delta::Tokens(more) => pending.extend(more),
                Delta::End(end) => match name_of_end(&end) {
                    Ok(reason) => send("", &mut pending, Some(reason)),
                    Err(error) => return events.send(&error_body(&error)),
                },
                Delta::Started | Delta::Reasoning(_) | Delta::ToolCall { .. } => {}
            }
        }
        usages.push(generation.usage());
    }
    if let Some(answers) = usage_answers {
        let mut chunk = head.object(OBJECT);
        chunk.insert("choices".into(), json!([]));
        chunk.insert("usage".into(), usage_of_prompts(&usages, answers));
        chunk.insert("mambo".into(), extra_of(usages[0]));
        events.send(&chunk);
    }
    events.send_done();
}
