//! What requests look like in Ollama's dialect, and how they become a chat.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::chat::{Chat, Common, Format, Sampling, ToolChoice};
use crate::error::ApiError;
use crate::nulls::null_is_default;

/// Settings by the names of llama.cpp.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Options {
    pub temperature: Option<f32>,
    pub top_k: Option<i64>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub seed: Option<i64>,
    pub num_predict: Option<i64>,
    pub repeat_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub stop: Option<Vec<String>>,
}

/// `/api/chat`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ChatRequest {
    pub model: Option<String>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub messages: Vec<Map<String, Value>>,
    pub stream: Option<bool>,
    pub format: Option<Value>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub options: Options,
    pub tools: Option<Vec<Map<String, Value>>>,
    pub think: Option<Value>,
}

/// `/api/generate`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct GenerateRequest {
    pub model: Option<String>,
    pub prompt: Option<String>,
    pub system: Option<String>,
    pub stream: Option<bool>,
    /// Whether the prompt is to be continued as it is, without a template.
    #[serde(default, deserialize_with = "null_is_default")]
    pub raw: bool,
    pub format: Option<Value>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub options: Options,
    pub think: Option<Value>,
}

/// `/api/show`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ShowRequest {
    pub model: Option<String>,
    pub name: Option<String>,
}

fn common(options: Options, format: Option<Value>) -> Result<Common, ApiError> {
    let format = match format {
        None | Some(Value::Null) => Format::Text,
        Some(Value::String(word)) if word.is_empty() => Format::Text,
        Some(Value::String(word)) if word == "json" => Format::JsonObject,
        Some(schema @ Value::Object(_)) => Format::JsonSchema(schema),
        Some(_) => return Err(ApiError::field("format", "is neither `json` nor a JSON schema")),
    };
    let top_k = options
        .top_k
        .map(|k| usize::try_from(k).map_err(|_| ApiError::field("options.top_k", "is negative")));
    Ok(Common {
        sampling: Sampling {
            temperature: options.temperature,
            top_k: top_k.transpose()?,
            top_p: options.top_p,
            min_p: options.min_p,
            repetition_penalty: options.repeat_penalty,
            presence_penalty: options.presence_penalty,
            frequency_penalty: options.frequency_penalty,
            seed: options.seed.map(i64::cast_unsigned),
            ..Sampling::default()
        },
        // Negative numbers mean as many as fit.
        max_tokens: options.num_predict.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0),
        stop: options.stop.unwrap_or_default(),
        priority: None,
        format,
    })
}

/// `true`, `false` or an effort.
fn thinking(field: Option<Value>) -> Option<bool> {
    match field? {
        Value::Bool(on) => Some(on),
        Value::String(effort) => Some(effort != "none"),
        _ => None,
    }
}

/// Ollama's calls carry their arguments as objects; others' as text.
fn message(mut message: Map<String, Value>) -> Value {
    if let Some(thinking) = message.remove("thinking") {
        message.insert("reasoning_content".into(), thinking);
    }
    if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
        for call in calls {
            if let Some(arguments) = call.pointer_mut("/function/arguments").filter(|a| a.is_object()) {
                *arguments = arguments.to_string().into();
            }
        }
    }
    Value::Object(message)
}

impl ChatRequest {
    pub fn into_chat(self) -> Result<Chat, ApiError> {
        if self.messages.is_empty() {
            return Err(ApiError::field("messages", "is empty; give at least one message"));
        }
        Ok(Chat {
            messages: self.messages.into_iter().map(message).collect(),
            tools: self.tools.unwrap_or_default().into_iter().map(Value::Object).collect(),
            tool_choice: ToolChoice::Auto,
            parallel_tool_calls: true,
            thinking: thinking(self.think),
            kwargs: Map::new(),
            common: common(self.options, self.format)?,
        })
    }
}

impl GenerateRequest {
    pub fn into_common(self) -> Result<Common, ApiError> {
        common(self.options, self.format)
    }

    pub fn into_chat(self) -> Result<Chat, ApiError> {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let user = json!({"role": "user", "content": self.prompt.unwrap_or_default()});
        Ok(Chat {
            messages: system.chain([user]).collect(),
            thinking: thinking(self.think),
            common: common(self.options, self.format)?,
            ..Chat::default()
        })
    }
}
