//! What requests look like in Anthropic's dialect, and how they become a chat.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::describe::{AnthropicContent, ThinkingField, Tool, ToolChoiceField};
use crate::chat::{Chat, Common, Sampling, ToolChoice};
use crate::error::ApiError;
use crate::nulls::null_is_default;

/// Text, or blocks of which some are text.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Content {
    Text(String),
    Blocks(Vec<Map<String, Value>>),
}

/// A turn.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicMessage)]
pub(crate) struct Message {
    /// `user`, `assistant` or `system`.
    #[schema(pattern = "^(user|assistant|system)$")]
    pub role: String,
    /// What was said.
    #[schema(value_type = AnthropicContent)]
    pub content: Content,
}

/// A request for an answer in a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct MessagesRequest {
    /// The model's name; the one that is served unless given.
    pub model: Option<String>,
    /// The conversation.
    #[schema(min_items = 1)]
    pub messages: Vec<Message>,
    /// The system prompt: text, or blocks of text.
    #[schema(value_type = Option<AnthropicContent>)]
    pub system: Option<Content>,
    /// Most tokens of the answer; as many as fit unless given.
    #[schema(minimum = 1)]
    pub max_tokens: Option<u32>,
    /// Whether the answer comes as events.
    #[serde(default, deserialize_with = "null_is_default")]
    #[schema(value_type = Option<bool>, default = false)]
    pub stream: bool,
    /// Strings that end the answer; they are not part of it.
    #[schema(max_items = 16)]
    pub stop_sequences: Option<Vec<String>>,
    /// How freely tokens are chosen; 0 takes the most likely one. The model's own setting unless given.
    #[schema(minimum = 0)]
    pub temperature: Option<f32>,
    /// Chooses among the most likely tokens that reach this probability together.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Chooses among this many of the most likely tokens; 0 among all.
    pub top_k: Option<usize>,
    /// Tools on offer.
    #[schema(value_type = Option<Vec<Tool>>)]
    pub tools: Option<Vec<Map<String, Value>>>,
    /// Which of them may or must be called.
    #[schema(value_type = Option<ToolChoiceField>)]
    pub tool_choice: Option<Map<String, Value>>,
    /// Whether to think.
    #[schema(value_type = Option<ThinkingField>)]
    pub thinking: Option<Map<String, Value>>,
}

/// The same, of which only the tokens are counted.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(transparent)]
pub(crate) struct CountRequest(pub MessagesRequest);

impl MessagesRequest {
    pub fn into_chat(self) -> Result<Chat, ApiError> {
        if self.messages.is_empty() {
            return Err(ApiError::field("messages", "is empty; give at least one message"));
        }
        if self.max_tokens == Some(0) {
            return Err(ApiError::field("max_tokens", "is 0; ask for at least one token"));
        }
        let mut messages = Vec::new();
        if let Some(system) = self.system {
            messages.push(json!({"role": "system", "content": plain_text("system", system)?}));
        }
        for (index, message) in self.messages.into_iter().enumerate() {
            add_message(index, message, &mut messages)?;
        }
        let thinking = self.thinking.as_ref().and_then(|field| field.get("type")?.as_str());
        let parallel = self.tool_choice.as_ref().and_then(|c| c.get("disable_parallel_tool_use")?.as_bool());
        Ok(Chat {
            messages,
            tools: self.tools.unwrap_or_default().into_iter().map(tool).collect::<Result<_, _>>()?,
            tool_choice: tool_choice(self.tool_choice)?,
            parallel_tool_calls: parallel != Some(true),
            thinking: thinking.map(|kind| kind != "disabled"),
            kwargs: Map::new(),
            common: Common {
                sampling: Sampling {
                    temperature: self.temperature,
                    top_p: self.top_p,
                    top_k: self.top_k,
                    ..Sampling::default()
                },
                max_tokens: self.max_tokens.map(|max| max as usize),
                stop: self.stop_sequences.unwrap_or_default(),
                ..Common::default()
            },
        })
    }
}

/// The text of what must be text alone.
fn plain_text(field: &str, content: Content) -> Result<String, ApiError> {
    let blocks = match content {
        Content::Text(text) => return Ok(text),
        Content::Blocks(blocks) => blocks,
    };
    let mut text = String::new();
    for (index, block) in blocks.iter().enumerate() {
        match (block.get("type").and_then(Value::as_str), block.get("text").and_then(Value::as_str)) {
            (Some("text"), Some(more)) => text += more,
            (kind, _) => {
                let field = format!("{field}[{index}]");
                let kind = kind.unwrap_or("nothing");
                return Err(ApiError::field(field, format!("is `{kind}`; this model takes text alone")));
            }
        }
    }
    Ok(text)
}

/// One turn as the messages that templates know: results of tools are messages of their own.
fn add_message(index: usize, message: Message, into: &mut Vec<Value>) -> Result<(), ApiError> {
    let Message { role, content } = message;
    if !matches!(role.as_str(), "user" | "assistant" | "system") {
        let field = format!("messages[{index}].role");
        return Err(ApiError::field(field, format!("`{role}` is not `user` or `assistant`")));
    }
    let blocks = match content {
        Content::Text(text) => {
            into.push(json!({"role": role, "content": text}));
            return Ok(());
        }
        Content::Blocks(blocks) => blocks,
    };
    let (mut text, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    for (number, block) in blocks.into_iter().enumerate() {
        let field = || format!("messages[{index}].content[{number}]");
        let string = |key: &str| block.get(key).and_then(Value::as_str).unwrap_or_default();
        match block.get("type").and_then(Value::as_str) {
            Some("text") => text += string("text"),
            Some("thinking") => thought += string("thinking"),
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let arguments = block.get("input").cloned().unwrap_or_else(|| json!({}));
                let function = json!({"name": string("name"), "arguments": arguments.to_string()});
                calls.push(json!({"id": string("id"), "type": "function", "function": function}));
            }
            Some("tool_result") => {
                let content = match block.get("content") {
                    None | Some(Value::Null) => String::new(),
                    Some(content) => {
                        let content = serde_json::from_value(content.clone());
                        let wrong = |_| ApiError::field(field(), "`content` is neither text nor blocks");
                        plain_text(&field(), content.map_err(wrong)?)?
                    }
                };
                into.push(json!({"role": "tool", "tool_call_id": string("tool_use_id"), "content": content}));
            }
            kind => {
                let kind = kind.unwrap_or("nothing");
                return Err(ApiError::field(
                    field(),
                    format!("is `{kind}`; this model takes text and tools alone"),
                ));
            }
        }
    }
    if text.is_empty() && thought.is_empty() && calls.is_empty() {
        return Ok(());
    }
    let mut turn = json!({"role": role, "content": text});
    if !thought.is_empty() {
        turn["reasoning_content"] = thought.into();
    }
    if !calls.is_empty() {
        turn["tool_calls"] = calls.into();
    }
    into.push(turn);
    Ok(())
}

fn tool(tool: Map<String, Value>) -> Result<Value, ApiError> {
    let name = tool.get("name").and_then(Value::as_str);
    let name = name.ok_or_else(|| ApiError::field("tools", "a tool has no `name`"))?;
    let schema =
        tool.get("input_schema").cloned().unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    let description = tool.get("description").cloned().unwrap_or_else(|| "".into());
    Ok(json!({
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }))
}

fn tool_choice(field: Option<Map<String, Value>>) -> Result<ToolChoice, ApiError> {
    let Some(field) = field else { return Ok(ToolChoice::Auto) };
    match field.get("type").and_then(Value::as_str) {
        Some("auto") => Ok(ToolChoice::Auto),
        Some("none") => Ok(ToolChoice::None),
        Some("any") => Ok(ToolChoice::Required),
        Some("tool") => match field.get("name").and_then(Value::as_str) {
            Some(name) => Ok(ToolChoice::Named(name.to_owned())),
            None => Err(ApiError::field("tool_choice.name", "is missing")),
        },
        _ => Err(ApiError::field("tool_choice.type", "is not `auto`, `any`, `tool` or `none`")),
    }
}
