//! `/api/embed`, and `/api/embeddings` as it was before.

use std::time::Instant;

use serde::Deserialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::asked::Asked;
use crate::embedding::EmbeddingOptions;
use crate::error::ApiError;
use crate::http::Answer;
use crate::openai::OneOrMany;

/// `/api/embed`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct EmbedRequest {
    /// The model's name, or nothing.
    pub model: Option<String>,
    /// One text or several.
    pub input: OneOrMany,
    /// Whether inputs that are too long are cut; otherwise they are refused.
    pub truncate: Option<bool>,
    /// Numbers of a vector; all of them if left out.
    #[schema(minimum = 1)]
    pub dimensions: Option<i64>,
}

/// `/api/embeddings`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct OldEmbedRequest {
    /// The model's name, or nothing.
    pub model: Option<String>,
    /// The text.
    pub prompt: String,
}

/// The vectors of texts.
pub(crate) async fn embed(asked: Asked, request: EmbedRequest) -> Result<Answer, ApiError> {
    let begun = Instant::now();
    asked.check_model(request.model.as_deref())?;
    let inputs = asked.embedding_tokens(request.input.into_vec()).await?;
    let truncate = request.truncate.unwrap_or(true);
    let options =
        EmbeddingOptions { dimensions: request.dimensions, truncate, priority: asked.priority.unwrap_or(0) };
    let embeddings = asked.embed(inputs, options).await?;
    Ok(Answer::Json(json!({
        "model": asked.model_name(), "embeddings": embeddings.vectors,
        "total_duration": begun.elapsed().as_nanos() as u64, "load_duration": 0,
        "prompt_eval_count": embeddings.prompt_tokens,
    })))
}

/// The vector of one text.
pub(crate) async fn old_embed(asked: Asked, request: OldEmbedRequest) -> Result<Answer, ApiError> {
    asked.check_model(request.model.as_deref())?;
    let inputs = asked.embedding_tokens(vec![request.prompt]).await?;
    let priority = asked.priority.unwrap_or(0);
    let options = EmbeddingOptions { truncate: true, priority, ..EmbeddingOptions::default() };
    let embeddings = asked.embed(inputs, options).await?;
    Ok(Answer::Json(json!({"embedding": embeddings.vectors.first()})))
}
