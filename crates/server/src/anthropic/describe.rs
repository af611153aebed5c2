//! Anthropic's dialect for the OpenAPI document: its paths, and the shapes that are read and written as plain JSON.
#![allow(dead_code, reason = "types that describe JSON; nothing makes values of them")]

use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::request::{CountRequest, MessagesRequest};
use crate::openapi::{Operation, Refusals};

/// A block of a turn: text, a thought, a call of a tool or its result.
#[derive(ToSchema)]
#[schema(as = AnthropicBlock)]
pub(super) struct ContentBlock {
    /// This model takes no images or documents.
    #[schema(pattern = "^(text|thinking|redacted_thinking|tool_use|tool_result)$")]
    r#type: String,
    /// Of a `text`.
    text: Option<String>,
    /// Of a `thinking`.
    thinking: Option<String>,
    /// Of a `tool_use`.
    id: Option<String>,
    /// Of a `tool_use`: the tool.
    name: Option<String>,
    /// Of a `tool_use`: its arguments.
    input: Option<Map<String, Value>>,
    /// Of a `tool_result`: the call.
    tool_use_id: Option<String>,
    /// Of a `tool_result`: text, or blocks of text.
    content: Option<String>,
}

/// Text, or blocks.
#[derive(ToSchema)]
#[serde(untagged)]
pub(super) enum AnthropicContent {
    Text(String),
    Blocks(Vec<ContentBlock>),
}

/// A tool on offer.
#[derive(ToSchema)]
#[schema(as = AnthropicTool)]
pub(super) struct Tool {
    /// Its name.
    #[schema(min_length = 1, example = "get_weather")]
    name: String,
    /// What it is good for.
    description: Option<String>,
    /// A JSON schema of its arguments.
    input_schema: Map<String, Value>,
}

/// Which tools may or must be called.
#[derive(ToSchema)]
#[schema(as = AnthropicToolChoice)]
pub(super) struct ToolChoiceField {
    /// `auto`, `none`, `any`, or `tool` with its name.
    #[schema(pattern = "^(auto|none|any|tool)$")]
    r#type: String,
    /// Of a `tool`.
    name: Option<String>,
    /// Whether only one may be called.
    disable_parallel_tool_use: Option<bool>,
}

/// Whether to think.
#[derive(ToSchema)]
#[schema(as = AnthropicThinking)]
pub(super) struct ThinkingField {
    /// `enabled`, `adaptive` or `disabled`.
    r#type: String,
}

/// An answer.
#[derive(ToSchema)]
#[schema(as = AnthropicAnswer)]
struct Message {
    /// Its name.
    id: String,
    /// `message`.
    r#type: String,
    /// `assistant`.
    role: String,
    /// The model.
    model: String,
    /// Blocks: `thinking`, `text`, `tool_use`.
    content: Vec<Map<String, Value>>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
    #[schema(required = true)]
    stop_reason: Option<String>,
    /// The string that ended it.
    #[schema(required = true)]
    stop_sequence: Option<String>,
    /// The tokens it took.
    usage: MessageUsage,
}

/// The tokens of an answer.
#[derive(ToSchema)]
#[schema(as = AnthropicUsage)]
struct MessageUsage {
    /// Of the prompt, without those that were restored.
    input_tokens: usize,
    /// Restored from the prefix cache.
    cache_read_input_tokens: usize,
    /// Always 0: the cache is kept without being asked.
    cache_creation_input_tokens: usize,
    /// Of the answer.
    output_tokens: usize,
}

/// An event of a streamed answer.
#[derive(ToSchema)]
#[schema(as = AnthropicEvent)]
struct Event {
    /// Such as `content_block_delta`.
    r#type: String,
}

/// The length of a prompt.
#[derive(ToSchema)]
struct TokenCount {
    /// Its tokens.
    input_tokens: usize,
}

/// A refusal.
#[derive(ToSchema)]
struct AnthropicError {
    /// `error`.
    r#type: String,
    /// What is wrong.
    error: AnthropicErrorBody,
}

/// What is wrong.
#[derive(ToSchema)]
struct AnthropicErrorBody {
    /// Its kind, such as `invalid_request_error`.
    r#type: String,
    /// In words, with the remedy.
    message: String,
}

/// What this dialect refuses requests with.
pub(crate) fn refusals() -> Refusals {
    Refusals::of::<AnthropicError>()
}

/// This dialect's paths for the OpenAPI document.
pub(crate) fn operations() -> Vec<Operation> {
    let example = json!({"max_tokens": 200, "messages": [{"role": "user", "content": "What is 17 + 25?"}]});
    let count = json!({"messages": example["messages"]});
    vec![
        Operation::post::<MessagesRequest>("/v1/messages", "Answer a conversation", example)
            .describe("With `stream` the answer comes as events.")
            .answers::<Message>()
            .streams::<Event>("text/event-stream"),
        Operation::post::<CountRequest>(
            "/v1/messages/count_tokens",
            "Count the tokens of a conversation",
            count,
        )
        .answers::<TokenCount>(),
    ]
}
