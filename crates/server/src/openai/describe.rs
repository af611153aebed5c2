//! OpenAI's dialect for the OpenAPI document: its paths, and the shapes that are read and written as plain JSON.
#![allow(dead_code, reason = "types that describe JSON; nothing makes values of them")]

use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::answers::{
    ChatCompletion, ChatCompletionChunk, Completion, ModelCard, ModelList, ResponseEvent, ResponseObject,
};
use super::embeddings::EmbeddingRequest;
use super::responses::ResponsesRequest;
use super::types::{ChatCompletionRequest, CompletionRequest};
use crate::openapi::{Operation, Refusals};

/// A turn of a conversation.
#[derive(ToSchema)]
pub(crate) struct ChatMessage {
    /// `system`, `user`, `assistant` or `tool`; what else the model's template knows.
    #[schema(example = "user")]
    role: String,
    /// What was said: text, or parts of text.
    content: Option<ChatContent>,
    /// An assistant's thought.
    reasoning_content: Option<String>,
    /// An assistant's calls of tools.
    tool_calls: Option<Vec<ChatToolCall>>,
    /// The call that a tool's message answers.
    tool_call_id: Option<String>,
}

/// Text, or parts of text.
#[derive(ToSchema)]
#[serde(untagged)]
enum ChatContent {
    Text(String),
    Parts(Vec<TextPart>),
}

/// A part of text.
#[derive(ToSchema)]
struct TextPart {
    /// `text`; this model takes no images, audio or files.
    #[schema(pattern = "^text$")]
    r#type: String,
    /// The text.
    text: String,
}

/// A call of a tool.
#[derive(ToSchema)]
pub(super) struct ChatToolCall {
    /// What the answer to it names.
    id: String,
    /// `function`.
    #[schema(pattern = "^function$")]
    r#type: String,
    /// The function.
    function: CalledFunction,
}

/// A function with its arguments.
#[derive(ToSchema)]
struct CalledFunction {
    /// Its name.
    name: String,
    /// Its arguments: JSON, as text.
    #[schema(pattern = r"^\{.*\}$")]
    arguments: String,
}

/// A tool on offer.
#[derive(ToSchema)]
pub(crate) struct ChatTool {
    /// `function`.
    #[schema(pattern = "^function$")]
    r#type: String,
    /// The function.
    function: OfferedFunction,
}

/// A function on offer.
#[derive(ToSchema)]
struct OfferedFunction {
    /// Its name.
    #[schema(min_length = 1, example = "get_weather")]
    name: String,
    /// What it is good for.
    description: Option<String>,
    /// A JSON schema of its arguments.
    parameters: Option<Map<String, Value>>,
}

/// `auto`, `none`, `required`, or the one function to call.
#[derive(ToSchema)]
#[serde(untagged)]
pub(super) enum ToolChoiceField {
    Word(ToolChoiceWord),
    Named(NamedTool),
}

/// How tools may be called.
#[derive(ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum ToolChoiceWord {
    Auto,
    None,
    Required,
    Any,
}

/// The one function to call.
#[derive(ToSchema)]
pub(super) struct NamedTool {
    /// `function`.
    #[schema(pattern = "^function$")]
    r#type: String,
    /// The function, as `{"name": ...}`.
    function: Option<NamedFunction>,
    /// Its name, as `/v1/responses` has it.
    name: Option<String>,
}

/// A function by its name.
#[derive(ToSchema)]
struct NamedFunction {
    /// Its name.
    name: String,
}

/// The form that an answer must have.
#[derive(ToSchema)]
pub(super) struct ResponseFormat {
    /// `text`, `json_object`, `json_schema`, `regex` or `lark`.
    #[schema(pattern = "^(text|json_object|json_schema|regex|lark)$")]
    r#type: String,
    /// For `json_schema`: the schema, as `{"schema": ...}`.
    json_schema: Option<NamedSchema>,
    /// For `json_schema`: the schema itself, as `/v1/responses` has it.
    schema: Option<Map<String, Value>>,
    /// For `regex`: the expression.
    regex: Option<String>,
    /// For `lark`: the grammar.
    lark: Option<String>,
}

/// A schema with a name.
#[derive(ToSchema)]
struct NamedSchema {
    /// Said to nobody.
    name: Option<String>,
    /// The JSON schema.
    schema: Map<String, Value>,
}

/// Text, or items.
#[derive(ToSchema)]
#[serde(untagged)]
pub(super) enum ResponseInput {
    Text(String),
    Items(Vec<ResponseItem>),
}

/// An item of a response's input: a message, a call, its output or a thought.
#[derive(ToSchema)]
pub(super) struct ResponseItem {
    /// `message` unless given.
    #[schema(pattern = "^(message|function_call|function_call_output|reasoning)$")]
    r#type: Option<String>,
    /// Of a message.
    #[schema(pattern = "^(user|assistant|system|developer)$")]
    role: Option<String>,
    /// Of a message: text, or parts with `text`.
    content: Option<ResponseContent>,
    /// Of a call and of its output.
    call_id: Option<String>,
    /// Of a call: the function.
    name: Option<String>,
    /// Of a call: JSON, as text.
    #[schema(pattern = r"^\{.*\}$")]
    arguments: Option<String>,
    /// Of an output.
    output: Option<String>,
}

/// Text, or parts of text.
#[derive(ToSchema)]
#[serde(untagged)]
enum ResponseContent {
    Text(String),
    Parts(Vec<ResponseTextPart>),
}

/// A part of text.
#[derive(ToSchema)]
struct ResponseTextPart {
    /// This model takes no images, audio or files.
    #[schema(pattern = "^(input_text|output_text|reasoning_text)$")]
    r#type: String,
    /// The text.
    text: String,
}

/// A tool on offer.
#[derive(ToSchema)]
pub(super) struct ResponseTool {
    /// `function`.
    #[schema(pattern = "^function$")]
    r#type: String,
    /// The function's name.
    #[schema(min_length = 1, example = "get_weather")]
    name: String,
    /// What it is good for.
    description: Option<String>,
    /// A JSON schema of its arguments.
    parameters: Option<Map<String, Value>>,
}

/// The form of the text.
#[derive(ToSchema)]
pub(super) struct TextField {
    /// Any text unless given.
    format: Option<ResponseFormat>,
}

/// Whether to think.
#[derive(ToSchema)]
pub(super) struct ReasoningField {
    /// `none` and `minimal` do not think; `low`, `medium`, `high` and `xhigh` do.
    #[schema(pattern = "^(none|minimal|low|medium|high|xhigh)$")]
    effort: Option<String>,
}

/// Vectors in the order of their inputs.
#[derive(ToSchema)]
struct EmbeddingList {
    /// `list`.
    object: String,
    /// Each with its `index` and its `embedding`: numbers, or base64 of them.
    data: Vec<Map<String, Value>>,
    /// The model.
    model: String,
    /// Tokens of all inputs.
    usage: Map<String, Value>,
}

/// A refusal.
#[derive(ToSchema)]
struct OpenAiError {
    /// What is wrong.
    error: OpenAiErrorBody,
}

/// What is wrong.
#[derive(ToSchema)]
struct OpenAiErrorBody {
    /// In words, with the remedy.
    message: String,
    /// Its kind, such as `invalid_request_error`.
    r#type: String,
    /// The field that is wrong.
    #[schema(required = true)]
    param: Option<String>,
    /// `not_found` or `queue_full`.
    #[schema(required = true)]
    code: Option<String>,
}

/// What this dialect refuses requests with.
pub(crate) fn refusals() -> Refusals {
    Refusals::of::<OpenAiError>()
}

/// This dialect's paths for the OpenAPI document.
pub(crate) fn operations() -> Vec<Operation> {
    const EVENTS: &str = "text/event-stream";
    let messages = json!([{"role": "user", "content": "What is 17 + 25?"}]);
    vec![
        Operation::post::<ChatCompletionRequest>(
            "/v1/chat/completions",
            "Answer a conversation",
            json!({"messages": messages, "max_tokens": 200}),
        )
        .describe("With `stream` the answer comes as events and ends in `[DONE]`.")
        .answers::<ChatCompletion>()
        .streams::<ChatCompletionChunk>(EVENTS),
        Operation::post::<CompletionRequest>(
            "/v1/completions",
            "Go on with text",
            json!({"prompt": "Once upon a time", "max_tokens": 16}),
        )
        .describe("Without `max_tokens` the answer has 16. With `stream` it comes as events and ends in `[DONE]`.")
        .answers::<Completion>()
        .streams::<Completion>(EVENTS),
        Operation::post::<ResponsesRequest>(
            "/v1/responses",
            "Answer input, and remember it",
            json!({"input": "What is 17 + 25?", "max_output_tokens": 200}),
        )
        .describe("`previous_response_id` goes on from an earlier answer. With `stream` the answer comes as events.")
        .answers::<ResponseObject>()
        .streams::<ResponseEvent>(EVENTS),
        Operation::post::<EmbeddingRequest>(
            "/v1/embeddings",
            "Turn texts into vectors",
            json!({"input": ["Paris", "Rome"]}),
        )
        .describe("The hidden row of the last token after the final norm, of length 1.")
        .answers::<EmbeddingList>(),
        Operation::get("/v1/models", "The models that are served").answers::<ModelList>(),
        Operation::get("/v1/models/{name}", "One model").parameter("name", "The model's name.").answers::<ModelCard>(),
    ]
}
