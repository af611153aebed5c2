//! `/tokenize` and `/detokenize`.

use mambo_runtime::ChatRequest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::asked::Asked;
use crate::error::ApiError;
use crate::http::Answer;
use crate::openai::ChatMessage;
use crate::openapi::Operation;

/// Text or a conversation to cut into tokens.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct TokenizeRequest {
    /// The model's name; the one that is served unless given.
    pub model: Option<String>,
    /// Text; `content` is another name for it.
    #[serde(alias = "content")]
    pub prompt: Option<String>,
    /// Or a conversation, which the chat template renders.
    #[schema(value_type = Option<Vec<ChatMessage>>, min_items = 1)]
    pub messages: Option<Vec<Map<String, Value>>>,
    /// Whether tokens that start every text are added.
    #[schema(default = true)]
    pub add_special_tokens: Option<bool>,
}

/// Tokens to join.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct DetokenizeRequest {
    /// The model's name; the one that is served unless given.
    pub model: Option<String>,
    /// Ids of tokens.
    pub tokens: Vec<u32>,
}

/// Text as tokens.
#[derive(Serialize, ToSchema)]
struct Tokenized {
    /// How many there are.
    count: usize,
    /// How many fit into the context.
    max_model_len: usize,
    /// Their ids.
    tokens: Vec<u32>,
}

/// Tokens as text.
#[derive(Serialize, ToSchema)]
struct Detokenized {
    /// The text.
    prompt: String,
}

/// These paths for the OpenAPI document.
pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation::post::<TokenizeRequest>("/tokenize", "Text as tokens", json!({"prompt": "Hello, world"}))
            .describe("Give either `prompt` or `messages`.")
            .answers::<Tokenized>(),
        Operation::post::<DetokenizeRequest>("/detokenize", "Tokens as text", json!({"tokens": [72, 101]}))
            .answers::<Detokenized>(),
    ]
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
    let answer = Tokenized { count: tokens.len(), max_model_len: service.context_tokens, tokens };
    Ok(Answer::Json(json!(answer)))
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
    let answer = Detokenized { prompt: tokenizer.decode(&request.tokens, false) };
    Ok(Answer::Json(json!(answer)))
}
