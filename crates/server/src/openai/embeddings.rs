//! `/v1/embeddings`.

use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::types::PromptField;
use crate::asked::Asked;
use crate::embedding::{EmbeddingOptions, base64};
use crate::error::ApiError;
use crate::http::Answer;

/// A request for vectors.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct EmbeddingRequest {
    /// The model's name, or nothing.
    pub model: Option<String>,
    /// Text or tokens, one or several.
    pub input: PromptField,
    /// `float` or `base64`.
    pub encoding_format: Option<String>,
    /// Numbers of a vector; all of them if left out.
    #[schema(minimum = 1)]
    pub dimensions: Option<i64>,
    /// Requests of higher priority go first.
    pub priority: Option<i32>,
}

/// The vectors of texts.
pub(crate) async fn embeddings(asked: Asked, request: EmbeddingRequest) -> Result<Answer, ApiError> {
    asked.check_model(request.model.as_deref())?;
    let in_text = match request.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(ApiError::field("encoding_format", "is neither `float` nor `base64`")),
    };
    let inputs = match request.input {
        PromptField::Text(one) => asked.embedding_tokens(vec![one]).await?,
        PromptField::Texts(many) => asked.embedding_tokens(many).await?,
        PromptField::Tokens(one) => vec![one],
        PromptField::TokenLists(many) => many,
    };
    let priority = request.priority.or(asked.priority).unwrap_or(0);
    let options = EmbeddingOptions { dimensions: request.dimensions, truncate: false, priority };
    let embeddings = asked.embed(inputs, options).await?;
    let tokens = embeddings.prompt_tokens;
    let data = embeddings.vectors.iter().enumerate().map(|(index, vector)| {
        let vector = if in_text { base64(vector).into() } else { json!(vector) };
        json!({"object": "embedding", "index": index, "embedding": vector})
    });
    Ok(Answer::Json(json!({
        "object": "list", "data": data.collect::<Vec<Value>>(), "model": asked.model_name(),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}
