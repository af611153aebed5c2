//! `/tokenize` and `/detokenize`.

use mambo_runtime::ChatRequest;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::asked::Asked;
use crate::error::ApiError;
use crate::http::Answer;

/// Text or a conversation to cut into tokens.
#[derive(Debug, Deserialize)]
pub(crate) struct TokenizeRequest {
    pub model: Option<String>,
    /// Text.
    #[serde(alias = "content")]
    pub prompt: Option<String>,
    /// Or a conversation, which the chat template renders.
    pub messages: Option<Vec<Map<String, Value>>>,
    /// Whether tokens that start every text are added.
    pub add_special_tokens: Option<bool>,
}

/// Tokens to join.
#[derive(Debug, Deserialize)]
pub(crate) struct DetokenizeRequest {
    pub model: Option<String>,
    pub tokens: Vec<u32>,
}

pub(crate) async fn tokenize(service: Asked, request: TokenizeRequest) -> Result<Answer, ApiError> {
    service.check_model(request.model.as_deref())?;
    let tokens = match (request.prompt, request.messages) {
        (Some(text), None) => {
            let adds = request.add_special_tokens.unwrap_or(true);
            service.work(move |service| Ok(service.text.tokenizer().encode(&text, adds))).await?
        }
        (None, Some(messages)) => {
            let messages = messages.into_iter().map(Value::Object).collect();
            service.work(|service| Ok(service.text.chat(ChatRequest::new(messages))?.tokens)).await?
        }
        _ => return Err(ApiError::field("prompt", "give either `prompt` or `messages`")),
    };
    Ok(Answer::Json(
        json!({"count": tokens.len(), "max_model_len": service.context_tokens, "tokens": tokens}),
    ))
}

pub(crate) async fn detokenize(service: Asked, request: DetokenizeRequest) -> Result<Answer, ApiError> {
    service.check_model(request.model.as_deref())?;
    let tokenizer = service.text.tokenizer();
    if let Some(token) = request.tokens.iter().find(|token| **token as usize >= tokenizer.vocab_size()) {
        return Err(ApiError::field(
            "tokens",
            format!("{token} is outside the vocabulary of {}", tokenizer.vocab_size()),
        ));
    }
    Ok(Answer::Json(json!({"prompt": tokenizer.decode(&request.tokens, false)})))
}
