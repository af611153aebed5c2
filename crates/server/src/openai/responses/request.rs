//! What requests for responses look like, and how their items become messages.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::super::chat::text_alone;
use super::super::describe::{ReasoningField, ResponseInput, ResponseTool, TextField, ToolChoiceField};
use super::super::types::{count, format, thinking, tool_choice};
use crate::chat::{Chat, Common, Sampling};
use crate::error::ApiError;
use crate::nulls::null_is_default;

/// Text, or items.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Input {
    Text(String),
    Items(Vec<Map<String, Value>>),
}

/// A request for a response.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct ResponsesRequest {
    /// The model's name; the one that is served unless given.
    pub model: Option<String>,
    /// What to answer.
    #[schema(value_type = ResponseInput)]
    pub input: Input,
    /// The system prompt of this answer alone.
    pub instructions: Option<String>,
    /// The response that this one goes on from.
    pub previous_response_id: Option<String>,
    /// Most tokens of the answer; as many as fit unless given.
    #[schema(minimum = 1, maximum = 1073741824)]
    pub max_output_tokens: Option<i64>,
    /// How freely tokens are chosen; 0 takes the most likely one. The model's own setting unless given.
    #[schema(minimum = 0)]
    pub temperature: Option<f32>,
    /// Chooses among the most likely tokens that reach this probability together.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Tools on offer.
    #[schema(value_type = Option<Vec<ResponseTool>>)]
    pub tools: Option<Vec<Map<String, Value>>>,
    /// Which of them may or must be called.
    #[schema(value_type = Option<ToolChoiceField>)]
    pub tool_choice: Option<Value>,
    /// Whether several may be called at once.
    #[schema(default = true)]
    pub parallel_tool_calls: Option<bool>,
    /// The form that the answer must have.
    #[schema(value_type = Option<TextField>)]
    pub text: Option<Map<String, Value>>,
    /// Whether to think.
    #[schema(value_type = Option<ReasoningField>)]
    pub reasoning: Option<Map<String, Value>>,
    /// Repeated in the answer.
    pub metadata: Option<Map<String, Value>>,
    /// Whether later requests may go on from this response.
    #[schema(default = true)]
    pub store: Option<bool>,
    /// Whether the answer comes as events.
    #[serde(default, deserialize_with = "null_is_default")]
    #[schema(value_type = Option<bool>, default = false)]
    pub stream: bool,
}

impl ResponsesRequest {
    /// The effort to think with.
    pub fn effort(&self) -> Option<&str> {
        self.reasoning.as_ref()?.get("effort")?.as_str()
    }

    /// The chat, and the conversation without instructions, which each request brings its own of.
    pub fn into_chat(self, before: Vec<Value>) -> Result<(Chat, Vec<Value>), ApiError> {
        let thinking = thinking(self.effort())?;
        let mut conversation = before;
        match self.input {
            Input::Text(text) => conversation.push(json!({"role": "user", "content": text})),
            Input::Items(items) => add_items(items, &mut conversation)?,
        }
        if conversation.is_empty() {
            return Err(ApiError::field("input", "is empty; give text or items"));
        }
        let system = self.instructions.map(|text| json!({"role": "system", "content": text}));
        let messages = system.into_iter().chain(conversation.iter().cloned()).collect();
        let text_format = self.text.and_then(|mut text| text.remove("format"));
        let text_format = text_format.and_then(|value| value.as_object().cloned());
        let chat = Chat {
            messages,
            tools: self.tools.unwrap_or_default().into_iter().map(tool).collect::<Result<_, _>>()?,
            tool_choice: tool_choice(self.tool_choice)?,
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            thinking,
            kwargs: Map::new(),
            common: Common {
                sampling: Sampling {
                    temperature: self.temperature,
                    top_p: self.top_p,
                    ..Sampling::default()
                },
                max_tokens: count("max_output_tokens", self.max_output_tokens, 1, 1 << 30)?,
                format: format(text_format)?,
                ..Common::default()
            },
        };
        Ok((chat, conversation))
    }
}

/// A tool as chat templates know it.
fn tool(tool: Map<String, Value>) -> Result<Value, ApiError> {
    let kind = tool.get("type").and_then(Value::as_str).unwrap_or("function");
    if kind != "function" {
        return Err(ApiError::field("tools", format!("`{kind}` is not a kind of tool that this server has")));
    }
    if tool.contains_key("function") {
        return Ok(Value::Object(tool));
    }
    let name = tool.get("name").and_then(Value::as_str);
    let name = name.ok_or_else(|| ApiError::field("tools", "a tool has no `name`"))?;
    let field =
        |key: &str, other: Value| tool.get(key).filter(|value| !value.is_null()).cloned().unwrap_or(other);
    Ok(json!({"type": "function", "function": {
        "name": name, "description": field("description", "".into()),
        "parameters": field("parameters", json!({"type": "object", "properties": {}})),
    }}))
}

fn add_items(items: Vec<Map<String, Value>>, into: &mut Vec<Value>) -> Result<(), ApiError> {
    // Thoughts and calls of one turn are items of their own, and become one message.
    let mut turn: Vec<Value> = Vec::new();
    let close = |turn: &mut Vec<Value>, into: &mut Vec<Value>| {
        if !turn.is_empty() {
            into.push(assistant_message(std::mem::take(turn).iter()));
        }
    };
    for (index, item) in items.into_iter().enumerate() {
        let field = format!("input[{index}]");
        let kind = item.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
        let role = item.get("role").and_then(Value::as_str).unwrap_or_default();
        match kind.as_str() {
            "reasoning" | "function_call" => turn.push(Value::Object(item)),
            "message" if role == "assistant" => turn.push(Value::Object(item)),
            "message" if matches!(role, "user" | "system" | "developer") => {
                close(&mut turn, into);
                let role = if role == "developer" { "system" } else { role };
                into.push(json!({"role": role, "content": text_of(&field, item.get("content"))?}));
            }
            "message" => {
                return Err(ApiError::field(
                    format!("{field}.role"),
                    "is not `user`, `assistant` or `system`",
                ));
            }
            "function_call_output" => {
                close(&mut turn, into);
                let output = match item.get("output") {
                    Some(Value::String(text)) => text.clone(),
                    other => text_of(&field, other)?,
                };
                into.push(json!({"role": "tool", "tool_call_id": item.get("call_id"), "content": output}));
            }
            other => {
                return Err(ApiError::field(
                    field,
                    format!("`{other}` is not an item that this server takes"),
                ));
            }
        }
    }
    close(&mut turn, into);
    Ok(())
}

/// The text of a message's content.
fn text_of(field: &str, content: Option<&Value>) -> Result<String, ApiError> {
    match content {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            text_alone(&format!("{field}.content"), content)?;
            let text = |part: &Value| part.get("text").and_then(Value::as_str).map(str::to_owned);
            let texts: Option<String> = parts.iter().map(text).collect();
            texts.ok_or_else(|| {
                ApiError::field(format!("{field}.content"), "holds something that is not text")
            })
        }
        _ => Err(ApiError::field(format!("{field}.content"), "is missing; give text")),
    }
}

/// One message of the assistant from the items of its turn.
pub(super) fn assistant_message<'a>(items: impl Iterator<Item = &'a Value>) -> Value {
    let (mut thought, mut text, mut calls) = (String::new(), String::new(), Vec::new());
    let parts = |item: &Value| -> String {
        let parts = item["content"].as_array().into_iter().flatten();
        parts.filter_map(|part| part["text"].as_str()).collect()
    };
    for item in items {
        match item["type"].as_str() {
            Some("reasoning") => thought += &parts(item),
            Some("function_call") => calls.push(json!({
                "id": item["call_id"], "type": "function",
                "function": {"name": item["name"], "arguments": item["arguments"]},
            })),
            _ => text += item["content"].as_str().map_or_else(|| parts(item), str::to_owned).as_str(),
        }
    }
    let mut message = json!({"role": "assistant", "content": text});
    if !thought.is_empty() {
        message["reasoning_content"] = thought.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    message
}
