//! Answers of OpenAI's dialect, described for the OpenAPI document; they are written as plain JSON.
#![allow(dead_code, reason = "types that describe JSON; nothing makes values of them")]

use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::describe::ChatToolCall;

/// A whole answer.
#[derive(ToSchema)]
pub(super) struct ChatCompletion {
    /// Its name.
    id: String,
    /// `chat.completion`.
    object: String,
    /// Seconds since 1970.
    created: i64,
    /// The model.
    model: String,
    /// The answers.
    choices: Vec<ChatChoice>,
    /// The tokens it took.
    usage: CompletionUsage,
    /// Speeds, and what the prefix cache restored.
    mambo: MamboExtra,
}

/// One answer.
#[derive(ToSchema)]
struct ChatChoice {
    /// Which of several.
    index: usize,
    /// What the model says.
    message: AssistantMessage,
    /// Log probabilities, if asked for.
    #[schema(required = true)]
    logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    finish_reason: String,
}

/// What the model says.
#[derive(ToSchema)]
struct AssistantMessage {
    /// `assistant`.
    role: String,
    /// The answer; nothing where tools are called instead.
    #[schema(required = true)]
    content: Option<String>,
    /// Always nothing.
    refusal: Option<String>,
    /// Its thought, if it thought.
    #[serde(default)]
    reasoning_content: String,
    /// Its calls of tools, if any.
    #[serde(default)]
    tool_calls: Vec<ChatToolCall>,
}

/// Log probabilities of an answer.
#[derive(ToSchema)]
struct ChatLogprobs {
    /// Its tokens.
    content: Vec<TokenLogprob>,
    /// Always nothing.
    refusal: Option<String>,
}

/// A token and how likely it was.
#[derive(ToSchema)]
struct TokenLogprob {
    /// Its text.
    token: String,
    /// The logarithm of its probability.
    logprob: f32,
    /// Its bytes, which may be part of a character.
    bytes: Vec<u8>,
    /// The most likely tokens in its place.
    top_logprobs: Vec<TopLogprob>,
}

/// A token that could have been chosen.
#[derive(ToSchema)]
struct TopLogprob {
    /// Its text.
    token: String,
    /// The logarithm of its probability.
    #[schema(required = true)]
    logprob: Option<f32>,
    /// Its bytes.
    bytes: Vec<u8>,
}

/// The tokens that answers took.
#[derive(ToSchema)]
struct CompletionUsage {
    /// Of the prompt.
    prompt_tokens: usize,
    /// Of the answers.
    completion_tokens: usize,
    /// Both.
    total_tokens: usize,
    /// Of which `cached_tokens` were restored.
    prompt_tokens_details: Map<String, Value>,
    /// Of which `reasoning_tokens` were thought.
    completion_tokens_details: Map<String, Value>,
}

/// What mambo tells besides.
#[derive(ToSchema)]
struct MamboExtra {
    /// Milliseconds to the first token.
    time_to_first_token_ms: f64,
    /// Speed of reading.
    prompt_tokens_per_second: f64,
    /// Speed of answering.
    tokens_per_second: f64,
    /// Where the match with the prefix cache ended, and why.
    reuse: String,
    /// When the engine gave each token, in milliseconds since the request, if asked for.
    #[serde(default)]
    token_times_ms: Vec<f64>,
}

/// A piece of a streamed answer.
#[derive(ToSchema)]
pub(super) struct ChatCompletionChunk {
    /// The answer's name.
    id: String,
    /// `chat.completion.chunk`.
    object: String,
    /// Seconds since 1970.
    created: i64,
    /// The model.
    model: String,
    /// More of an answer: `delta` has `content`, `reasoning_content` or `tool_calls`.
    choices: Vec<Map<String, Value>>,
    /// In the last piece, if asked for.
    #[serde(default)]
    usage: CompletionUsage,
    /// In the last piece, if asked for.
    #[serde(default)]
    mambo: MamboExtra,
}

/// Text that goes on with a prompt; in streams, a piece of it.
#[derive(ToSchema)]
pub(super) struct Completion {
    /// Its name.
    id: String,
    /// `text_completion`.
    object: String,
    /// Seconds since 1970.
    created: i64,
    /// The model.
    model: String,
    /// The texts.
    choices: Vec<CompletionChoice>,
    /// The tokens it took; in streams in the last piece, if asked for.
    #[serde(default)]
    usage: CompletionUsage,
    /// Speeds; in streams in the last piece, if asked for.
    #[serde(default)]
    mambo: MamboExtra,
}

/// One text.
#[derive(ToSchema)]
struct CompletionChoice {
    /// Which of several.
    index: usize,
    /// The text.
    text: String,
    /// Log probabilities, if asked for.
    #[schema(required = true)]
    logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`.
    #[schema(required = true)]
    finish_reason: Option<String>,
}

/// Log probabilities of a text.
#[derive(ToSchema)]
struct CompletionLogprobs {
    /// Its tokens.
    tokens: Vec<String>,
    /// The logarithm of each one's probability.
    token_logprobs: Vec<f32>,
    /// The most likely tokens in each one's place.
    top_logprobs: Vec<Map<String, Value>>,
    /// Where each begins, in characters of the choice's text.
    text_offset: Vec<usize>,
}

/// The models that are served.
#[derive(ToSchema)]
pub(super) struct ModelList {
    /// `list`.
    object: String,
    /// One entry for each name.
    data: Vec<ModelCard>,
}

/// A model.
#[derive(ToSchema)]
pub(super) struct ModelCard {
    /// Its name.
    id: String,
    /// `model`.
    object: String,
    /// Seconds since 1970.
    created: i64,
    /// `mambo`.
    owned_by: String,
    /// Tokens of its context.
    max_model_len: usize,
}

/// An answer made of items.
#[derive(ToSchema)]
pub(super) struct ResponseObject {
    /// Its name, for `previous_response_id`.
    id: String,
    /// `response`.
    object: String,
    /// Seconds since 1970.
    created_at: i64,
    /// The model.
    model: String,
    /// `completed`, or `incomplete` where it was cut.
    status: String,
    /// Items: `reasoning`, `message`, `function_call`.
    output: Vec<Map<String, Value>>,
    /// Why it was cut.
    #[schema(required = true)]
    incomplete_details: Option<Map<String, Value>>,
    /// Why it failed.
    #[schema(required = true)]
    error: Option<Map<String, Value>>,
    /// The tokens it took.
    #[schema(required = true)]
    usage: Option<Map<String, Value>>,
}

/// An event of a streamed response.
#[derive(ToSchema)]
pub(super) struct ResponseEvent {
    /// Such as `response.output_text.delta`.
    r#type: String,
    /// Counts the events.
    sequence_number: u64,
}
