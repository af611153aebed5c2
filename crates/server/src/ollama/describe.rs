//! Ollama's dialect for the OpenAPI document: its paths, and the shapes that are read and written as plain JSON.
#![allow(dead_code, reason = "types that describe JSON; nothing makes values of them")]

use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::embed::{EmbedRequest, OldEmbedRequest};
use super::request::{ChatRequest, GenerateRequest, ShowRequest};
use crate::openapi::{Operation, Refusals};

/// A turn of a conversation.
#[derive(ToSchema)]
#[schema(as = OllamaMessage)]
pub(super) struct Message {
    /// `system`, `user`, `assistant` or `tool`; what else the model's template knows.
    #[schema(example = "user")]
    role: String,
    /// What was said.
    content: String,
    /// An assistant's thought.
    thinking: Option<String>,
    /// An assistant's calls of tools.
    tool_calls: Option<Vec<ToolCall>>,
    /// The tool that a tool's message comes from.
    tool_name: Option<String>,
}

/// A call of a tool.
#[derive(ToSchema)]
#[schema(as = OllamaToolCall)]
struct ToolCall {
    /// The function.
    function: CalledFunction,
}

/// A function with its arguments.
#[derive(ToSchema)]
#[schema(as = OllamaCalledFunction)]
struct CalledFunction {
    /// Its name.
    name: String,
    /// Its arguments.
    arguments: Map<String, Value>,
}

/// `json`, or a JSON schema.
#[derive(ToSchema)]
#[serde(untagged)]
#[schema(as = OllamaFormat)]
pub(super) enum FormatField {
    Word(FormatWord),
    Schema(Map<String, Value>),
}

/// Any JSON.
#[derive(ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = OllamaFormatWord)]
pub(super) enum FormatWord {
    Json,
}

/// `true`, `false` or an effort.
#[derive(ToSchema)]
#[serde(untagged)]
#[schema(as = OllamaThink)]
pub(super) enum ThinkField {
    Switch(bool),
    Effort(String),
}

/// An answer in a conversation; in streams, a piece of it.
#[derive(ToSchema)]
struct OllamaChatAnswer {
    /// The model.
    model: String,
    /// When.
    created_at: String,
    /// What the model says.
    message: Map<String, Value>,
    #[serde(flatten)]
    end: AnswerEnd,
}

/// How an answer stands; in streams, after each piece.
#[derive(ToSchema)]
struct AnswerEnd {
    /// Whether it has ended.
    done: bool,
    /// `stop`, `length` or `load`.
    #[serde(default)]
    done_reason: String,
    /// Nanoseconds in all.
    #[serde(default)]
    total_duration: u64,
    /// Tokens of the prompt.
    #[serde(default)]
    prompt_eval_count: usize,
    /// Tokens of the answer.
    #[serde(default)]
    eval_count: usize,
}

/// An answer to a prompt; in streams, a piece of it.
#[derive(ToSchema)]
struct GenerateAnswer {
    /// The model.
    model: String,
    /// When.
    created_at: String,
    /// What the model says.
    response: String,
    /// Its thought.
    #[serde(default)]
    thinking: String,
    #[serde(flatten)]
    end: AnswerEnd,
}

/// What is known of the model.
#[derive(ToSchema)]
struct ShowAnswer {
    /// Its chat template.
    template: String,
    /// Its format, family, size and quantisation.
    details: Map<String, Value>,
    /// Its architecture and context.
    model_info: Map<String, Value>,
    /// `completion`, and perhaps `tools` and `thinking`.
    capabilities: Vec<String>,
    /// When the server started.
    modified_at: String,
}

/// The models that are served.
#[derive(ToSchema)]
struct Tags {
    /// One entry for each name.
    models: Vec<Tag>,
}

/// A model.
#[derive(ToSchema)]
struct Tag {
    /// Its name.
    name: String,
    /// The same.
    model: String,
    /// When the server started.
    modified_at: String,
    /// Bytes of its tensors.
    size: u64,
    /// What names its weights.
    digest: String,
    /// Its format, family, size and quantisation.
    details: Map<String, Value>,
}

/// The program's version.
#[derive(ToSchema)]
struct Version {
    /// Such as `0.1.0`.
    version: String,
}

/// Vectors in the order of their inputs.
#[derive(ToSchema)]
struct EmbedAnswer {
    /// The model.
    model: String,
    /// The vectors, of length 1.
    embeddings: Vec<Vec<f32>>,
    /// Nanoseconds from the request to the answer.
    total_duration: u64,
    /// 0: the model is loaded.
    load_duration: u64,
    /// Tokens of all inputs.
    prompt_eval_count: usize,
}

/// The vector of one text.
#[derive(ToSchema)]
struct OldEmbedAnswer {
    /// Of length 1.
    embedding: Vec<f32>,
}

/// A refusal.
#[derive(ToSchema)]
struct OllamaError {
    /// What is wrong, in words, with the remedy.
    error: String,
}

/// What this dialect refuses requests with.
pub(crate) fn refusals() -> Refusals {
    Refusals::of::<OllamaError>()
}

/// This dialect's paths for the OpenAPI document.
pub(crate) fn operations() -> Vec<Operation> {
    const LINES: &str = "application/x-ndjson";
    let messages = json!([{"role": "user", "content": "What is 17 + 25?"}]);
    let options = json!({"num_predict": 200});
    vec![
        Operation::post::<ChatRequest>(
            "/api/chat",
            "Answer a conversation",
            json!({"messages": messages, "stream": false, "options": options}),
        )
        .describe("Unless `stream` is false the answer comes as lines of JSON.")
        .answers::<OllamaChatAnswer>()
        .streams::<OllamaChatAnswer>(LINES),
        Operation::post::<GenerateRequest>(
            "/api/generate",
            "Answer a prompt",
            json!({"prompt": "What is 17 + 25?", "stream": false, "options": options}),
        )
        .describe("Unless `stream` is false the answer comes as lines of JSON.")
        .answers::<GenerateAnswer>()
        .streams::<GenerateAnswer>(LINES),
        Operation::post::<EmbedRequest>(
            "/api/embed",
            "Turn texts into vectors",
            json!({"input": ["Paris", "Rome"]}),
        )
        .answers::<EmbedAnswer>(),
        Operation::post::<OldEmbedRequest>(
            "/api/embeddings",
            "Turn one text into a vector",
            json!({"prompt": "Paris"}),
        )
        .answers::<OldEmbedAnswer>(),
        Operation::post::<ShowRequest>("/api/show", "What is known of the model", json!({}))
            .answers::<ShowAnswer>(),
        Operation::get("/api/tags", "The models that are served").answers::<Tags>(),
        Operation::get("/api/version", "The program's version").answers::<Version>(),
    ]
}
